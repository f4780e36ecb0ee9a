"""safe_create: the bytes that a writer makes, whatever it is given and wherever it writes."""

import gzip
import io
import os
import random
import sys
import threading
import zipfile

import numpy as np
import pytest

from safetensors import SafetensorError, safe_create, safe_open, specs_of
from safetensors import numpy as stn
from safetensors import torch as stt
from support import children
from support.file_builder import Raw

torch = pytest.importorskip("torch", reason="torch is not installed")

TENSORS = {
    "b": torch.randn(100, 30),
    "a": torch.randn(7).to(torch.bfloat16),
    "large": torch.arange(200_000),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "f8": torch.randn(9).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False]),
    "\u00e9\n": torch.arange(5, dtype=torch.int8),
}
WANTED = stt.save(TENSORS, {"format": "pt"})


def write_all(writer, rng):
    """Writes TENSORS in any order and in any form."""
    names = list(TENSORS)
    rng.shuffle(names)
    for name in names:
        tensor = TENSORS[name]
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        form = rng.choice(["whole", "item", "slices", "stream", "bytes", "strided"])
        if form == "item":
            writer[name] = tensor
        elif form == "slices" and tensor.dim() > 0 and len(tensor) > 1:
            cut = rng.randrange(1, len(tensor))
            writer.write_slice(name, slice(cut, None), tensor[cut:])
            writer.write_slice(name, (slice(None, cut), ...), tensor[:cut])
        elif form == "stream":
            with writer.open(name) as stream:
                cut = rng.randrange(len(data) + 1)
                stream.write(data[:cut])
                stream.write(memoryview(data)[cut:])
        elif form == "bytes":
            writer.write(name, data)
        elif form == "strided" and tensor.dim() == 2:
            writer.write(name, tensor.T.contiguous().T)
        else:
            writer.write(name, tensor)
    assert writer.missing == []
    assert writer.nbytes_written == sum(each.nbytes for each in TENSORS.values())


def create(target, **options):
    return safe_create(target, TENSORS, metadata={"format": "pt"}, **options)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_has_the_bytes_of_save_file(tmp_path, seed):
    path = tmp_path / "f"
    with create(path, fsync=seed == 0) as writer:
        write_all(writer, random.Random(seed))
        assert not path.exists()
        assert not writer.closed
    assert writer.closed
    assert path.read_bytes() == WANTED
    assert os.listdir(tmp_path) == ["f"]


def test_upstream_writes_the_same_bytes(tmp_path, upstream):
    arrays = {
        "b": np.arange(12, dtype="f4").reshape(3, 4),
        "a": np.arange(5),
        "c": np.ones(3, "f2"),
    }
    with safe_create(tmp_path / "f", arrays, metadata={"k": "v"}) as writer:
        for name in ("c", "a", "b"):
            writer.write(name, arrays[name])
    dtypes = {"b": "F32", "a": "I64", "c": "F16"}
    tensors = {
        name: Raw(dtypes[name], array.shape, array.tobytes()) for name, array in arrays.items()
    }
    theirs = upstream.run("save", tensors, {"k": "v"}, "np").unwrap()
    assert (tmp_path / "f").read_bytes() == theirs


def _bytes_io(folder, write):
    file = io.BytesIO(b"before" + b"x" * 3)
    file.seek(6)
    write(file)
    return file.getvalue()[6:]


def _file(mode, buffering=-1):
    def make(folder, write):
        (folder / "f").write_bytes(b"before")
        with open(folder / "f", mode, buffering=buffering) as file:
            file.seek(0, os.SEEK_END)
            write(file)
            assert file.tell() == 6 + len(WANTED)
        return (folder / "f").read_bytes()[6:]

    return make


def _descriptor(folder, write):
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    try:
        write(fd)
    finally:
        os.close(fd)
    return (folder / "f").read_bytes()


def _pipe(folder, write):
    reader, writer = os.pipe()
    received = []

    def receive():
        with open(reader, "rb") as file:
            received.append(file.read())

    thread = threading.Thread(target=receive)
    thread.start()
    with open(writer, "wb") as file:
        write(file)
    thread.join()
    return received[0]


def _zip(folder, write):
    with zipfile.ZipFile(folder / "f.zip", "w") as archive, archive.open("m", "w") as member:
        write(member)
    with zipfile.ZipFile(folder / "f.zip") as archive:
        return archive.read("m")


def _gzip(folder, write):
    with gzip.open(folder / "f.gz", "wb", compresslevel=1) as file:
        write(file)
    with gzip.open(folder / "f.gz") as file:
        return file.read()


def _fsspec(folder, write):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with fsspec.open("memory://safe_create", "wb") as file:
        write(file)
    with fsspec.open("memory://safe_create", "rb") as file:
        return file.read()


def _function(folder, write):
    data = bytearray()

    def put(offset, view):
        if len(data) < offset + len(view):
            data.extend(bytes(offset + len(view) - len(data)))
        data[offset : offset + len(view)] = view

    write(put)
    return bytes(data)


def _slow(folder, write):
    """An object that takes at most 1,000 bytes at a time, and says nothing else."""

    class Slow:
        data = b""

        def write(self, view):
            self.data += bytes(view[:1000])
            return len(view[:1000])

    slow = Slow()
    write(slow)
    return slow.data


TARGETS = {
    "BytesIO": _bytes_io,
    "buffered": _file("r+b"),
    "unbuffered": _file("r+b", 0),
    "append": _file("ab"),
    "append unbuffered": _file("ab", 0),
    "descriptor": _descriptor,
    "pipe": _pipe,
    "zip": _zip,
    "gzip": _gzip,
    "fsspec": _fsspec,
    "function": _function,
    "slow": _slow,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(3))
def test_every_target_gets_the_same_bytes(tmp_path, target, seed):
    def write(to):
        with create(to) as writer:
            write_all(writer, random.Random(seed))

    data = TARGETS[target](tmp_path, write)
    assert data[: len(WANTED)] == WANTED
    assert len(data) == len(WANTED)


def test_tensors_of_numpy_and_dlpack(tmp_path):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    arrays = {
        "plain": np.arange(6, dtype="<f4").reshape(2, 3),
        "big-endian": np.arange(6, dtype=">f4"),
        "strided": np.arange(20)[::2],
        "generic": np.float64(3),
        "dlpack": np.arange(3, dtype="i2"),
    }
    with safe_create(tmp_path / "f", arrays) as writer:
        for name, array in arrays.items():
            writer.write(name, Foreign(array) if name == "dlpack" else array)
    loaded = stn.load_file(tmp_path / "f")
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)


def test_without_specs_the_order_is_that_of_the_writes(tmp_path):
    with safe_create(tmp_path / "f", metadata={"k": "v"}) as writer:
        for name, tensor in TENSORS.items():
            writer.write(name, tensor)
        assert writer.specs == specs_of(TENSORS)
    with safe_open(tmp_path / "f", "pt") as f:
        assert f.offset_keys() == list(TENSORS)
        assert f.metadata() == {"k": "v"}
    loaded = stt.load_file(tmp_path / "f")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert (tmp_path / "f").read_bytes()[:8] == (65536 - 8).to_bytes(8, "little")


def test_without_specs_the_header_may_outgrow_its_room(tmp_path):
    with safe_create(tmp_path / "f") as writer:
        for i in range(2000):
            writer.write(f"a tensor with a long name, {i}", torch.full((3,), i))
    loaded = stt.load_file(tmp_path / "f")
    assert len(loaded) == 2000
    assert all(int(tensor[2]) == int(name.split()[-1]) for name, tensor in loaded.items())


@pytest.mark.parametrize("options", [{}, {"max_shard_size": 1 << 30}])
def test_without_specs_what_is_refused_is_not_added(tmp_path, options):
    """Neither its name is taken, nor is it missing."""
    stn.save_file({"b": np.ones(3), "a": np.ones(4)}, tmp_path / "from")
    dense = torch.ones(2, 3)
    with (
        safe_open(tmp_path / "from", "np") as file,
        safe_create(tmp_path / "f", **options) as writer,
    ):
        with pytest.raises(ValueError, match="sparse"):
            writer.write("a", dense.to_sparse())
        for bad in (b"123", memoryview(b"123"), 3):
            with pytest.raises(SafetensorError, match="`a` needs a dtype and a shape"):
                writer.write("a", bad)
        assert writer.specs == {}
        writer.write("a", dense)
        for again in (lambda: writer.write("a", dense), lambda: writer.copy(file)):
            with pytest.raises(SafetensorError, match="tensor `a` was added before") as raised:
                again()
            assert (raised.value.code, raised.value.subject) == ("written_twice", "a")
        assert writer.missing == []
        writer.copy(file, "b")
    found = stt.load_files(tmp_path / "f")
    assert torch.equal(found["a"], dense)
    assert found["b"].tolist() == [1, 1, 1]


def test_copies(tmp_path):
    stt.save_file(TENSORS, tmp_path / "from")
    with safe_open(tmp_path / "from", "pt") as f:
        with create(tmp_path / "all") as writer:
            writer.write("b", TENSORS["b"])
            writer.copy(f)
        assert (tmp_path / "all").read_bytes() == WANTED
        with safe_create(tmp_path / "one", {"new": ("I64", (200_000,))}) as writer:
            writer.copy(f, "large", to="new")
        with safe_create(tmp_path / "none") as writer:
            writer.copy(f, "large")
            writer.copy(f, "b", to="c")
        bad = safe_create(tmp_path / "bad", {"b": ("F32", (3000,))})
        with pytest.raises(
            SafetensorError, match=r"F32 \[3000\] in the specs, but F32 \[100, 30\] in"
        ):
            bad.copy(f)
    assert torch.equal(stt.load_file(tmp_path / "one")["new"], TENSORS["large"])
    loaded = stt.load_file(tmp_path / "none")
    assert torch.equal(loaded["large"], TENSORS["large"])
    assert torch.equal(loaded["c"], TENSORS["b"])
    assert not (tmp_path / "bad").exists()


def test_specs_of():
    from torch import nn

    with torch.device("meta"):
        module = nn.Linear(3, 4)
    assert specs_of(module) == {"weight": ("F32", (4, 3)), "bias": ("F32", (4,))}
    given = {"a": ("float32", [2]), "b": (torch.float16, ()), "c": (np.dtype("int8"), (1,))}
    assert specs_of(given) == {"a": ("F32", (2,)), "b": ("F16", ()), "c": ("I8", (1,))}
    assert specs_of(TENSORS)["a"].dtype == "BF16"
    shapes = [(2, 3), (2, 3), (3, 2), (), (), (2, 3)]
    alike = specs_of({str(i): torch.zeros(shape) for i, shape in enumerate(shapes)})
    assert list(alike) == [str(i) for i in range(len(shapes))]
    assert [spec.shape for spec in alike.values()] == shapes
    assert {type(spec) for spec in alike.values()} == {type(specs_of(given)["a"])}
    with pytest.raises(SafetensorError, match="tensor `a`: the format has no dtype complex128"):
        specs_of({"a": np.zeros(3, "c16")})
    shared = torch.zeros(10)
    with pytest.raises(RuntimeError, match="Some tensors share memory"):
        specs_of({"a": shared, "b": shared[:5]})


def test_specs_of_files(tmp_path, model, tensors):
    """Of an open file, a path, and a folder of shards."""
    stt.save_file(TENSORS, tmp_path / "f")
    with safe_open(tmp_path / "f", "pt") as f:
        assert specs_of(f) == specs_of(TENSORS)
    assert specs_of(str(tmp_path / "f")) == specs_of(TENSORS)
    assert specs_of(model) == specs_of(tensors)


WITHOUT_TORCH = """
    import numpy as np
    from safetensors import safe_create, update_file

    path, arrays = sys.argv[1], {"a": np.arange(9)}
    for specs in (None, arrays):
        with safe_create(path, specs) as writer:
            writer.write("a", arrays["a"])
    update_file(path, {"a": arrays["a"] + 1})
    update_file(path, {"a": arrays["a"] + 2}, in_place=True, shared=True)
    print("torch" in sys.modules)
"""


def test_arrays_are_written_without_torch(tmp_path):
    """Importing it takes a second and more."""
    assert children.run(WITHOUT_TORCH, tmp_path / "m.safetensors") == "False\n"


def test_importing_the_package_does_not_import_the_writer():
    from support import children

    script = """
        import sys, safetensors
        assert "safetensors._saving.writer" not in sys.modules
        assert {"safe_create", "SafeWriter", "specs_of"} <= set(dir(safetensors))
        safetensors.safe_create
        assert "torch" not in sys.modules and "numpy" not in sys.modules
    """
    children.run(script)
    assert "safetensors._saving.writer" in sys.modules


@pytest.mark.parametrize("value", [[1, 2], 3, "x" * 8, None])
def test_values_that_are_no_tensors(tmp_path, value):
    with safe_create(tmp_path / "m", {"a": torch.ones(2)}) as writer:
        with pytest.raises(TypeError, match=rf"tensor `a` is a {type(value).__name__}, which"):
            writer["a"] = value
        writer["a"] = b"\0" * 8


def test_repr(tmp_path):
    with safe_create(tmp_path / "m", {"a": torch.ones(300), "b": torch.ones(1)}) as writer:
        writer["a"] = torch.ones(300)
        assert repr(writer) == "<SafeWriter of 2 tensors, 1,200 bytes written, open>"
        writer["b"] = torch.ones(1)
    assert repr(writer) == "<SafeWriter of 2 tensors, 1,204 bytes written, closed>"


def test_a_closed_writer_needs_nothing_when_the_interpreter_ends(tmp_path, monkeypatch):
    """Interpreters and compilers clear modules first: Nuitka all of them."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    writer = safe_create(tmp_path / "f", {"a": ("F32", [0])})
    writer.close()
    monkeypatch.setattr("safetensors._saving.writer_state.refuse_own_call", None)
    del writer
    assert not seen
