"""`progress` of every function that saves to a file."""

import inspect

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import TensorSpec, serialize_file

ARRAY = np.arange(10_000_000, dtype="f4")


def save_numpy(path, **options):
    for_numpy.save_file({"a": ARRAY}, path, **options)


def save_torch(path, **options):
    for_torch.save_file({"a": torch.from_numpy(ARRAY)}, path, **options)


def save_prepared_torch(path, **options):
    """Saves a lazily negated tensor, whose memory does not hold its values."""
    tensor = torch.from_numpy(-ARRAY)
    for_torch.save_file({"a": torch._neg_view(tensor)}, path, **options)


def save_model(path, **options):
    model = torch.nn.Module()
    model.register_buffer("a", torch.from_numpy(ARRAY))
    for_torch.save_model(model, path, **options)


def save_specs(path, **options):
    spec = TensorSpec(
        dtype="float32", shape=ARRAY.shape, data_ptr=ARRAY.ctypes.data, data_len=ARRAY.nbytes
    )
    serialize_file({"a": spec}, path, **options)


every_way = pytest.mark.parametrize(
    "save", [save_numpy, save_torch, save_prepared_torch, save_model, save_specs]
)


@every_way
def test_bytes_are_counted_as_they_are_written(tmp_path, save):
    told = []
    save(tmp_path / "one", progress=lambda *numbers: told.append(numbers))
    size = (tmp_path / "one").stat().st_size
    assert len(told) > 2
    assert told == sorted(set(told))
    assert told[0][0] > 0
    assert {total for _, total in told} == {size}
    assert told[-1] == (size, size)
    assert (for_numpy.load_file(tmp_path / "one")["a"] == ARRAY).all()
    save(tmp_path / "one", progress=None)


@every_way
@pytest.mark.parametrize("kind", [KeyError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["first", "last"])
def test_an_exception_stops_the_save(tmp_path, save, kind, when):
    (tmp_path / "one").write_bytes(b"old")

    def stop(done, total):
        if when == "first" or done == total:
            raise kind("stopped")

    for name in ("one", "new"):
        with pytest.raises(kind) as caught:
            save(tmp_path / name, progress=stop)
        assert caught.value.args == ("stopped",)
    assert (tmp_path / "one").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


@every_way
def test_progress_must_be_callable(tmp_path, save):
    with pytest.raises(TypeError):
        save(tmp_path / "one", progress=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function", [for_torch.save_file, for_torch.save_model, for_numpy.save_file, serialize_file]
)
def test_progress_is_a_keyword_only_argument(function):
    progress = inspect.signature(function).parameters["progress"]
    assert progress.kind is inspect.Parameter.KEYWORD_ONLY
    assert progress.default is None
