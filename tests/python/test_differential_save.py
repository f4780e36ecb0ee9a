"""Both packages write the same bytes."""

import json

import pytest
from hypothesis import example, given

from support import dtype_table, file_builder, operations, strategies
from support.file_builder import raw

TORCH = dtype_table.SAVEABLE
# Upstream has no word for ml_dtypes' float4_e2m1fn: see test_dtypes.py.
NUMPY = [name for name in dtype_table.SAVEABLE if name != "F4"]
ALL_ESCAPES = "".join(chr(code) for code in range(0x80)) + "\x80é\u2028\ufeff\uffff😀"


@pytest.fixture(params=["np", "pt"])
def framework(request):
    """Each installed framework."""
    pytest.importorskip("torch" if request.param == "pt" else "numpy")
    if request.param == "np":
        pytest.importorskip("ml_dtypes")
    return request.param


def broken_in_upstream(tensors, metadata):
    """Whether upstream 0.8.0 writes the invalid `{},"__metadata__":{}}` for this input."""
    return not tensors and metadata == {}


def same_bytes(upstream, name, *args):
    """Returns our bytes after checking that upstream's are equal."""
    ours = operations.run(name, *args).unwrap()
    assert ours == upstream.run(name, *args).unwrap()
    return ours


def check_content(content, tensors, metadata):
    """Checks with Python's json that the file has the tensors in the documented layout."""
    header, data = file_builder.split(content)
    assert len(header) % 8 == 0
    assert header[:1] == b"{"
    parsed = json.loads(header)
    assert parsed.pop("__metadata__", None) == metadata
    ranks = {dtype.name: rank for rank, dtype in enumerate(dtype_table.TABLE)}
    assert list(parsed) == sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name))
    end = 0
    for name, entry in parsed.items():
        begin, after = entry["data_offsets"]
        assert begin == end
        assert (entry["dtype"], tuple(entry["shape"])) == tensors[name][:2]
        assert data[begin:after] == tensors[name].data
        end = after
    assert end == len(data)


def test_save(upstream, framework):
    """`save` agrees for any dtypes, names, shapes, and at most one metadata key."""

    @strategies.examples(50)
    @given(
        strategies.tensor_dicts(TORCH if framework == "pt" else NUMPY),
        strategies.no_or_one_key,
    )
    def check(tensors, metadata):
        if not broken_in_upstream(tensors, metadata):
            content = same_bytes(upstream, "save", tensors, metadata, framework)
            check_content(content, tensors, metadata)

    check()


def test_save_file(upstream, framework, scratch):
    """`save_file` writes the bytes that `save` returns, and each package opens the other's file."""
    path = str(scratch / f"save_file-{framework}.safetensors")

    @strategies.examples(40)
    @given(
        strategies.tensor_dicts(TORCH if framework == "pt" else NUMPY),
        strategies.no_or_one_key,
    )
    def check(tensors, metadata):
        if broken_in_upstream(tensors, metadata):
            return
        theirs = upstream.run("save_file", tensors, path, metadata, framework).unwrap()
        by_us = operations.run("look", path, "np", "mmap").unwrap()
        ours = operations.run("save_file", tensors, path, metadata, framework).unwrap()
        assert ours == theirs
        assert ours == operations.run("save", tensors, metadata, framework).unwrap()
        by_upstream = upstream.run("look", path, "np", "mmap").unwrap()
        assert sorted(by_us.pop("offset_keys")) == sorted(by_upstream.pop("offset_keys"))
        assert by_us == by_upstream
        assert by_us["keys"] == sorted(tensors)

    check()


@strategies.examples(70)
@given(strategies.tensor_dicts(dtype_table.SAVEABLE), strategies.no_or_one_key)
@example({"a": raw("F32", (2,)), "\x00": raw("F4", (4,))}, {ALL_ESCAPES: ALL_ESCAPES})
@example({ALL_ESCAPES: raw("BOOL", (3,)), "": raw("U64", ())}, {"": ""})
@example({}, None)
def test_serialize(upstream, tensors, metadata):
    """`serialize` reads from pointers; `deserialize` of both packages reads its result."""
    if broken_in_upstream(tensors, metadata):
        return
    content = same_bytes(upstream, "serialize", tensors, metadata)
    check_content(content, tensors, metadata)
    assert operations.run("deserialize", content).unwrap() == tensors
    assert upstream.run("deserialize", content).unwrap() == tensors


@strategies.examples(40)
@given(strategies.tensor_dicts(dtype_table.SAVEABLE), strategies.no_or_one_key)
def test_serialize_file(upstream, scratch, tensors, metadata):
    """`serialize_file` writes what `serialize` returns."""
    if broken_in_upstream(tensors, metadata):
        return
    path = str(scratch / "serialize_file.safetensors")
    content = same_bytes(upstream, "serialize_file", tensors, path, metadata)
    assert content == operations.run("serialize", tensors, metadata).unwrap()


@strategies.examples(40)
@given(strategies.tensor_dicts(dtype_table.SAVEABLE), strategies.metadata)
def test_many_metadata_keys_are_sorted_and_read_by_upstream(upstream, tensors, metadata):
    """Upstream's order is random; ours is sorted, and upstream reads it."""
    content = operations.run("serialize", tensors, metadata).unwrap()
    check_content(content, tensors, metadata)
    assert upstream.run("deserialize", content).unwrap() == tensors
    if metadata is not None:
        written = json.loads(file_builder.split(content)[0])["__metadata__"]
        assert list(written) == sorted(metadata)
        backwards = dict(reversed(metadata.items()))
        assert operations.run("serialize", tensors, backwards).unwrap() == content


def test_no_tensors_and_empty_metadata_is_a_good_file(upstream, scratch):
    """For this input upstream writes an invalid file."""
    ours = operations.run("serialize", {}, {}).unwrap()
    check_content(ours, {}, {})
    assert upstream.run("deserialize", ours).unwrap() == {}
    theirs = upstream.run("serialize", {}, {}).unwrap()
    assert not upstream.run("deserialize", theirs).ok


@pytest.mark.parametrize("row", [r for r in dtype_table.TABLE if r.spec], ids=lambda row: row.name)
def test_dtype_words(upstream, row):
    """TensorSpec accepts frameworks' names of a dtype and shows the format's."""
    source = "(lambda s: (s.dtype, s.shape, s.data_ptr, s.data_len, repr(s)))"
    source += "(safetensors.TensorSpec(dtype=word, shape=(2, 4), data_ptr=4096, data_len=7))"
    ours = operations.run("evaluate", source, word=row.spec).unwrap()
    assert ours == upstream.evaluate(source, word=row.spec).unwrap()
    assert ours[:2] == (row.name, [2, 8] if row.name == "F4" else [2, 4])


def test_files_large_enough_for_several_writes(upstream, framework, scratch):
    """Files larger than any buffer are written, new and over an existing file."""
    tensors = {f"t{i}": raw("F32", (1 << 18,), bytes([i]) * (1 << 20)) for i in range(9)}
    path = str(scratch / f"large-{framework}.safetensors")
    for _ in range(2):
        content = same_bytes(upstream, "save_file", tensors, path, {"format": "pt"}, framework)
    check_content(content, tensors, {"format": "pt"})
