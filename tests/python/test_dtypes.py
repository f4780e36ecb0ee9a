"""Every dtype of the format, with every way to read and write it."""

import numpy as np
import pytest

import safetensors.numpy
from safetensors import SafetensorError, safe_create, safe_open
from support import children, dtype_table, file_builder, operations
from support.dtype_table import BY_NAME, NUMPY_ML, NUMPY_NATIVE, SAVEABLE, numpy_dtype
from support.file_builder import Raw, raw

SHAPE = (2, 4)
WHOLE_BYTES = [name for name in SAVEABLE if name != "F4"]
F6 = ["F6_E2M3", "F6_E3M2"]
BACKENDS = ["mmap", "pread"]
# Low nibble first: 1 and 2, 3 and 4, ...; as E2M1 values in F4_VALUES.
F4_BYTES = bytes([0x21, 0x43, 0x65, 0xF7])
F4_VALUES = [[0.5, 1.0, 1.5, 2.0], [3.0, 4.0, 6.0, -6.0]]


def tensor_of(name):
    """Returns the tensor of a dtype that the tests use."""
    return Raw("F4", SHAPE, F4_BYTES) if name == "F4" else raw(name, SHAPE)


@pytest.fixture
def torch():
    """Returns PyTorch after importing safetensors.torch."""
    module = pytest.importorskip("torch")
    import safetensors.torch  # noqa: F401

    return module


@pytest.fixture
def ml_dtypes():
    """Returns ml_dtypes, which has dtypes that NumPy lacks."""
    return pytest.importorskip("ml_dtypes")


@pytest.fixture
def file_of(tmp_path):
    """Returns a function that writes a file with one tensor `a`."""
    return lambda tensor: file_builder.write(tmp_path / "dtype.safetensors", {"a": tensor})


def ways(path, framework, backend):
    """Yields the tensor `a` of a file from every call that returns all of it."""
    module = operations.framework_module(framework)
    with safe_open(path, framework, backend=backend) as handle:
        return {
            "get_tensor": handle.get_tensor("a"),
            "get_tensors": handle.get_tensors()["a"],
            "[:]": handle.get_slice("a")[:],
            "[...]": handle.get_slice("a")[...],
            "load_file": module.load_file(path, backend=backend)["a"],
            "load": module.load(path.read_bytes())["a"],
        }


def check_saved(framework, tensors, path, expected):
    """Checks that all ways to save write one tensor `a` as `expected`."""
    module = operations.framework_module(framework)
    content = module.save(tensors)
    module.save_file(tensors, path)
    assert path.read_bytes() == content
    module.save_file_async(tensors, path).result(60)
    assert path.read_bytes() == content
    with safe_create(path, tensors) as writer:
        writer.write("a", tensors["a"])
    assert path.read_bytes() == content
    assert operations.deserialize(content) == {"a": expected}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WHOLE_BYTES)
def test_torch(torch, file_of, name, backend):
    """Every way to read a dtype, slices of rows and columns, and saving."""
    dtype_table.needs_torch_dtype(name)
    tensor = tensor_of(name)
    path = file_of(tensor)
    for way, found in ways(path, "pt", backend).items():
        assert found.dtype == dtype_table.torch_dtype(name), way
        assert tuple(found.shape) == SHAPE, way
        assert operations.torch_bytes(found) == tensor.data, way
    part = safe_open(path, "pt", backend=backend).get_slice("a")
    size = len(tensor.data) // 8
    assert operations.torch_bytes(part[1:]) == tensor.data[4 * size :]
    assert operations.torch_bytes(part[0, 2]) == tensor.data[2 * size : 3 * size]
    columns = b"".join(tensor.data[i * size : (i + 1) * size] for i in (1, 2, 5, 6))
    assert operations.torch_bytes(part[:, 1:3]) == columns
    check_saved("pt", {"a": found}, path.with_name("saved"), tensor)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_f4_has_two_values_to_an_element(torch, file_of, upstream, backend):
    """All calls return what upstream's get_tensor does, also where upstream fails."""
    dtype_table.needs_torch_dtype("F4")
    tensor = tensor_of("F4")
    path = file_of(tensor)
    for way, found in ways(path, "pt", backend).items():
        assert (found.dtype, tuple(found.shape)) == (torch.float4_e2m1fn_x2, (2, 2)), way
        assert operations.torch_bytes(found) == F4_BYTES, way
    handle = safe_open(path, "pt", backend=backend)
    part = handle.get_slice("a")
    assert (part.get_shape(), part.get_dtype()) == ([2, 4], "F4")
    assert handle.get_tensor_meta("a").shape == [2, 4]
    assert operations.torch_bytes(part[1:]) == F4_BYTES[2:]
    assert operations.torch_bytes(part[0]) == F4_BYTES[:2]
    check_saved("pt", {"a": found}, path.with_name("saved"), tensor)
    theirs = upstream.run("get_tensor_each", str(path), "pt", backend)
    assert theirs.ok == (backend == "mmap")
    assert not upstream.run("get_slice", str(path), "pt", backend, "a", slice(1, None)).ok
    if theirs.ok:
        assert theirs.value["a"] == operations.plain(found)


def test_torch_refuses_f4_whose_rows_end_within_a_byte(torch, file_of):
    """[2, 3] is six values in three bytes; torch's type has no such shape."""
    path = file_of(Raw("F4", (2, 3), F4_BYTES[:3]))
    for backend in BACKENDS:
        with safe_open(path, "pt", backend=backend) as handle:
            assert handle.get_slice("a").get_shape() == [2, 3]
            with pytest.raises(SafetensorError):
                handle.get_tensor("a")


def test_torch_load_of_bytes_where_upstream_has_no_type(torch, upstream):
    """Upstream's `load` has neither F8_E8M0 nor F4."""
    for name in ("F8_E8M0", "F4"):
        dtype_table.needs_torch_dtype(name)
        content = file_builder.to_bytes({"a": tensor_of(name)})
        found = safetensors.torch.load(content)["a"]
        assert found.dtype == dtype_table.torch_dtype(name)
        assert operations.torch_bytes(found) == tensor_of(name).data
        assert upstream.run("load", content, "pt").failure.kind == "builtins.KeyError"


def test_torch_load_of_bytes_looks_its_table_up_live(torch, monkeypatch):
    """Other projects add their dtypes to _TYPES."""
    monkeypatch.setitem(safetensors.torch._TYPES, "U8", torch.int8)
    content = file_builder.to_bytes({"a": raw("U8", (3,), b"\xff\x01\x02")})
    found = safetensors.torch.load(content)["a"]
    assert (found.dtype, found.tolist()) == (torch.int8, [-1, 1, 2])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NUMPY_NATIVE)
def test_numpy(file_of, name, backend):
    """NumPy's dtypes: every way to read, slices, and saving."""
    check_numpy(file_of, name, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in NUMPY_ML if name != "F4"])
def test_numpy_through_ml_dtypes(ml_dtypes, file_of, name, backend):
    """The same for dtypes of ml_dtypes."""
    check_numpy(file_of, name, backend)


def check_numpy(file_of, name, backend):
    """Checks every way to read a dtype of whole bytes into NumPy, slices, and saving."""
    tensor = tensor_of(name)
    path = file_of(tensor)
    expected = np.frombuffer(tensor.data, numpy_dtype(name)).reshape(SHAPE)
    for way, found in ways(path, "np", backend).items():
        assert type(found) is np.ndarray, way
        assert (found.dtype, found.shape) == (expected.dtype, SHAPE), way
        assert found.tobytes() == tensor.data, way
        assert found.flags.writeable, way
    part = safe_open(path, "np", backend=backend).get_slice("a")
    for index in (
        slice(1, None),
        (slice(None), slice(1, 3)),
        (0, 2),
        (slice(None), slice(None, None, 2)),
    ):
        assert part[index].dtype == expected.dtype
        assert part[index].tobytes() == expected[index].tobytes()
    check_saved("np", {"a": found}, path.with_name("saved"), tensor)


def test_numpy_getdtype(ml_dtypes):
    """Programs call this private function of upstream, which has no F4."""
    assert safetensors.numpy._getdtype("I64") == np.dtype("i8")
    assert safetensors.numpy._getdtype("BF16") == np.dtype(ml_dtypes.bfloat16)
    assert safetensors.numpy._getdtype("F8_E5M2") == np.dtype(ml_dtypes.float8_e5m2)
    for name in ("F4", "none"):
        with pytest.raises(KeyError):
            safetensors.numpy._getdtype(name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 4), (8,), (2, 2, 2), (4, 1, 2)], ids=str)
def test_numpy_f4_has_one_value_to_an_element(ml_dtypes, file_of, backend, shape):
    """The shape is the file's, and the low half of each byte is the first value."""
    tensor = Raw("F4", shape, F4_BYTES)
    path = file_of(tensor)
    expected = np.array(F4_VALUES).reshape(shape)
    for way, found in ways(path, "np", backend).items():
        assert (found.dtype, found.shape) == (ml_dtypes.float4_e2m1fn, shape), way
        assert np.array_equal(found.astype(float), expected), way
    check_saved("np", {"a": found}, path.with_name("saved"), tensor)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_f4_slices_end_within_bytes(ml_dtypes, file_of, backend):
    """Indices count values, not bytes."""
    part = safe_open(file_of(tensor_of("F4")), "np", backend=backend).get_slice("a")
    expected = np.array(F4_VALUES)
    for index in (
        1, (0, 1), (0, 0), (slice(None), 1), (slice(None), slice(1, 3)), (1, slice(1, None, 2)),
        slice(0, 0), (slice(None), slice(None, None, 3)), (..., -1),
    ):  # fmt: skip
        found = part[index]
        assert found.dtype == ml_dtypes.float4_e2m1fn
        assert found.shape == expected[index].shape
        assert np.array_equal(found.astype(float), expected[index]), index


def test_numpy_f4_whose_rows_end_within_a_byte(ml_dtypes, file_of):
    """[2, 3] is six values in three bytes, which NumPy can represent."""
    tensor = Raw("F4", (2, 3), F4_BYTES[:3])
    path = file_of(tensor)
    for backend in BACKENDS:
        found = safe_open(path, "np", backend=backend).get_tensor("a")
        assert found.astype(float).tolist() == [[0.5, 1.0, 1.5], [2.0, 3.0, 4.0]]
    check_saved("np", {"a": found}, path.with_name("saved"), tensor)


def test_numpy_f4_of_half_a_byte_is_not_saved(ml_dtypes):
    """Three values are a byte and a half, which a file cannot hold."""
    with pytest.raises(SafetensorError):
        safetensors.numpy.save({"a": np.zeros(3, ml_dtypes.float4_e2m1fn)})


def test_numpy_dtypes_the_format_lacks(ml_dtypes, upstream):
    """They are refused with upstream's text."""
    for name in ("int4", "uint4", "float8_e4m3", "float8_e3m4", "float6_e2m3fn"):
        with pytest.raises(SafetensorError) as caught:
            safetensors.numpy.save({"a": np.zeros((2, 4), getattr(ml_dtypes, name))})
        assert str(caught.value).startswith(
            f'Unknown dtype "{name}". Supported dtypes: bool, int8, '
        )
        source = "sn.save({'a': np.zeros((2, 4), getattr(__import__('ml_dtypes'), name))})"
        assert upstream.evaluate(source, name=name).failure.kind.endswith("SafetensorError")


@pytest.mark.parametrize("name", NUMPY_ML)
def test_without_ml_dtypes_the_error_says_to_install_it(tmp_path, name):
    """NumPy's own dtypes work in a process that cannot import it."""
    path = file_builder.write(tmp_path / "a.st", {"a": tensor_of(name), "b": raw("F32", (2,))})
    code = """
sys.modules["ml_dtypes"] = None
import safetensors.numpy as sn
from safetensors import SafetensorError, safe_create, safe_open
for backend in ("mmap", "pread"):
    handle = safe_open(sys.argv[1], "np", backend=backend)
    assert handle.get_tensor("b").dtype == "float32"
    assert handle.get_slice("a").get_shape() == [2, 4]
    for read in (
        lambda: handle.get_tensor("a"),
        lambda: handle.get_tensors(),
        lambda: handle.get_slice("a")[:1],
        lambda: sn.load_file(sys.argv[1], backend=backend),
        lambda: sn.load(open(sys.argv[1], "rb").read()),
    ):
        try:
            print("no error", read())
        except SafetensorError as error:
            print(error)
"""
    lines = children.run(code, path).splitlines()
    assert len(lines) == 10, lines
    for line in lines:
        assert "ml_dtypes" in line, line
        assert "install" in line, line


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("name", F6)
def test_f6_is_listed_and_refused(upstream, tmp_path, name, framework):
    """No framework has a type for F6: everything but values can be read."""
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    tensors = {"a": raw(name, SHAPE), "b": raw("U8", (1,))}
    path = file_builder.write(tmp_path / "f6.st", tensors)
    text = f"Dtype not understood: {name}"
    module = operations.framework_module(framework)
    for backend in BACKENDS:
        handle = safe_open(path, framework, backend=backend)
        assert handle.keys() == handle.offset_keys() == ["a", "b"]
        part = handle.get_slice("a")
        assert (part.get_dtype(), part.get_shape()) == (name, [2, 4])
        meta = handle.get_tensor_meta("a")
        assert (meta.dtype, meta.shape, meta.data_offsets) == (name, [2, 4], (0, 6))
        for read, argument in (
            (handle.get_tensor, "a"),
            (part.__getitem__, slice(None)),
            (lambda backend: module.load_file(path, backend=backend), backend),
            (lambda handle: handle.get_tensors(), handle),
        ):
            with pytest.raises(SafetensorError) as caught:
                read(argument)
            assert str(caught.value).startswith(text)
            assert str(caught.value).endswith(f": tensor `a` (in {path})")
            assert (caught.value.path, caught.value.subject) == (str(path), "a")
        assert handle.get_tensor("b").tolist() == [1]
    theirs = upstream.run("get_tensor_each", str(path), framework, "mmap").failure
    assert theirs.text == text
    assert operations.deserialize(path.read_bytes()) == tensors
    # Upstream's `load` lets the KeyError of its table out.
    with pytest.raises((SafetensorError, KeyError)) as caught:
        module.load(path.read_bytes())
    assert name in str(caught.value)
    assert "`a`" in str(caught.value)
    assert (caught.value.code, caught.value.subject) == ("unsupported_dtype", "a")


@pytest.mark.parametrize("name", SAVEABLE)
def test_empty_and_scalar_tensors(tmp_path, name):
    """Tensors have no bytes, no dimensions, or a dimension of size 0."""
    tensors = {"none": raw(name, (0,)), "middle": raw(name, (2, 0, 4))}
    if name != "F4":
        tensors["scalar"] = raw(name, ())
    path = file_builder.write(tmp_path / "small.st", tensors)
    for framework in ("np", "pt"):
        pytest.importorskip("torch" if framework == "pt" else "ml_dtypes")
        if framework == "pt":
            dtype_table.needs_torch_dtype(name)
        for backend in BACKENDS:
            found = operations.get_tensor_each(path, framework, backend)
            for key, tensor in tensors.items():
                shape = tensor.shape
                if framework == "pt":
                    shape = dtype_table.torch_shape(name, shape)
                assert tuple(found[key].shape) == shape
                assert operations.plain(found[key]).data == tensor.data
            assert operations.framework_module(framework).save(found) == operations.serialize(
                tensors, None
            )


def test_the_table_of_dtypes_is_whole(upstream):
    """The table has every dtype that upstream lists in its error for an unknown one."""
    content = file_builder.from_entries({"a": file_builder.entry("F99", (), 0, 0)})
    text = upstream.run("deserialize", content).failure.text
    assert len(BY_NAME) == 22
    assert [name for name in BY_NAME if f"`{name}`" not in text] == []
