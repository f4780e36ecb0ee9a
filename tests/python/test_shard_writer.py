"""safe_create with max_shard_size: the files, and when they are completed."""

import os

import numpy as np
import pytest

from safetensors import SafetensorError, safe_create, safe_open
from safetensors import numpy as stn
from support import model_saves

MODEL = {
    "a": np.full(100, 1, "f4"),
    "none": np.empty((0, 3), "f4"),
    "b": np.full(100, 2, "f4"),
    "c": np.full(100, 3, "f4"),
}
FILES = [
    "model-00001-of-00002.safetensors",  # "a", "none" and "b"
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
]


@pytest.fixture
def source(tmp_path):
    """An open file with MODEL."""
    stn.save_file(MODEL, tmp_path / "source")
    with safe_open(tmp_path / "source", "np") as file:
        yield file


def create(folder, specs=MODEL, **options):
    return safe_create(folder, specs, max_shard_size=800, **options)


@pytest.mark.parametrize("form", ["write", "bytes", "slice", "stream", "copy", "copy all"])
def test_an_empty_tensor_of_a_complete_file(tmp_path, source, form):
    """It is written like any other, and the file stays as it is."""
    with create(tmp_path / "m") as writer:
        writer.write("a", MODEL["a"])
        writer.write("b", MODEL["b"])
        assert writer.missing == ["c"]
        before = os.listdir(tmp_path / "m")
        if form == "write":
            writer.write("none", MODEL["none"])
        elif form == "bytes":
            writer.write("none", b"")
        elif form == "slice":
            writer.write_slice("none", slice(0, 0), MODEL["none"])
        elif form == "stream":
            writer.open("none").close()
        elif form == "copy":
            writer.copy(source, "none")
        else:
            writer._copy(source, [("none", "none"), ("c", "c")])
        if form != "copy all":
            assert os.listdir(tmp_path / "m") == before
            writer.write("c", MODEL["c"])
    assert sorted(os.listdir(tmp_path / "m")) == FILES
    assert model_saves.same(model_saves.load(tmp_path / "m"), MODEL)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda w, f: w.write("none", MODEL["c"]), r"`none` is F32 \[0, 3\] in the specs, but F32"),
        (lambda w, f: w.write("none", b"1234"), "tensor `none` takes 0 bytes, 4 are given"),
        (lambda w, f: w.write("a", MODEL["a"]), "tensor `a` was written before"),
        (lambda w, f: w.copy(f, "a"), "tensor `a` was written before"),
        (lambda w, f: w.copy(f, "c", to="none"), r"`none` is F32 \[0, 3\] in the specs, but F32"),
    ],
)
def test_mistakes_with_a_complete_file(tmp_path, source, mistake, message):
    with create(tmp_path / "m") as writer:
        writer.write("a", MODEL["a"])
        writer.write("b", MODEL["b"])
        with pytest.raises(SafetensorError, match=message):
            mistake(writer, source)
        writer.write("c", MODEL["c"])
    assert model_saves.same(model_saves.load(tmp_path / "m"), MODEL)


def test_progress(tmp_path):
    """Bytes of all files, ascending."""
    calls = []
    with create(tmp_path / "m", progress=lambda *call: calls.append(call)) as writer:
        for name, array in MODEL.items():
            writer.write(name, array)
    assert calls == sorted(calls)
    total = sum((tmp_path / "m" / file).stat().st_size for file in FILES[:2])
    assert calls[-1] == (total, total)
