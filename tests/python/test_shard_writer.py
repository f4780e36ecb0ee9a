"""safe_create with max_shard_size: the files, and when they are completed."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from safetensors import SafetensorError, safe_create, safe_open
from safetensors import numpy as stn
from support import model_saves
from support.threads import together

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
    ("written", "text"),
    [
        ("", "3 of 4 tensors were not written: `a`, `b`, `c`"),
        ("ab", "1 of 4 tensors was not written: `c`"),
    ],
)
def test_tensors_that_are_missing(tmp_path, written, text):
    writer = create(tmp_path)
    for name in written:
        writer.write(name, MODEL[name])
    with pytest.raises(SafetensorError, match=f": {text}$") as raised:
        writer.close()
    assert raised.value.code == "missing_tensors"
    writer.abort()
    assert os.listdir(tmp_path) == []


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


@pytest.mark.parametrize("has_specs", [False, True])
def test_an_aborted_model_is_freed(tmp_path, has_specs):
    """Its files' writers, in which garbage collection finds nothing, do not keep it."""
    specs = {"specs": None} if not has_specs else {}
    with create(tmp_path / "m", **specs, progress=lambda *_: None) as writer:
        model = weakref.ref(writer._inner.writer)
        writer.write("b", MODEL["b"])
        writer.abort()
    del writer
    gc.collect()
    assert model() is None


def test_a_file_that_another_thread_is_writing(tmp_path):
    """It is completed by the call that ends last, and calls do not wait for each other."""
    specs = {"a": ("U8", [100]), "b": ("U8", [1 << 20])}
    begun, go_on = threading.Event(), threading.Event()

    def progress(done, total):
        begun.set()
        assert go_on.wait(60)

    writer = safe_create(tmp_path / "m", specs, max_shard_size="2MB", progress=progress)
    long = threading.Thread(target=lambda: writer.write("b", bytes([1]) * (1 << 20)))
    short = threading.Thread(target=lambda: writer.write("a", bytes([2]) * 100))
    long.start()
    assert begun.wait(60)
    short.start()
    short.join(5)
    is_waiting = short.is_alive()
    go_on.set()
    short.join()
    long.join()
    writer.close()
    assert not is_waiting
    found = model_saves.load(tmp_path / "m")
    assert found["a"].tolist() == [2] * 100
    assert found["b"].tolist() == [1] * (1 << 20)


def test_without_specs_a_file_waits_for_its_tensors(tmp_path):
    """Threads add tensors, and write them later, in any order."""
    with create(tmp_path / "m", None) as writer:
        shards = writer._inner.writer
        a, b, c = (shards.add(name, "U8", [500]) for name in "abc")
        for count, index in enumerate((c, a, b)):
            assert shards.nbytes_written == 500 * count
            shards.write_bytes(index, None, bytes([index]) * 500)
    found = model_saves.load(tmp_path / "m")
    assert {name: set(array.tolist()) for name, array in found.items()} == {
        "a": {0},
        "b": {1},
        "c": {2},
    }
    assert len(os.listdir(tmp_path / "m")) == 4


def test_threads(tmp_path):
    """Of random writes to several files at once, nothing is lost."""
    specs = {str(i): ("U8", [1 << 20 if i % 3 else 5]) for i in range(40)}
    with safe_create(tmp_path / "m", specs, max_shard_size="4MB") as writer:

        def work(first):
            for i in range(first, 40, 4):
                writer.write(str(i), bytes([i]) * specs[str(i)][1][0])

        together(work, range(4))
    found = model_saves.load(tmp_path / "m")
    assert len(found) == 40
    assert all(set(array.tolist()) == {int(name)} for name, array in found.items())


def test_an_abort_that_fails_hides_no_error(tmp_path, monkeypatch):
    def refuse(self):
        raise OSError(5, "refused")

    def leave():
        with create(tmp_path / "m"):
            monkeypatch.setattr("safetensors._saving.model_files.ModelFiles.abort", refuse)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()


def test_too_many_shards(tmp_path, monkeypatch):
    """Without specs, the tensor that does not fit is refused; the others can be completed."""
    monkeypatch.setattr("safetensors._saving.shard_writer.MAX_SHARDS", 2)
    with create(tmp_path / "m", None) as writer:
        for name in ("a", "b", "c"):
            writer.write(name, MODEL[name])
        with pytest.raises(ValueError, match="2 shards, and tensor `d` would begin another"):
            writer.write("d", np.zeros(900, "u1"))
        writer.write("none", MODEL["none"])
    assert model_saves.same(model_saves.load(tmp_path / "m"), MODEL)
