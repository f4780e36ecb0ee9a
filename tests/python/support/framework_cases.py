"""Tests for all frameworks whose tensors are made from NumPy arrays.

The test file of a framework derives its class from Cases and sets its kit.
"""

import gc
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import safetensors.numpy
from safetensors import SafetensorError, safe_open
from support import children, file_builder
from support.dtype_table import SAVEABLE, numpy_dtype
from support.file_builder import Raw, raw

pytest.importorskip("ml_dtypes")

SHAPE = (2, 4)
F6 = ["F6_E2M3", "F6_E3M2"]
# What upstream can read and save in every framework.
PLAIN = ["F32", "F16", "I32", "I16", "I8", "U8", "BOOL"]
INDICES = [
    0, -1, (0, 1), (3, -2), slice(None), slice(1, 3), slice(-3, -1), slice(-100, 100),
    slice(2, 2), (slice(None), 2), (slice(None), slice(0, 5, 2)), (slice(1, 3), slice(4, 1)),
    ..., (..., 1), (1, ...), None, slice(None, None, -1), (slice(None), slice(None, None, -2)),
    [0, 2], [],
]  # fmt: skip
WAYS = ["get_tensor", "get_tensors", "[:]", "[...]", "load_file", "load"]
every_type = pytest.mark.parametrize("code", SAVEABLE)
both_backends = pytest.mark.parametrize("backend", ["mmap", "pread"])


class Kit(NamedTuple):
    """What differs between frameworks."""

    word: str  # safe_open's
    module: Any
    label: str  # in error texts
    types: dict  # from the types of files to the framework's names; what it has not is missing
    describe: Callable  # from a tensor to (its type's name, shape, bytes)
    changed: dict  # types it turns into others, to NumPy's name of the other


def tensor_of(code):
    """Returns the tensor of a dtype that the tests read; none of its values is NaN."""
    if code == "F4":
        return Raw("F4", SHAPE, bytes([0x21, 0x43, 0x65, 0xF7]))
    return raw(code, SHAPE)


def array_of(tensor):
    """Returns a Raw as a NumPy array of its dtype; an F4 element takes a byte."""
    data = tensor.data
    if tensor.dtype == "F4":
        data = bytes(half for byte in data for half in (byte & 15, byte >> 4))
    array = np.frombuffer(bytearray(data), np.uint8)
    return array.view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)


def read(kit, path, way, backend):
    """Returns the tensor `a` of a file, read in one of WAYS."""
    if way == "load":
        return kit.module.load(path.read_bytes())["a"]
    if way == "load_file":
        return kit.module.load_file(path, backend=backend)["a"]
    with safe_open(path, kit.word, backend=backend) as handle:
        if way == "get_tensor":
            return handle.get_tensor("a")
        if way == "get_tensors":
            return handle.get_tensors()["a"]
        return handle.get_slice("a")[slice(None) if way == "[:]" else ...]


def names_file(error, begin, path):
    """Checks that an error about the dtype of `a` begins so, and names the tensor and the file."""
    assert str(error).startswith(begin)
    assert str(error).endswith("tensor `a`" + (f" (in {path})" if path else ""))
    fields = error.code, error.path, error.subject
    assert fields == ("unsupported_dtype", str(path) if path else None, "a")


class Cases:
    """The tests. A deriving class sets `kit`."""

    kit: Kit

    def expected(self, code, array):
        """Returns what `kit.describe` returns for a tensor with an array's values."""
        if code in self.kit.changed:
            other = np.dtype(self.kit.changed[code])
            # A type it lacks is handed out as its bytes, another is converted.
            array = array.view(other) if other.itemsize == array.itemsize else array.astype(other)
        return self.kit.types[code], array.shape, array.tobytes()

    @pytest.fixture
    def file_of(self, tmp_path):
        """Returns a function that writes a file with one tensor `a`."""
        return lambda tensor: file_builder.write(tmp_path / "one.safetensors", {"a": tensor})

    @both_backends
    @pytest.mark.parametrize("way", WAYS)
    @every_type
    def test_read(self, file_of, code, way, backend):
        """Every call that returns a whole tensor reads every dtype or raises the expected error."""
        kit, tensor = self.kit, tensor_of(code)
        path = file_of(tensor)
        if code not in kit.types:
            with pytest.raises(SafetensorError) as caught:
                read(kit, path, way, backend)
            text = f"Dtype not understood: {code}: {kit.label} has no such type: tensor `a`"
            names_file(caught.value, text, None if way == "load" else path)
            return
        found = kit.describe(read(kit, path, way, backend))
        assert found == self.expected(code, array_of(tensor))

    @every_type
    def test_save(self, file_of, tmp_path, code):
        """Tensors that were read are saved unchanged."""
        kit = self.kit
        if code not in kit.types or code in kit.changed:
            pytest.skip(f"{kit.label} has no {code}")
        path = file_of(tensor_of(code))
        tensors, saved = kit.module.load_file(path), tmp_path / "saved.safetensors"
        content = kit.module.save(tensors)
        told: list[tuple[int, int]] = []
        kit.module.save_file(
            tensors, saved, fsync=True, progress=lambda *numbers: told.append(numbers)
        )
        assert told[-1] == (saved.stat().st_size, saved.stat().st_size)
        assert file_builder.split(content)[1] == tensor_of(code).data
        assert saved.read_bytes() == content
        assert kit.describe(kit.module.load(content)["a"]) == kit.describe(tensors["a"])

    @pytest.mark.parametrize("code", F6)
    def test_six_bits(self, file_of, code):
        """No framework has 6-bit types; a file with one opens."""
        path = file_of(raw(code, SHAPE))
        with safe_open(path, self.kit.word) as handle:
            assert handle.get_slice("a").get_dtype() == code
            for call in (handle.get_tensor, lambda name: handle.get_slice(name)[:]):
                with pytest.raises(SafetensorError) as caught:
                    call("a")
                names_file(caught.value, f"Dtype not understood: {code}: {self.kit.label}", path)
        with pytest.raises(SafetensorError) as caught:
            self.kit.module.load(path.read_bytes())
        names_file(caught.value, f"Dtype not understood: {code}", None)

    @both_backends
    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (0, 2), (1,), (1, 2, 1, 3)], ids=str)
    @pytest.mark.parametrize("code", ["F32", "BF16", "U8"])
    def test_shapes(self, file_of, code, shape, backend):
        """Scalars and empty tensors are read and saved."""
        kit, tensor = self.kit, raw(code, shape)
        loaded = kit.module.load_file(file_of(tensor), backend=backend)
        expected = self.expected(code, array_of(tensor))
        assert kit.describe(loaded["a"]) == expected
        assert kit.describe(kit.module.load(kit.module.save(loaded))["a"]) == expected

    @both_backends
    @pytest.mark.parametrize("index", INDICES, ids=repr)
    @pytest.mark.parametrize("code", ["F32", "BF16"])
    def test_slices(self, file_of, code, index, backend):
        """Slices equal NumPy's."""
        kit, tensor = self.kit, raw(code, (4, 6))
        with safe_open(file_of(tensor), kit.word, backend=backend) as handle:
            found = handle.get_slice("a")[index]
        assert kit.describe(found) == self.expected(code, np.asarray(array_of(tensor)[index]))

    @both_backends
    @pytest.mark.parametrize("shape", [(4, 6), (5,), (0, 2)])
    @pytest.mark.parametrize("code", ["F32", "BF16"])
    def test_rows(self, file_of, code, shape, backend):
        """Iterating yields what integers select."""
        with safe_open(file_of(raw(code, shape)), self.kit.word, backend=backend) as handle:
            part = handle.get_slice("a")
            assert len(part) == shape[0]
            wanted = [self.kit.describe(part[row]) for row in range(shape[0])]
            assert [self.kit.describe(row) for row in part] == wanted

    @both_backends
    def test_index_out_of_range(self, file_of, backend):
        """The error is an IndexError too."""
        path = file_of(tensor_of("F32"))
        with safe_open(path, self.kit.word, backend=backend) as handle:
            part = handle.get_slice("a")
            with pytest.raises(SafetensorError, match="out of bounds") as caught:
                part[7]
            assert isinstance(caught.value, IndexError)

    def test_names_and_order(self, tmp_path):
        """keys() is sorted by name, get_tensors() by offset."""
        tensors = {"z": raw("F32", (2,)), "a": raw("U8", (3,)), "ключ": raw("I32", ())}
        path = file_builder.write(tmp_path / "three.safetensors", tensors)
        with safe_open(path, self.kit.word) as handle:
            assert handle.keys() == sorted(tensors)
            assert list(handle.get_tensors()) == list(tensors)
        assert list(self.kit.module.load_file(path)) == list(tensors)
        assert set(self.kit.module.load(path.read_bytes())) == set(tensors)

    @pytest.mark.parametrize("metadata", [None, {}, {"format": "x", "é": '"\\\n'}], ids=repr)
    def test_metadata(self, file_of, tmp_path, metadata):
        """Metadata given by position or keyword is saved, and the handle returns it."""
        kit, path = self.kit, tmp_path / "meta.safetensors"
        tensors = kit.module.load_file(file_of(tensor_of("F32")))
        kit.module.save_file(tensors, path, metadata)
        with safe_open(path, kit.word) as handle:
            assert handle.metadata() == metadata
        assert kit.module.save(tensors, metadata=metadata) == path.read_bytes()

    def test_interchange_with_numpy(self):
        """safetensors.numpy reads what this module saved, and vice versa."""
        kit = self.kit
        codes = [code for code in kit.types if code not in kit.changed]
        arrays = {code: array_of(tensor_of(code)) for code in codes}
        content = safetensors.numpy.save(arrays)
        tensors = kit.module.load(content)
        assert kit.module.save(tensors) == content
        for code, array in safetensors.numpy.load(kit.module.save(tensors)).items():
            assert array.dtype == arrays[code].dtype
            assert array.tobytes() == arrays[code].tobytes()

    def test_upstream_reads_and_writes_the_same(self, upstream, tmp_path):
        """Both packages save the same bytes, and each loads the other's files."""
        kit, path = self.kit, tmp_path / "plain.safetensors"
        file_builder.write(path, {code: tensor_of(code) for code in PLAIN})
        content = kit.module.save(kit.module.load_file(path), {"a": "b"})
        path.write_bytes(content)
        name = kit.module.__name__
        imported = "(lambda m: {})(__import__('importlib').import_module(name))"
        for call in ("m.load_file(path)", "m.load(open(path, 'rb').read())"):
            source = imported.format(f"m.save({call}, {{'a': 'b'}})")
            assert upstream.evaluate(source, name=name, path=str(path)).unwrap() == content

    @both_backends
    def test_a_tensor_outlives_its_file(self, file_of, backend):
        """The handle may be closed and the file removed."""
        kit, tensor = self.kit, raw("F32", (512, 64))
        path = file_of(tensor)
        handle = safe_open(path, kit.word, backend=backend)
        whole, part = handle.get_tensor("a"), handle.get_slice("a")[7:9]
        handle.close()
        del handle
        loaded = kit.module.load_file(path, backend=backend)["a"]
        path.unlink()
        gc.collect()
        filler = [bytes([7]) * 131072 for _ in range(64)]
        array = array_of(tensor)
        assert kit.describe(whole) == kit.describe(loaded) == self.expected("F32", array)
        assert kit.describe(part) == self.expected("F32", array[7:9])
        del filler

    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_the_last_tensor_releases_the_file(self, file_of):
        """The file is unmapped once handle and tensors are destroyed."""
        kit, path = self.kit, file_of(raw("F32", (512, 64)))

        def is_mapped():
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                return any(line.rstrip().endswith(str(path)) for line in maps)

        handle = safe_open(path, kit.word)
        tensors = [
            handle.get_tensor("a"),
            handle.get_slice("a")[3:5],
            *handle.get_tensors().values(),
        ]
        assert is_mapped()
        del handle, tensors
        gc.collect()
        assert not is_mapped()

    def test_saving_over_the_file_that_was_loaded(self, file_of):
        """Tensors loaded from a file can be saved over it."""
        kit, tensor = self.kit, raw("F32", (512, 64))
        path = file_of(tensor)
        loaded = kit.module.load_file(path)
        kit.module.save_file(loaded, path)
        again = kit.module.load_file(path)
        expected = self.expected("F32", array_of(tensor))
        assert kit.describe(loaded["a"]) == kit.describe(again["a"]) == expected

    def test_errors(self, file_of, tmp_path):
        """Errors of safe_open propagate."""
        kit, path = self.kit, file_of(tensor_of("F32"))
        with safe_open(path, kit.word) as handle, pytest.raises(SafetensorError, match="nope"):
            handle.get_tensor("nope")
        with pytest.raises(FileNotFoundError):
            kit.module.load_file(tmp_path / "nope")
        with pytest.raises(SafetensorError, match="backend"):
            kit.module.load_file(path, backend="x")
        with pytest.raises(SafetensorError, match="header too small"):
            kit.module.load(b"xx")
        with pytest.raises(TypeError):
            kit.module.save_file({}, tmp_path / "new", None, True)  # fsync is keyword-only

    def test_the_framework_is_imported_when_it_is_needed(self, file_of):
        """The first tensor imports it; upstream imports only Paddle when it opens a file."""
        root = {"tf": "tensorflow", "flax": "jax"}.get(self.kit.word, self.kit.word)
        children.run(
            """
            import warnings
            warnings.simplefilter("ignore")
            from safetensors import safe_open
            path, word, root = sys.argv[1:]
            handle = safe_open(path, word)
            handle.keys(), handle.get_slice("a").get_shape()
            assert (root in sys.modules) == (word == "paddle")
            handle.get_tensor("a")
            assert root in sys.modules
            """,
            file_of(tensor_of("F32")), self.kit.word, root,
        )  # fmt: skip

    def test_names_that_programs_import(self):
        """The module re-exports other modules of the package."""
        module = importlib.import_module(self.kit.module.__name__)
        assert module.safe_open is safe_open
        assert module.numpy is safetensors.numpy
