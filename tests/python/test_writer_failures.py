"""safe_create: mistakes, targets that fail, interrupts. Nothing is lost or left behind."""

import io
import os
import signal
import threading
import time

import numpy as np
import pytest

from safetensors import SafetensorError, SafeWriter, safe_create
from safetensors import numpy as stn
from support import children, memory

SPECS = {"a": ("F32", (4,)), "b": ("U8", (1000,))}
A = np.arange(4, dtype="f4")
B = np.arange(1000, dtype="u1")


@pytest.fixture
def path(tmp_path):
    """An existing file, which must survive each test."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    yield path
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


MISTAKES = [
    (lambda w: w.write("c", A), "the specs have no tensor `c`"),
    (lambda w: w.write("a", A.astype("f8")), r"`a` is F32 \[4\] in the specs, but F64 \[4\] was"),
    (lambda w: w.write("a", A[:3]), r"`a` is F32 \[4\] in the specs, but F32 \[3\] was given"),
    (lambda w: w.write("a", b"123"), "tensor `a` takes 16 bytes, 3 are given"),
    (lambda w: w.write_slice("a", slice(0, 2), A), r"the part of tensor `a` is F32 \[2\], but F32"),
    (lambda w: w.write_slice("a", 9, A[0]), "out of bounds"),
    (lambda w: [w.write("a", A), w.write("a", A)], "tensor `a` was written before"),
    (lambda w: w.open("c"), "the specs have no tensor `c`"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_a_mistake_is_named_and_the_writer_goes_on(tmp_path, mistake, message):
    writer = safe_create(tmp_path / "f", SPECS)
    with pytest.raises(SafetensorError, match=message):
        mistake(writer)
    for name, array in (("a", A), ("b", B)):
        if name in writer.missing:
            writer.write(name, array)
    writer.close()
    writer.close()
    loaded = stn.load_file(tmp_path / "f")
    assert np.array_equal(loaded["a"], A)
    assert np.array_equal(loaded["b"], B)


def test_missing_tensors(path):
    writer = safe_create(path, SPECS)
    writer.write("a", A)
    with pytest.raises(SafetensorError, match="1 of 2 tensors was not written: `b`") as raised:
        writer.close()
    assert raised.value.code == "missing_tensors"
    assert raised.value.path == str(path)
    assert raised.value.subject == "b"
    assert writer.missing == ["b"]
    writer.abort()
    with pytest.raises(SafetensorError, match="the writer is closed"):
        writer.write("b", B)
    writer = safe_create(path, SPECS)
    with pytest.raises(SafetensorError), writer:
        pass
    assert writer.closed


def test_an_exception_discards(path):
    writer = safe_create(path, SPECS)
    writer.write("a", A)
    writer.write("b", B)
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    assert writer.closed
    safe_create(path, SPECS)  # a writer that nobody keeps


ARGUMENTS = [
    ((io.StringIO(), SPECS), {}, TypeError, "open it in binary mode"),
    ((3.5, SPECS), {}, TypeError, "target is a path, a descriptor, a binary file object"),
    ((io.BytesIO(), None), {}, ValueError, "that needs a path"),
    ((io.BytesIO(), SPECS), {"max_shard_size": 5}, TypeError, "needs the path of a folder"),
    (("x", SPECS), {"layout": "other"}, ValueError, 'not "other"'),
    (("x", SPECS), {"layout": "other", "max_shard_size": 5}, ValueError, 'not "other"'),
    (("x", None), {"metadata": {"a": 1}, "max_shard_size": 5}, TypeError, "metadata"),
    (("x", SPECS), {"metadata": {"a": 1}}, TypeError, "metadata"),
    (("/none/f", SPECS), {}, FileNotFoundError, "No such file or directory"),
    (("x", {"a": ("F32", (-1,))}), {}, OverflowError, "shape"),
    (("x", {"a": ("F31", (1,))}), {}, SafetensorError, "the format has no dtype F31"),
    (("x", {"a": ("F32", (1 << 63, 8))}), {}, SafetensorError, "overflow"),
    (("x", {"a": ["F32", [1]]}), {}, TypeError, r"`a`: expected a tensor or \(dtype, shape\), f"),
    (("x", {"a": ("F32", [1], 2)}), {}, TypeError, "tensor `a`: expected .* found tuple"),
    (("x", {"a": 3}), {}, TypeError, "tensor `a`: expected .* found int"),
    (("x", 3), {}, TypeError, "expected a dict, a module, an open file or a path, found int"),
    (("x", {"__metadata__": ("F32", (1,))}), {}, SafetensorError, "__metadata__"),
]


@pytest.mark.parametrize(("positional", "options", "error", "message"), ARGUMENTS)
def test_arguments(tmp_path, monkeypatch, positional, options, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        safe_create(*positional, **options)
    assert os.listdir(tmp_path) == []


def test_a_writer_that_was_not_made_by_safe_create(capsys):
    """Discarding it does nothing."""
    writer = SafeWriter.__new__(SafeWriter)
    assert writer.closed
    writer.abort()
    writer.close()
    del writer
    assert capsys.readouterr().err == ""


def test_a_target_that_raises():
    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise OSError(28, "full")

    for raising in (Full(), lambda offset, view: 1 / 0):
        with safe_create(raising, {"a": ("U8", (100_000,))}) as writer:
            with pytest.raises((OSError, ZeroDivisionError)):
                writer.write("a", np.zeros(100_000, "u1"))
            with pytest.raises(SafetensorError, match="the writer has failed"):
                writer.close()
            assert writer.closed


def test_a_stream_of_a_tensor_that_fails():
    """Its block is left by the error that the target raised, not by what closing it says."""

    def full(offset, view):
        raise OSError(28, "full")

    def stream(writer):
        with writer.open("a") as out:
            out.write(bytes(900_000))
            out.write(bytes(900_000))

    with safe_create(full, {"a": ("U8", (4 << 20,))}) as writer:
        with pytest.raises(OSError, match="full"):
            stream(writer)
        with pytest.raises(SafetensorError, match="the writer has failed"):
            writer.close()
    writer = safe_create(io.BytesIO(), {"a": ("U8", (4,))})
    with pytest.raises(SafetensorError, match="reaches past its end"), writer.open("a") as out:
        out.write(bytes(5))


def test_the_reader_of_a_pipe_dies():
    reader, writing = os.pipe()
    os.close(reader)
    with open(writing, "wb", buffering=0) as file:
        writer = safe_create(file, {"a": ("U8", (1 << 20,))})
        with pytest.raises(BrokenPipeError):
            writer.write("a", np.zeros(1 << 20, "u1"))


def test_out_of_order_beyond_the_budget():
    data = io.BytesIO()
    data.seekable = lambda: False
    with safe_create(data, SPECS, budget_bytes=500) as writer:
        with pytest.raises(SafetensorError, match="needs tensor `a` next; 0 bytes") as raised:
            writer.write("b", B)
        assert raised.value.code == "out_of_order"
        writer.write("a", A)
        writer.write("b", B)
    assert data.getvalue() == stn.save({"a": A, "b": B})


def test_progress(tmp_path):
    calls = []
    specs = {"a": ("U8", (40 << 20,)), "b": ("U8", (3,))}
    with safe_create(tmp_path / "f", specs, progress=lambda *call: calls.append(call)) as writer:
        writer.write("a", np.zeros(40 << 20, "u1"))
        assert len(calls) >= 3
        writer.write("b", b"123")
    total = (tmp_path / "f").stat().st_size
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert {call[1] for call in calls} == {total}


def test_progress_that_raises(path):
    def stop(done, total):
        raise ZeroDivisionError

    writer = safe_create(path, {"a": ("U8", (1 << 20,))}, progress=stop)
    with pytest.raises(ZeroDivisionError):
        writer.write("a", np.zeros(1 << 20, "u1"))
    writer.abort()


def test_ctrl_c(path):
    """Interrupts a write that waits for the reader of a pipe."""
    reader, writing = os.pipe()
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with open(writing, "wb", buffering=0) as file:
        writer = safe_create(file, {"a": ("U8", (1 << 20,))})
        begin = time.monotonic()
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            writer.write("a", np.zeros(1 << 20, "u1"))
    assert time.monotonic() - begin < 30
    os.close(reader)


@pytest.mark.skipif(not memory.can_measure_peak(), reason="/proc/self/clear_refs is not writable")
@pytest.mark.parametrize("target", ["path", "shards", "pipe", "object"])
def test_memory(tmp_path, target):
    """A writer keeps nothing of what it has written."""
    script = """
        import os, sys, threading
        import numpy as np
        from safetensors import safe_create
        from support import memory
        folder, target = sys.argv[1:]
        specs = {f"{i:02}": ("U8", (8 << 20,)) for i in range(24)}

        def write(to, **options):
            with safe_create(to, specs, **options) as writer:
                for i, name in enumerate(specs):
                    writer.write(name, np.full(8 << 20, i, "u1"))

        class Discard:
            def write(self, data):
                return len(data)

        def run():
            if target == "path":
                write(folder + "/f")
            elif target == "shards":
                write(folder, max_shard_size="40MB")
            elif target == "object":
                write(Discard())
            else:
                reader, writing = os.pipe()
                thread = threading.Thread(target=drain, args=(reader,))
                thread.start()
                write(writing)
                os.close(writing)
                thread.join()

        def drain(reader):
            while os.read(reader, 1 << 20):
                pass

        write(Discard())  # imports what it needs
        print(memory.peak_growth(run))
    """
    assert int(children.run(script, tmp_path, target)) < 8 + 16 << 20
