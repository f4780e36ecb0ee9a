"""Both packages read the same from valid files."""

import json

import pytest
from hypothesis import given

from support import dtype_table, file_builder, operations, strategies

# Upstream has no slices of F4, and gives it to PyTorch with mmap only: see test_dtypes.py.
TORCH = [name for name in dtype_table.SAVEABLE if name != "F4"]
NUMPY = [*dtype_table.NUMPY_NATIVE, "BF16"]
ALL = [dtype.name for dtype in dtype_table.TABLE]
BACKENDS = ["mmap", "pread"]


def both(upstream, name, *args):
    """Returns both packages' results of an operation, which must succeed."""
    return operations.run(name, *args).unwrap(), upstream.run(name, *args).unwrap()


def tensors_of(content):
    """Returns the tensors of a valid file, read with Python's json."""
    header, data = file_builder.split(content)
    found = {}
    for name, entry in json.loads(header).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = file_builder.Raw(entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return found


def offsets_of(content):
    """Returns (begin, end) by name."""
    header = json.loads(file_builder.split(content)[0])
    return {n: tuple(e["data_offsets"]) for n, e in header.items() if n != "__metadata__"}


def same_tensors(ours, theirs, content, framework):
    """Checks that both dicts hold the same values, and that the bytes are the file's."""
    assert ours == theirs
    expected = tensors_of(content)
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        assert tensor.data == expected[name].data
        if framework == "pt":
            dtype = str(dtype_table.torch_dtype(expected[name].dtype))
        else:
            dtype = str(dtype_table.numpy_dtype(expected[name].dtype))
        assert (tensor.dtype, tensor.shape) == (dtype, expected[name].shape)


@pytest.fixture(params=["np", "pt"])
def framework(request):
    """Each installed framework."""
    pytest.importorskip("torch" if request.param == "pt" else "numpy")
    if request.param == "np":
        pytest.importorskip("ml_dtypes")
    return request.param


def dtypes_for(framework):
    """Returns the dtypes that upstream reads into a framework."""
    return TORCH if framework == "pt" else NUMPY


@pytest.mark.parametrize("backend", BACKENDS)
@strategies.examples(60)
@given(content=strategies.files(ALL))
def test_keys_order_metadata_and_entries(upstream, scratch, backend, content):
    """Names, order by offset, metadata, dtypes and shapes agree for every dtype."""
    path = str(file_builder.write(scratch / "look.safetensors", content))
    ours, theirs = both(upstream, "look", path, "np", backend)
    offsets = offsets_of(content)
    for answer in (ours, theirs):
        begins = [offsets[name] for name in answer["offset_keys"]]
        assert begins == sorted(begins)
    # Which of two tensors at one place comes first is up to a hash table in upstream.
    assert sorted(ours.pop("offset_keys")) == sorted(theirs.pop("offset_keys"))
    assert ours == theirs
    assert ours["keys"] == sorted(tensors_of(content))
    assert ours["metadata"] == json.loads(file_builder.split(content)[0]).get("__metadata__")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", ["get_tensor_each", "get_tensors", "load_file"])
def test_tensors_of_a_file(upstream, scratch, framework, operation, backend):
    """Every call that reads tensors from a file returns the same bytes, dtypes and shapes."""

    @strategies.examples(25)
    @given(content=strategies.files(dtypes_for(framework)))
    def check(content):
        path = str(file_builder.write(scratch / "read.safetensors", content))
        ours, theirs = both(upstream, operation, path, framework, backend)
        same_tensors(ours, theirs, content, framework)
        if operation != "get_tensor_each":
            offsets = offsets_of(content)
            for answer in (ours, theirs):
                begins = [offsets[name] for name in answer]
                assert begins == sorted(begins)

    check()


def test_tensors_of_bytes(upstream, framework):
    """`load` agrees; upstream's lacks F8_E8M0 for PyTorch and BF16 for NumPy."""
    lacking = {"F8_E8M0", "BF16"} if framework == "np" else {"F8_E8M0"}
    known = [name for name in dtypes_for(framework) if name not in lacking]

    @strategies.examples(60)
    @given(content=strategies.files(known))
    def check(content):
        ours, theirs = both(upstream, "load", content, framework)
        same_tensors(ours, theirs, content, framework)

    check()


@strategies.examples(100)
@given(content=strategies.files(ALL))
def test_deserialize(upstream, content):
    """`deserialize` returns dtype, shape and bytes of every tensor, also of F6."""
    ours, theirs = both(upstream, "deserialize", content)
    assert ours == theirs == tensors_of(content)


def test_deserialize_gives_a_list_of_pairs_with_bytearrays(upstream):
    """Programs rely on the types in the result of deserialize."""
    content = file_builder.to_bytes({"a": file_builder.raw("F32", (2,))})
    source = "[(n, sorted(e), *[type(e[k]).__name__ for k in sorted(e)]) for n, e in (lambda d: d)"
    source += "(safetensors.deserialize(content))]"
    expected = [("a", ["data", "dtype", "shape"], "bytearray", "str", "list")]
    assert operations.run("evaluate", source, content=content).unwrap() == expected
    assert upstream.evaluate(source, content=content).unwrap() == expected
    assert type(operations.evaluate("safetensors.deserialize(c)", c=content)) is list


def test_metadata_is_a_fresh_dict(scratch):
    """Callers change it, which must not affect the next call."""
    content = file_builder.to_bytes({"a": file_builder.raw("U8", (1,))}, {"format": "pt", "k": "v"})
    path = str(file_builder.write(scratch / "metadata.safetensors", content))
    with operations.evaluate("safe_open(path, 'np')", path=path) as handle:
        assert handle.metadata().pop("format") == "pt"
        assert handle.metadata() == {"format": "pt", "k": "v"}


def test_no_metadata_is_none_and_empty_metadata_is_a_dict(upstream, scratch):
    """None and {} differ, as in upstream."""
    for metadata in (None, {}):
        content = file_builder.to_bytes({"a": file_builder.raw("U8", (1,))}, metadata)
        path = str(file_builder.write(scratch / "none.safetensors", content))
        ours, theirs = both(upstream, "look", path, "np", "mmap")
        assert ours["metadata"] == theirs["metadata"] == metadata


def test_get_tensors_follows_offsets_not_names(upstream, scratch):
    """In this file the order by offset differs from that by name."""
    tensors = {
        "z": file_builder.raw("U8", (1,)),
        "m": file_builder.raw("F32", (1,)),
        "a": file_builder.raw("I8", (3,)),
    }
    path = str(file_builder.write(scratch / "order.safetensors", tensors))
    for operation in ("get_tensors", "load_file"):
        for backend in BACKENDS:
            ours, theirs = both(upstream, operation, path, "np", backend)
            assert list(ours) == list(theirs) == ["z", "m", "a"]
    ours, theirs = both(upstream, "look", path, "np", "mmap")
    assert ours["keys"] == theirs["keys"] == ["a", "m", "z"]
    assert ours["offset_keys"] == theirs["offset_keys"] == ["z", "m", "a"]
