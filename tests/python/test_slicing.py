"""Slices equal NumPy's for the same index, on both frameworks and backends."""

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safetensors import SafetensorError, safe_open
from support import file_builder, memory, strategies
from support.dtype_table import numpy_dtype

WAYS = [("np", "mmap"), ("np", "pread"), ("pt", "mmap"), ("pt", "pread")]
SHAPES = {
    "scalar": (), "one": (1,), "row": (7,), "none": (0,), "matrix": (4, 6), "no rows": (0, 3),
    "no columns": (3, 0), "cube": (3, 4, 5), "flat": (1, 1, 1, 1), "five": (2, 3, 1, 2, 3),
}  # fmt: skip
DTYPES = {"scalar": "F64", "row": "U8", "cube": "I16", "five": "BOOL"}


def tensors():
    """The tensors of the file that all these tests read."""
    return {
        name: file_builder.raw(DTYPES.get(name, "I32"), shape) for name, shape in SHAPES.items()
    }


ARRAYS = {
    name: np.frombuffer(t.data, numpy_dtype(t.dtype)).reshape(t.shape)
    for name, t in tensors().items()
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with tensors of many shapes."""
    return file_builder.write(tmp_path_factory.mktemp("slicing") / "slices.safetensors", tensors())


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def way(request):
    """A framework and a backend."""
    if request.param[0] == "pt":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture(scope="module")
def slices(path, way):
    """A slice handle for each tensor of the file."""
    handle = safe_open(path, way[0], backend=way[1])
    return {name: handle.get_slice(name) for name in SHAPES}


def as_array(value):
    """Returns a slice's result as a NumPy array."""
    return value.numpy() if hasattr(value, "untyped_storage") else value


def check_same(slices, name, index):
    """Checks that the slice equals NumPy's, or that both raise IndexError."""
    try:
        expected = np.asarray(ARRAYS[name][index])
    except IndexError:
        with pytest.raises(IndexError):
            slices[name][index]
        return
    found = slices[name][index]
    assert tuple(found.shape) == expected.shape
    found = as_array(found)
    assert isinstance(found, np.ndarray)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


# torch itself warns of bounds beyond 64 bits, and multiplies a long step by the stride.
BOUNDS = [2**31, -(2**31), 2**63 - 1, -(2**62)]
WIDE_BOUNDS = [*BOUNDS, -(2**63), 2**63, -(2**63) - 1, 2**70, -(2**70)]
WIDE_STEPS = [2**31, 2**63 - 1, 2**63, 2**70]
integers = st.one_of(st.integers(-6, 6), st.sampled_from([2**31, -(2**31), 2**62]))


def slices_of(way, negative=False):
    """Returns a strategy for slices with positive or negative steps."""
    own = way == ("pt", "mmap")
    bounds = st.none() | st.integers(-9, 9) | st.sampled_from(BOUNDS if own else WIDE_BOUNDS)
    if negative:
        steps = st.integers(-9, -1) | st.sampled_from([-(2**31)] if own else [-(2**63), -(2**70)])
    else:
        steps = st.none() | st.integers(1, 9) | st.sampled_from([2**31] if own else WIDE_STEPS)
    return st.builds(slice, bounds, bounds, steps)


@st.composite
def indices(draw, part):
    """Draws (name, index) with a basic index for that tensor."""
    name = draw(st.sampled_from(list(SHAPES)))
    rank = len(SHAPES[name])
    single = st.one_of(part, integers, st.builds(np.int64, st.integers(-3, 3)))
    items = draw(st.lists(single, max_size=rank + draw(st.sampled_from([0, 0, 0, 1]))))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        items.insert(draw(st.integers(0, len(items))), None)
    return name, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def test_basic_indices(slices, way):
    """Integers, slices with positive steps, an ellipsis and new axes may be combined."""

    @strategies.examples(150)
    @given(indices(slices_of(way)))
    def check(case):
        check_same(slices, *case)

    check()


NAMED = {
    "all": slice(None), "first": 0, "last": -1, "front": slice(1, 3), "back": slice(-2, None),
    "reversed bounds": slice(3, 1), "every second": slice(None, None, 2), "too far": slice(0, 100),
    "beyond": slice(100, None), "before": slice(-100, 2), "nothing": slice(0, 0), "ellipsis": ...,
    "tuple of none": (), "last column": (..., -1), "column": (slice(None), 1), "element": (0, 0),
    "columns": (slice(None), slice(1, 3)), "stepped columns": (slice(None), slice(None, None, 2)),
    "ellipsis in front": (..., slice(1, 2)), "ellipsis behind": (0, ...), "new axis": None,
    "new axis in front": (None, 0), "new axis behind": (0, None), "three indices": (0, 0, 0),
    "six indices": (0,) * 6, "nothing of columns": (slice(None), slice(2, 2)), "4": 4, "-5": -5,
    "second out of range": (0, 6), "true": True, "false": False, "two ellipses": (..., ...),
    "bounds beyond 64 bits": slice(-(2**70), 2**70),
    "step beyond 64 bits": slice(None, None, 2**70),
    "NumPy integer": np.int8(1), "NumPy bounds": slice(np.int64(0), np.uint8(2)),
    "bound by __index__": slice(np.array(1), None), "uint64": np.uint64(1),
}  # fmt: skip


TORCHS_OWN = {"two ellipses", "bounds beyond 64 bits", "step beyond 64 bits"}


@pytest.mark.parametrize("index", NAMED)
def test_named_indices(slices, way, index):
    """Common indices of programs, on every shape."""
    if index in TORCHS_OWN and way == ("pt", "mmap"):
        pytest.skip("torch itself answers, and not as NumPy does")
    for name in SHAPES:
        check_same(slices, name, NAMED[index])


def test_negative_steps(slices, way):
    """NumPy's result is returned; torch has no negative strides and raises its error."""

    @strategies.examples(60)
    @given(indices(slices_of(way, negative=True)))
    def check(case):
        name, index = case
        items = index if isinstance(index, tuple) else (index,)
        if way[0] == "np":
            check_same(slices, name, index)
        elif any(isinstance(item, slice) for item in items):
            with pytest.raises((ValueError, IndexError, SafetensorError)):
                slices[name][index]

    check()


def test_step_zero(slices):
    """NumPy and torch raise ValueError; upstream's pread raises SafetensorError."""
    with pytest.raises((ValueError, SafetensorError)):
        slices["matrix"][::0]


def test_numpy_lists_masks_and_arrays(slices, way):
    """NumPy's advanced indices are supported."""
    if way[0] != "np":
        pytest.skip("torch's are in another test")
    mask = np.array([True, False, True, False])
    for index in (
        [0, 2], [0, -1], [[0, 1], [2, 3]], mask, mask.tolist(), np.array([1, 0, 1]), range(2),
        (slice(None), [0, 2]), ([0, 1], [0, 1]), ([0], slice(None, None, 2)), (mask, slice(1, 3)),
        (slice(1, None), [True, False, True, False, False, True]), [], np.ones((4, 6), bool),
        (mask, 0), (None, [1, 2]), ([3], ..., None), [9], (0, [9]),
    ):  # fmt: skip
        check_same(slices, "matrix", index)


def test_torch_lists_masks_and_tensors(path, way):
    """torch's advanced indices give the same on a slice as on a tensor."""
    if way[0] != "pt":
        pytest.skip("NumPy's are in another test")
    import torch

    handle = safe_open(path, "pt", backend=way[1])
    part, whole = handle.get_slice("matrix"), torch.from_numpy(ARRAYS["matrix"].copy())
    mask = torch.tensor([True, False, True, False])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in (
            [0, 2], [0, -1], mask, mask.tolist(), torch.tensor([1, 0]), torch.tensor(2),
            (slice(None), [0, 2]), ([0, 1], [0, 1]), ([0], slice(None, None, 2)),
            (mask, slice(1, 3)), (None, [1, 2]), whole > 5, np.array([0, 1]), ([3], ..., None),
        ):  # fmt: skip
            assert torch.equal(part[index], whole[index]), index
        for index in ([9], (0, [9]), (mask, 0, 0)):
            with pytest.raises(IndexError):
                part[index]


OUT_OF_RANGE = {
    "4": 4, "-5": -5, "column 6": (slice(None), 6), "column -7": (slice(None), -7),
    "element": (4, 0),
    "end": (slice(None, 2), 6), "begin": (slice(2, None), 6), "both": (slice(1, 3), 6),
    "step": (slice(None, None, 2), 6), "all": (slice(0, 4, 3), 6), "zero": (slice(0, None), 6),
    "ellipsis": (..., 6), "ellipsis between": (1, ..., 6), "three": (0, 0, 0),
    "three and an ellipsis": (..., 0, 0, 0), "a slice too many": (0, slice(1, 2), slice(None)),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_out_of_range(slices, way, upstream, path, name):
    """The error is an IndexError and a SafetensorError, unless torch raises it."""
    index = OUT_OF_RANGE[name]
    theirs = upstream.run("get_slice", str(path), *way, "matrix", index).failure
    with pytest.raises(IndexError) as caught:
        slices["matrix"][index]
    assert str(caught.value).startswith(theirs.text)
    if way == ("pt", "mmap"):
        assert type(caught.value) is IndexError
        assert theirs.kind == "builtins.IndexError"
    else:
        assert isinstance(caught.value, SafetensorError)


def test_out_of_range_says_where(path):
    """Programs match on the text."""
    expected = (
        "Error during slicing [4] with shape [4, 6]: "
        "index 4 out of bounds for tensor dimension #0 of size 4"
    )
    with safe_open(path, "np") as handle, pytest.raises(SafetensorError) as caught:
        handle.get_slice("matrix")[4]
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("index", [np.s_[::0], np.s_[0, ::0], np.s_[:, ::0]])
def test_a_step_of_0_says_where(path, backend, index):
    text = "got 0: tensor `matrix`"
    part = safe_open(path, "np", backend=backend).get_slice("matrix")
    with pytest.raises(SafetensorError, match=text) as caught:
        part[index]
    assert isinstance(caught.value, ValueError)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_values_that_numpy_refuses_say_where(path, backend):
    text = "^Error during slicing: setting an array element"
    part = safe_open(path, "np", backend=backend).get_slice("matrix")
    with pytest.raises(SafetensorError, match=text) as caught:
        part[[[1, 2], [3]]]
    assert isinstance(caught.value, ValueError)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("index", [1.5, "x", b"x", {}, object(), slice("a", "b"), slice(1.5), 1j])
def test_invalid_indices(slices, index):
    """The error has a class that upstream or a framework raises."""
    with pytest.raises((IndexError, TypeError, ValueError, SafetensorError)):
        slices["matrix"][index]


def test_upstreams_slices(slices, way, upstream, path):
    """Slices equal upstream's, where upstream supports the index."""
    answered = 0
    for label, index in NAMED.items():
        theirs = upstream.run("get_slice", str(path), *way, "matrix", index)
        # For upstream's pread, True is the number 1.
        if theirs.ok and not isinstance(index, bool) and label not in TORCHS_OWN:
            answered += 1
            found = as_array(slices["matrix"][index])
            assert (found.shape, found.tobytes()) == (theirs.value.shape, theirs.value.data), label
    assert answered > 15


def test_shape_and_dtype(slices):
    """get_shape returns a new list of int, get_dtype a str."""
    for name, shape in SHAPES.items():
        found = slices[name].get_shape()
        assert found == list(shape)
        assert isinstance(found, list)
        found.append(1)
        assert slices[name].get_shape() == list(shape)
        assert slices[name].get_dtype() == DTYPES.get(name, "I32")


def test_torch_slices_from_mmap_are_strided_views(path):
    """They share memory with the tensor, without a copy."""
    pytest.importorskip("torch")
    with safe_open(path, "pt") as handle:
        whole, part = handle.get_tensor("matrix"), handle.get_slice("matrix")
        column, row, stepped = part[:, 1:3], part[2], part[::2, ::3]
    assert (column.stride(), row.stride(), stepped.stride()) == ((6, 1), (1,), (12, 3))
    assert column.data_ptr() == whole.data_ptr() + 4
    assert row.data_ptr() == whole.data_ptr() + 2 * 6 * 4
    whole[2, 2] = 77
    assert column[2, 1] == row[2] == part[2, 2] == 77
    column[0, 0] = 78
    assert whole[0, 1] == 78


def test_numpy_slices_from_mmap_share_memory(path):
    """They are writable without a copy, and the next get_tensor sees the change."""
    with safe_open(path, "np") as handle:
        whole, column = handle.get_tensor("matrix"), handle.get_slice("matrix")[:, 1:3]
        assert np.shares_memory(whole, column)
        column[:] = -1
        assert (handle.get_tensor("matrix")[:, 1:3] == -1).all()
    assert safe_open(path, "np").get_tensor("matrix")[0, 1] != -1


LARGE = (64, 1 << 16)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/io")
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_pread_reads_a_rows_own_bytes(tmp_path, framework):
    """A slice or a list of slices reads its rows, a column slice at most 64 KiB more for each."""
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    fill = np.arange(LARGE[0] * LARGE[1], dtype="<u4")
    path = file_builder.write(
        tmp_path / "large.st", {"a": file_builder.Raw("U32", LARGE, fill.tobytes())}
    )
    row = LARGE[1] * 4
    with safe_open(path, framework, backend="pread") as handle:
        part = handle.get_slice("a")
        for index, size in ((slice(5, 9), 4 * row), ([slice(5, 6), slice(40, 42)], 3 * row)):
            part[index]
            assert min(memory.bytes_read_by(lambda i=index: part[i]) for _ in range(3)) == size
        few = min(memory.bytes_read_by(lambda: part[:, 3:5]) for _ in range(3))
        assert LARGE[0] * 8 <= few <= LARGE[0] * (8 + (64 << 10))
        assert as_array(part[:, 3:5]).tolist() == fill.reshape(LARGE)[:, 3:5].tolist()
