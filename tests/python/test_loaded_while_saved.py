"""A model that is saved while another process opens it: an error, never shards of two models."""

import contextlib

import numpy as np
import pytest
import torch

from safetensors import SafetensorError, _open_shards, delta, specs_of
from safetensors import numpy as stn
from safetensors import torch as stt
from safetensors._cli import main as cli
from safetensors._cli import model as cli_model

INDEX = "model.safetensors.index.json"


def arrays_of(value, count=4):
    return {f"w{i}": np.full(1000, value, np.float32) for i in range(count)}


def save(folder, value, count=4):
    """Saves a model of shards with two tensors each."""
    stn.save_files(arrays_of(value, count), folder, max_shard_size=8000, metadata={"format": "pt"})


@contextlib.contextmanager
def saved_at(monkeypatch, module, name, number, work):
    """Calls `work` before the call of this number of what opens a file."""
    real = getattr(module, name)
    calls = []

    def opening(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            work()
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, opening)
        yield
    assert len(calls) >= number


def into(path):
    tensors = {name: torch.zeros(1000) for name in arrays_of(0)}
    stt.load_into(tensors, path)
    return tensors


LOADS = {
    "mmap": stt.load_files,
    "pread": lambda path: stt.load_files(path, backend="pread"),
    "auto": lambda path: stt.load_files(path, backend="auto"),
    "stream": lambda path: dict(stt.stream_files(path)),
    "into": into,
    "specs": specs_of,
    "diff": lambda path: delta.diff(path, arrays_of(3), path.parent / "p").close(),
}


def refused(path, load):
    with pytest.raises(SafetensorError) as raised:
        load(path)
    folder = path if path.suffix != ".json" else path.parent
    assert raised.value.code == "file_changed"
    assert raised.value.path == str(folder / INDEX)
    assert str(raised.value).count("the index was replaced") == 1


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("given", ["", INDEX], ids=["folder", "index"])
def test_a_save_between_two_shards(tmp_path, monkeypatch, load, given):
    folder = tmp_path / "m"
    save(folder, 1)
    with saved_at(monkeypatch, _open_shards, "_open_file", 2, lambda: save(folder, 2)):
        refused(folder / given, load)
    if load is not LOADS["diff"]:
        load(folder / given)  # nothing is left of it


@pytest.mark.parametrize("count", [2, 6])
def test_a_save_of_other_files(tmp_path, monkeypatch, count):
    """The second shard is missing, which is no fault of the model."""
    save(tmp_path, 1)
    with saved_at(monkeypatch, _open_shards, "_open_file", 2, lambda: save(tmp_path, 2, count)):
        refused(tmp_path, stt.load_files)
    assert len(stt.load_files(tmp_path)) == count


def test_a_save_after_the_last_shard(tmp_path):
    """All shards are those of the old model, and stay so."""
    save(tmp_path, 1)
    loaded = stt.load_files(tmp_path)
    save(tmp_path, 2)
    assert {float(array[0]) for array in loaded.values()} == {1}
    assert {float(array[0]) for array in stt.load_files(tmp_path).values()} == {2}


@pytest.mark.parametrize("command", ["merge", "convert", "shard"])
def test_commands(tmp_path, monkeypatch, capsys, command):
    folder, out = tmp_path / "m", tmp_path / ("o" if command == "shard" else "o.safetensors")
    save(folder, 1)
    arguments = [command, str(folder), str(out)]
    if command == "shard":
        arguments += ["--max-shard-size", "8KB"]
    with saved_at(monkeypatch, cli_model.Model, "_opened", 2, lambda: save(folder, 2)):
        assert cli.main(arguments) != 0
    assert "the index was replaced" in capsys.readouterr().err
    assert not out.exists()
    assert cli.main(arguments) == 0
