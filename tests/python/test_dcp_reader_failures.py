"""safetensors.dcp.StorageReader with files and plans that err, and what it leaves behind."""

import json
import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import MetadataIndex

from safetensors import SafetensorError
from safetensors._dcp import rank_files
from safetensors.dcp import StorageReader
from safetensors.torch import save_file, save_files
from support.rank_parts import quarters, save_parts

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {"w": torch.arange(42.0).reshape(7, 6), "half": torch.rand(5, 3).to(torch.bfloat16)}


def load(state, path, planner=None, **options):
    dcp.load(state, storage_reader=StorageReader(path, **options), planner=planner)
    return state


def others():
    """Tensors like those of STATE with other values."""
    return {name: torch.ones_like(each) for name, each in STATE.items()}


def error_of(state, path, **options):
    """Returns the error of rank 0 of a load that fails, and checks that nothing is changed."""
    before = {name: tensor.clone() for name, tensor in state.items()}
    with pytest.raises(CheckpointException) as caught:
        load(state, path, **options)
    assert all(torch.equal(state[name], each) for name, each in before.items())
    return caught.value.failures[0][0]


def test_what_torch_refuses(tmp_path):
    """The planner's errors, on the rank."""
    save_files(STATE, tmp_path)
    assert "Missing key in checkpoint state_dict: x" in str(
        error_of({"x": torch.ones(2)}, tmp_path)
    )
    assert "Size mismatch" in str(error_of({"w": torch.ones(6, 7)}, tmp_path))
    with pytest.raises(CheckpointException) as caught:
        load({"w": 3}, tmp_path)
    assert "w" in str(caught.value.failures[0][0])


def damaged(folder, name):
    """Damages a checkpoint of one kind."""
    parts = quarters(torch.rand(7, 9))
    save_parts(folder, [{"w": part} for part in parts])
    files = sorted(folder.iterdir())
    info = {"format": "pt"}
    if name == "a rank is missing":
        files[1].unlink()
    elif name == "parts overlap":
        save_file({"w": parts[0][1].clone()}, files[1], rank_files.metadata({"w": [0, 3]}))
    elif name == "another dtype":
        save_file({"w": parts[1][1].half()}, files[1], rank_files.metadata({"w": [0, 4]}))
    elif name == "no offsets":
        info |= {rank_files.SHARDING_INFO: json.dumps({"v": {}})}
        save_file({"w": parts[1][1].clone()}, files[1], info)
    elif name == "no JSON":
        save_file({"w": parts[1][1].clone()}, files[1], info | {rank_files.SHARDING_INFO: "{"})
    elif name == "truncated":
        os.truncate(files[1], files[1].stat().st_size - 1)
    elif name == "empty":
        files[1].write_bytes(b"")
    else:
        index = {"metadata": {}, "weight_map": {"w": "absent.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {"w": torch.ones(7, 9)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a rank is missing", "the files have 192 bytes of tensor `w`, which is F32 [7, 9]"),
        ("parts overlap", "the part of tensor `w` overlaps the one in"),
        ("another dtype", "tensor `w` is F16 [3, 5]; in"),
        ("no offsets", "has no valid offsets of tensor `w`"),
        ("no JSON", "is not a JSON object"),
        ("truncated", "shard-00002-model-00001-of-00001.safetensors"),
        ("empty", "shard-00002-model-00001-of-00001.safetensors"),
        ("no file", "puts tensor 'w' into a file that is missing"),
    ],
)
def test_damaged_checkpoints(tmp_path, name, text):
    """One sentence, before anything is read: from read_metadata, and from load in torch's text."""
    state = damaged(tmp_path / "a", name)
    with pytest.raises((SafetensorError, FileNotFoundError)) as caught:
        StorageReader(tmp_path / "a").read_metadata()
    assert text in str(caught.value)
    found = str(error_of(state, tmp_path / "a"))
    assert str(caught.value) in found
    assert "rank local metadata" not in found  # it was not read a second time


def test_nothing_to_load(tmp_path):
    """A folder without files; a path that does not exist; a state dict without tensors."""
    with pytest.raises(FileNotFoundError, match="No .safetensors files"):
        StorageReader(tmp_path).read_metadata()
    with pytest.raises(FileNotFoundError, match="absent"):
        StorageReader(tmp_path / "absent").read_metadata()
    save_files(STATE, tmp_path)
    assert load({}, tmp_path) == {}
    assert StorageReader.validate_checkpoint_id(tmp_path)
    assert StorageReader.validate_checkpoint_id("s3://bucket/model/")
    assert not StorageReader.validate_checkpoint_id(tmp_path / "absent")


class Changing(DefaultLoadPlanner):
    """Changes the checkpoint between read_metadata and read_data."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def finish_plan(self, new_plan):
        """As planners do."""
        self._change()
        return super().finish_plan(new_plan)


@pytest.mark.parametrize("way", ["replaced", "written to", "truncated", "removed"])
def test_files_that_change(tmp_path, way):
    """Nothing is loaded of another version."""
    save_files(STATE, tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()

    def change():
        if way == "replaced":
            (tmp_path / "new").write_bytes(content)
            os.replace(tmp_path / "new", path)
        elif way == "written to":
            path.write_bytes(content)
            os.utime(path, (1, 1))
        elif way == "truncated":
            os.truncate(path, len(content) - 8)
        else:
            path.unlink()

    error = error_of(
        {name: torch.ones_like(each) for name, each in STATE.items()},
        tmp_path,
        planner=Changing(change),
    )
    assert str(path) in str(error)
    if way == "removed":
        assert isinstance(error, FileNotFoundError)
    else:
        assert isinstance(error, SafetensorError)
        assert error.code == "file_changed"


class Renaming(DefaultLoadPlanner):
    """Asks for what a function makes of the items."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def create_local_plan(self):
        """As planners do."""
        plan = super().create_local_plan()
        plan.items = [self._change(item) for item in plan.items]
        return plan


def replaced(item, **values):
    for name, value in values.items():
        object.__setattr__(item, name, value)
    return item


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"storage_index": MetadataIndex("x", [0, 0])}, "do not contain the tensor 'x'"),
        ({"storage_index": MetadataIndex("w", [0, 1])}, "do not contain the tensor 'w'"),
        ({"storage_offsets": torch.Size([1, 0])}, "the plan reads [7, 6] at [1, 0] of tensor 'w'"),
        ({"storage_offsets": torch.Size([0])}, "the plan reads [7, 6] at [0] of tensor 'w'"),
        ({"lengths": torch.Size([6, 6])}, None),
    ],
)
def test_plans_that_do_not_fit(tmp_path, values, text):
    """Planners of other packages may err."""
    save_files({"w": STATE["w"]}, tmp_path)
    planner = Renaming(lambda item: replaced(item, **values))
    if text is None:
        state = load({"w": torch.zeros(7, 6)}, tmp_path, planner=planner)
        assert torch.equal(state["w"][:6], STATE["w"][:6])
        assert not state["w"][6].any()
        return
    error = error_of({"w": torch.ones(7, 6)}, tmp_path, planner=planner)
    assert isinstance(error, SafetensorError)
    assert text in str(error)


def test_a_reader_again(tmp_path):
    """It loads another checkpoint, also after a failure, and keeps no file open."""
    save_files(STATE, tmp_path / "a")
    save_files({"w": torch.ones(2)}, tmp_path / "b")
    again = StorageReader(tmp_path / "a")
    state = others()
    dcp.load(state, storage_reader=again)
    assert torch.equal(state["w"], STATE["w"])
    with pytest.raises(CheckpointException):
        dcp.load({"w": torch.ones(3)}, storage_reader=again)
    with pytest.raises(SafetensorError, match="read_metadata"):
        StorageReader(tmp_path / "a").read_data(None, None)
    state = {"w": torch.zeros(2)}
    dcp.load(state, checkpoint_id=tmp_path / "b", storage_reader=again)
    assert state["w"].all()
    assert again._files is None
    again = pickle.loads(pickle.dumps(again))
    state["w"].zero_()
    dcp.load(state, storage_reader=again)
    assert state["w"].all()
