"""safetensors.dcp.StorageWriter in one process."""

import gc
import os
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import safetensors
from safetensors._dcp import tensor_bytes
from safetensors.dcp import StorageWriter
from safetensors.torch import load_file, load_files, save_file, save_files
from support import children, memory, mounts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

STATE = {
    "w": torch.arange(42.0).reshape(7, 6),
    "half": torch.ones(5, 3).to(torch.bfloat16),
    "f8": torch.arange(16).reshape(4, 4).to(torch.float8_e4m3fn),
    "number": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "complex": torch.tensor([1 + 2j]).conj(),
}


def files(folder):
    """Returns the content of the files, and of folders what they have."""
    return {
        each.name: os.listdir(each) if each.is_dir() else each.read_bytes()
        for each in folder.iterdir()
    }


def save(state, folder, planner=None, **options):
    """Saves with a new writer."""
    dcp.save(state, storage_writer=StorageWriter(folder, **options), planner=planner)


def error_of(state, folder, **options):
    """Returns the error of rank 0 of a save that fails."""
    with pytest.raises(CheckpointException) as caught:
        save(state, folder, **options)
    return caught.value.failures[0][0]


class Failing(DefaultSavePlanner):
    """Fails when it is asked for the tensor `w`."""

    def resolve_data(self, write_item):
        """As planners do."""
        if write_item.index.fqn == "w":
            raise KeyboardInterrupt
        return super().resolve_data(write_item)


@pytest.mark.parametrize("limit", ["5GB", 100, "0.2kB"])
def test_files_are_those_of_save_files(tmp_path, limit):
    """Byte for byte, also over an old model of more or fewer files."""
    save({"old": torch.ones(100), "older": torch.ones(9)}, tmp_path / "a", max_shard_size=100)
    save(STATE, tmp_path / "a", max_shard_size=limit)
    save_files(STATE, tmp_path / "b", max_shard_size=limit)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_one_file_is_that_of_save_file(tmp_path):
    """With the metadata that transformers requires."""
    save(STATE, tmp_path / "a", name="weights", fsync=True)
    save_file(STATE, tmp_path / "b", {"format": "pt"})
    assert files(tmp_path / "a") == {"weights.safetensors": (tmp_path / "b").read_bytes()}


def test_nested_state(tmp_path):
    """The planner flattens it: names are paths."""
    module = torch.nn.Linear(2, 3)
    save({"model": module.state_dict(), "list": [torch.ones(2)]}, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == {"model.weight", "model.bias", "list.0"}
    assert torch.equal(found["model.weight"], module.weight)


def test_nothing_to_save(tmp_path):
    """A file without tensors."""
    save({}, tmp_path)
    assert load_files(tmp_path) == {}


@pytest.mark.parametrize("shape", [(40, 6), (1, 3, 70), (5,), ()])
def test_pieces(monkeypatch, shape):
    """A tensor that is not contiguous is copied in pieces, whatever its shape."""
    monkeypatch.setattr(tensor_bytes, "_MAX_NBYTES", 32)
    tensor = torch.rand(*shape, 2, dtype=torch.float64)[..., 0]
    found = [bytes(piece) for piece in tensor_bytes.bytes_of(tensor)]
    assert b"".join(found) == tensor.numpy().tobytes()
    assert max(map(len, found)) <= 32
    assert len(found) >= tensor.numel() // 4


def test_fqn_to_index_mapping(tmp_path):
    """Files as the mapping says, in the order of the state within each."""
    mapping = {name: 1 + i % 3 for i, name in enumerate(STATE)}
    save(STATE, tmp_path, fqn_to_index_mapping=mapping)
    for index in (1, 2, 3):
        found = load_file(tmp_path / f"model-0000{index}-of-00003.safetensors")
        assert found.keys() == {name for name in STATE if mapping[name] == index}
    assert len(files(tmp_path)) == 4
    assert load_files(tmp_path).keys() == STATE.keys()


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"w": 1}, "no file for tensor `half`"),
        (dict.fromkeys(STATE, 2), "no tensor for file 1"),
        (dict.fromkeys(STATE, 0), "from 1"),
        ({**dict.fromkeys(STATE, 1), "w": 1 << 60}, "no tensor for file 2"),
    ],
)
def test_bad_mapping(tmp_path, mapping, text):
    """Raises before anything is written."""
    assert text in str(error_of(STATE, tmp_path / "a", fqn_to_index_mapping=mapping))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [3, "text", None, {"nested": 1.5}])
def test_values_that_are_no_tensors(tmp_path, value):
    """The error names the key, and the old model stays."""
    save(STATE, tmp_path)
    before = files(tmp_path)
    error = error_of({**STATE, "step": value}, tmp_path)
    assert isinstance(error, safetensors.SafetensorError)
    assert "`step" in str(error)
    assert "not a tensor" in str(error)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(2).to_sparse(), "tensor `x` is sparse"),
        (torch.ones(2, device="meta"), "`x` is on the meta device"),
        (torch.ones(2, dtype=torch.complex128), "tensor `x`: the format has no dtype"),
    ],
)
def test_tensors_that_no_file_holds(tmp_path, tensor, text):
    """One error that names the tensor; nothing is left."""
    assert text in str(error_of({"a": torch.ones(3), "x": tensor}, tmp_path / "new"))
    gc.collect()
    assert not (tmp_path / "new").exists()


def test_names_twice(tmp_path):
    """torch refuses them; nothing is written."""
    error = error_of({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}}, tmp_path / "new")
    assert "a.b" in str(error)
    assert not (tmp_path / "new").exists()


def test_failed_save_leaves_the_old_model(tmp_path):
    """And no other file; the same writer and a new one can save afterwards."""
    save(STATE, tmp_path, max_shard_size=100)
    before = files(tmp_path)
    writer = StorageWriter(tmp_path)
    with pytest.raises(CheckpointException):
        dcp.save({"w": torch.ones(3)}, storage_writer=writer, planner=Failing())
    assert files(tmp_path) == before
    dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    assert files(tmp_path).keys() == {"model.safetensors"}
    save(STATE, tmp_path, max_shard_size=100)
    assert files(tmp_path) == before


def begun(folder):
    """Returns a writer whose save has begun, as if another rank had failed then."""
    writer = StorageWriter(folder)
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": torch.ones(3)}, is_coordinator=True)
    writer.reset()
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    plans, _ = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    writer.prepare_global_plan(plans)
    return writer


def test_abandoned_save(tmp_path):
    """Its files have no final names. reset(), the destructor and the next save remove them."""
    writer = begun(tmp_path / "a")
    assert all(name.startswith(".") for name in files(tmp_path / "a"))
    (parts,) = (tmp_path / "a").iterdir()
    assert {path.name for path in parts.iterdir()} == {"switch", "00001"}
    assert parts.stat().st_mode & 0o777 == 0o700
    writer.reset()
    assert not (tmp_path / "a").exists()
    writer = begun(tmp_path / "b")
    del writer
    assert not (tmp_path / "b").exists()
    writer = begun(tmp_path / "c")
    save(STATE, tmp_path / "c")
    assert files(tmp_path / "c").keys() == {"model.safetensors"}
    writer.reset()
    assert files(tmp_path / "c").keys() == {"model.safetensors"}


def test_two_saves_at_the_same_time(tmp_path):
    """The second one is refused, the first one completes."""
    errors = []

    class Waiting(DefaultSavePlanner):
        def resolve_data(self, write_item):
            thread = threading.Thread(target=lambda: errors.append(error_of(STATE, tmp_path)))
            thread.start()
            thread.join()
            return super().resolve_data(write_item)

    save({"w": torch.ones(3)}, tmp_path, planner=Waiting())
    assert "another process is saving" in str(errors[0])
    assert load_files(tmp_path).keys() == {"w"}


def test_incomplete_results(tmp_path):
    """finish() counts the bytes of each tensor."""
    writer = begun(tmp_path / "a")
    with pytest.raises(safetensors.SafetensorError, match="0 bytes were written of tensor `w`"):
        writer.finish(None, [[]])
    assert not (tmp_path / "a").exists()


def test_caching_and_no_collectives_are_refused(tmp_path):
    """Plans of an earlier save have the names of its temporary files."""
    planner = [DefaultSavePlanner(enable_plan_caching=True) for _ in range(2)]
    try:
        save(STATE, tmp_path, planner=planner[0])
        with pytest.raises(CheckpointException, match="enable_plan_caching"):
            save(STATE, tmp_path, planner=planner[1])
    finally:
        for name, value in vars(dcp.SavePlanner).items():
            if name.startswith("_cached"):
                value.clear()
    with pytest.raises(safetensors.SafetensorError, match="use_collectives"):
        StorageWriter(tmp_path).set_up_storage_writer(True, use_collectives=False)


def test_async_save(tmp_path):
    """Values are those of the call."""
    tensor = torch.ones(1000)
    future = dcp.async_save({"w": tensor}, storage_writer=StorageWriter(tmp_path))
    tensor.zero_()
    future.result()
    assert torch.equal(load_files(tmp_path)["w"], torch.ones(1000))


def test_checkpoint_id_is_the_folder(tmp_path):
    """As with torch's own writers."""
    writer = StorageWriter(tmp_path / "unused")
    for step in range(2):
        dcp.save(STATE, checkpoint_id=tmp_path / f"step{step}", storage_writer=writer)
        assert load_files(tmp_path / f"step{step}").keys() == STATE.keys()
    assert not (tmp_path / "unused").exists()
    assert StorageWriter.validate_checkpoint_id(tmp_path / "new")
    assert not StorageWriter.validate_checkpoint_id("s3://bucket/model")
    assert not StorageWriter.validate_checkpoint_id(tmp_path / "none" / "new")


@pytest.mark.parametrize("options", [{"name": "a/b"}, {"max_shard_size": "much"}])
def test_bad_options(tmp_path, options):
    """Raise at once."""
    with pytest.raises(ValueError, match=r"a/b|much"):
        StorageWriter(tmp_path, **options)


def test_rights_of_the_old_model(tmp_path):
    """The new files have them, also if they forbid writing."""
    save(STATE, tmp_path)
    os.chmod(tmp_path / "model.safetensors", 0o440)
    save({"w": torch.ones(3)}, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o440


PEAK = """
    import warnings
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.dcp import StorageWriter
    from support import memory
    warnings.simplefilter("ignore")
    state = {f"{i}": torch.ones(32 << 20, dtype=torch.uint8) for i in range(3)}
    state["turned"] = torch.ones(1 << 15, 1 << 11, dtype=torch.bfloat16).t()
    dcp.save({"first": torch.ones(3)}, storage_writer=StorageWriter(sys.argv[1]))
    writer = StorageWriter(sys.argv[1])
    print(memory.peak_growth(lambda: dcp.save(state, storage_writer=writer)))
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="the system does not reset the peak")
def test_peak_memory(tmp_path):
    """Saving 224 MiB, of which 128 in one tensor that is not contiguous, takes 64 at most."""
    assert int(children.run(PEAK, tmp_path / "a")) < 64 << 20


FULL = """
    import os, warnings
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.dcp import StorageWriter
    from safetensors.torch import load_file
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    dcp.save({"w": torch.ones(1 << 20)}, storage_writer=StorageWriter(folder))
    try:
        dcp.save({"w": torch.ones(8 << 20)}, storage_writer=StorageWriter(folder))
    except BaseException as error:
        failure = error.failures[0][0]
        print(type(failure).__mro__[-4:], failure)
    assert os.listdir(folder) == ["model.safetensors"]
    assert load_file(os.path.join(folder, "model.safetensors"))["w"].numel() == 1 << 20
    dcp.save({"w": torch.ones(2 << 20)}, storage_writer=StorageWriter(folder))
    assert load_file(os.path.join(folder, "model.safetensors"))["w"].numel() == 2 << 20
"""


def test_full_disk(tmp_path):
    """An OSError; the old model stays, nothing else, and a smaller save succeeds."""
    prefix = mounts.prefix('mount -t tmpfs -o size=16m tmpfs "$0"', tmp_path)
    printed = children.run(FULL, tmp_path, prefix=prefix)
    assert "OSError" in printed
    assert "No space left on device" in printed
