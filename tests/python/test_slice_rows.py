"""Slices as sequences: iterating, len() and Python's sequence protocol over axis 0."""

import itertools

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from support import file_builder, operations
from support.dtype_table import SAVEABLE, needs_torch_dtype
from support.file_builder import raw
from support.range_readers import FailingReader, MemoryReader
from support.threads import together

SHAPES = {
    "matrix": (4, 3), "vector": (5,), "cube": (2, 3, 4), "one": (1, 2), "no rows": (0, 3),
    "no columns": (3, 0),
}  # fmt: skip
TENSORS = {name: raw("I32", shape) for name, shape in SHAPES.items()} | {"scalar": raw("F32", ())}
BLOCK = 4 << 20  # what an iteration reads at once
WIDE = raw("F32", (2500, 1024))  # of 10 MB


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(file_builder.write(tmp_path_factory.mktemp("rows") / "a.safetensors", TENSORS))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return file_builder.write(tmp_path_factory.mktemp("rows") / "b.safetensors", {"w": WIDE})


def opened(source, word="np", backend="mmap"):
    if word == "pt":
        pytest.importorskip("torch")
    options = {} if isinstance(source, MemoryReader) else {"backend": backend}
    return safe_open(source, word, **options)


def same(found, wanted):
    """Returns whether two objects are one kind of array, of equal values."""
    if not (type(found) is type(wanted) and found.shape == wanted.shape):
        return False
    return found.dtype == wanted.dtype and np.asarray(found).tolist() == np.asarray(wanted).tolist()


@pytest.mark.parametrize("source", ["mmap", "pread", "direct", "auto", "reader"])
@pytest.mark.parametrize("word", ["np", "pt"])
def test_rows_are_those_of_indexing(path, word, source):
    """Each row is what the same integer selects, of the same type: no scalars for vectors."""
    reader = MemoryReader(file_builder.to_bytes(TENSORS))
    with opened(reader if source == "reader" else path, word, source) as file:
        for name, shape in SHAPES.items():
            part = file.get_slice(name)
            assert len(part) == shape[0]
            wanted = [part[row] for row in range(shape[0])]
            for found in (list(part), [*part], list(reversed(part))[::-1]):
                assert len(found) == len(wanted)
                assert all(map(same, found, wanted)), name


@pytest.mark.parametrize("word", ["np", "pt"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("code", SAVEABLE)
def test_every_dtype(tmp_path, word, backend, code):
    """An element of torch's F4 holds two values, also along axis 0."""
    if word == "pt":
        needs_torch_dtype(code)
    if word == "np":
        pytest.importorskip("ml_dtypes")
    tensors = {"rows": raw(code, (3, 4)), "vector": raw(code, (8,))}
    with opened(file_builder.write(tmp_path / "a", tensors), word, backend) as file:
        for name in tensors:
            part = file.get_slice(name)
            whole = part[...]
            assert len(part) == len(whole)
            rows = list(part)
            assert [row.shape for row in rows] == [whole.shape[1:]] * len(whole)
            if word == "np":
                assert b"".join(row.tobytes() for row in rows) == whole.tobytes()
            else:
                torch = pytest.importorskip("torch")
                if code == "F4":  # torch indexes it, and computes nothing
                    rows, whole = [r.view(torch.uint8) for r in rows], whole.view(torch.uint8)
                assert [r.tolist() for r in rows] == whole.tolist()


CALLS = {
    "list(s)": None, "tuple(s)": None, "next(iter(s))": None, "[r for _, r in zip('ab', s)]": None,
    "[i for i, _ in enumerate(s)]": None, "bool(s)": None, "s[-1]": None, "s[9]": IndexError,
    "s[-9]": IndexError, "(lambda a, b: b)(*s)": TypeError, "torch.stack(list(s))": None,
    "[3 in f.get_slice('vector'), 99 in f.get_slice('vector')]": None,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["matrix", "vector", "no columns"])
def test_torch_tensors_of_a_mapped_file_are_upstreams(upstream, path, name, call):
    pytest.importorskip("torch")
    source = f"(lambda f: (lambda s: {call})(f.get_slice({name!r})))(safe_open(path, 'pt'))"
    ours = operations.run("evaluate", source, path=path)
    theirs = upstream.evaluate(source, path=path)
    assert ours.ok == theirs.ok
    assert ours.value == theirs.value
    if CALLS[call] is not None:
        assert ours.failure.kind == theirs.failure.kind == f"builtins.{CALLS[call].__name__}"


def test_upstream_has_no_length(upstream, path):
    """len() and reversed() are additions; without rows, upstream's slices are true as well."""
    for call in ("len(s)", "list(reversed(s))"):
        source = f"(lambda s: {call})(safe_open(path, 'np').get_slice('vector'))"
        assert operations.run("evaluate", source, path=path).ok
        assert upstream.evaluate(source, path=path).failure.kind == "builtins.TypeError"
    source = "bool(safe_open(path, 'np').get_slice('no rows'))"
    assert upstream.evaluate(source, path=path).value is True
    assert operations.run("evaluate", source, path=path).value is True


@pytest.mark.parametrize("word", ["np", "pt"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("call", [len, iter, list, reversed])
def test_a_scalar_has_no_rows(path, word, backend, call):
    """Upstream returns an empty list for torch. The error names the tensor and the file."""
    with opened(path, word, backend) as file:
        part = file.get_slice("scalar")
        with pytest.raises(TypeError, match="of a 0-d tensor|over a 0-d tensor") as caught:
            call(part)
        assert isinstance(caught.value, SafetensorError)
        assert "`scalar`" in str(caught.value)
        assert path in str(caught.value)
        assert (caught.value.subject, caught.value.path) == ("scalar", path)
        assert bool(part) is True


def test_numpy_takes_a_slice_as_a_sequence(path):
    with opened(path) as file:
        found = np.asarray(file.get_slice("cube"))
        assert np.array_equal(found, file.get_tensor("cube"))


@pytest.mark.parametrize("word", ["np", "pt"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_rows_outlive_the_handle(path, word, backend):
    with opened(path, word, backend) as file:
        rows, second = iter(file.get_slice("matrix")), iter(file.get_slice("matrix"))
        first = next(rows)
    assert first.tolist() == next(second).tolist()
    assert len(list(rows)) == 3


def test_a_remote_file_is_read_in_blocks():
    """Rows are small, and requests are slow."""
    reader = MemoryReader(file_builder.to_bytes({"w": WIDE}))
    with opened(reader) as file:
        wanted = file.get_tensor("w")
        before = len(reader.reads)
        found = list(file.get_slice("w"))
        asked = reader.reads[before:]
    assert np.array_equal(found, wanted)
    assert sum(nbytes for _, nbytes in asked) <= wanted.nbytes
    assert max(nbytes for _, nbytes in asked) <= BLOCK
    assert len(asked) <= 2 * -(-wanted.nbytes // BLOCK)


@pytest.mark.parametrize("word", ["np", "pt"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_rows_that_were_read_do_not_keep_others(wide, word, backend):
    """As with an integer, a row of a file that is not mapped has memory of its own."""
    with opened(wide, word, backend) as file:
        part = file.get_slice("w")
        row, wanted = next(iter(part)), part[0]
    assert same(row, wanted)
    if backend == "pread" and word == "pt":
        assert row.untyped_storage().nbytes() == wanted.untyped_storage().nbytes() == 4096
    if backend == "pread" and word == "np":
        assert row.base is None or row.base.nbytes == 4096
        row[:] = 7
        assert part[0].tolist() != row.tolist()


def test_an_error_ends_the_iteration():
    """As that of a generator: what comes after the failed row is not taken for its successor."""
    data = file_builder.to_bytes({"w": WIDE})
    with opened(FailingReader(data, OSError("gone"), after=1)) as file:
        rows = iter(file.get_slice("w"))
        with pytest.raises(OSError, match="gone"):
            list(rows)
        assert list(rows) == []


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_threads_share_an_iterator(wide, backend):
    """Each row goes to one thread."""
    with opened(wide, "np", backend) as file:
        rows = iter(file.get_slice("w"))
        found = together(lambda _: [row.tobytes() for row in rows], range(4))
        wanted = sorted(row.tobytes() for row in file.get_tensor("w"))
        assert sorted(itertools.chain.from_iterable(found)) == wanted
