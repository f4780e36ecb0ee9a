"""Regions of parts, as indices into the tensors; and grids of regions."""

import itertools

import numpy as np
import pytest

from safetensors import safe_open
from safetensors._regions import SelectedPart, bounds_of, grid_of, sizes_of
from safetensors.numpy import save_file
from safetensors.plan import Shard

SHAPE = (4, 6)
ARRAY = np.arange(24, dtype=np.int32).reshape(SHAPE)
PARTS = [
    None,
    slice(1, 3),
    slice(None, None, 2),
    slice(3, 1),
    2,
    -1,
    np.int64(1),
    ...,
    (1, 2),
    (slice(None), slice(0, 6, 2)),
    (..., 3),
    (..., slice(-4, -1)),
    [slice(2, 4), slice(0, 1)],
    [3, 0, 3],
    ([slice(1, 2), 3], [slice(4, 6), -6, slice(2, 3)]),
    (None, slice(1, 4)),
    (1, None, slice(2, 5)),
    (slice(0, 2), None, ..., None),
    Shard(0, 1, 3),
    Shard(1, 0, 2, blocks=2),
]


@pytest.fixture(scope="module")
def handle(tmp_path_factory):
    path = tmp_path_factory.mktemp("regions") / "a.safetensors"
    save_file({"a": ARRAY}, path)
    with safe_open(path, "np", backend="pread") as f:
        yield f


class Truth:
    """An element of an array of bools, as torch has it."""

    dtype, shape = "torch.bool", ()

    def __index__(self):
        return 1

    def __repr__(self):
        return "Truth()"


def part_of(array, part):
    """Returns the part by NumPy, one axis at a time."""
    if hasattr(part, "part"):
        part = part.part(array.shape)
    items = part if isinstance(part, tuple) else () if part is None else (part,)
    used = sum(item is not None and item is not ... for item in items)
    axis = 0
    for item in items:
        if item is ...:
            axis += len(SHAPE) - used
        elif item is None:
            array = np.expand_dims(array, axis)
            axis += 1
        elif isinstance(item, (list, slice)):
            ones = item if isinstance(item, list) else [item]
            pieces = [np.atleast_1d(np.arange(array.shape[axis])[one]) for one in ones]
            array = np.take(array, np.concatenate(pieces), axis)
            axis += 1
        else:
            array = np.take(array, item, axis)
    return array


def ranges(size):
    """Returns all (begin, end) on an axis, some of them empty."""
    return [(b, e) for b in range(size + 1) for e in range(b, size + 1) if e > b or b in (0, size)]


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_every_region_of_a_part(handle, part):
    """The file's index of a region selects the region's elements, in their order."""
    wanted = part_of(ARRAY, part)
    selected = SelectedPart(part, SHAPE)
    assert selected.shape == wanted.shape
    tensor = handle.get_slice("a")
    new_axes = isinstance(part, tuple) and None in part
    for region in itertools.product(*map(ranges, wanted.shape)):
        if new_axes and 0 in sizes_of(region):
            continue  # no index of the tensor says that a new axis is empty
        index = selected.index(region)
        found = ARRAY if index is None else tensor[index]
        assert found.ndim == len(SHAPE)
        expected = wanted[tuple(slice(begin, end) for begin, end in region)]
        assert expected.shape == sizes_of(region)
        assert found.reshape(expected.shape).tolist() == expected.tolist()


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_parts_as_plain_indices(handle, part):
    """The plain index selects the part itself, also where NumPy would pair up two lists."""
    wanted = part_of(ARRAY, part)
    selected = SelectedPart(part, SHAPE)
    assert (selected.resolved is None) == selected.is_whole
    found = ARRAY if selected.is_whole else handle.get_slice("a")[selected.resolved]
    assert found.shape == wanted.shape
    assert found.tolist() == wanted.tolist()


def test_an_integer_for_an_axis_of_one():
    """It takes all elements, but is not the tensor, which has the axis."""
    selected = SelectedPart(0, (1, 4))
    assert selected.shape == (4,)
    assert not selected.is_whole


def test_whole_tensors_have_no_index():
    """None asks for all, which no index has to be resolved for."""
    for part in (None, ..., slice(None), (slice(0, 4), slice(0, 6))):
        selected = SelectedPart(part, SHAPE)
        assert selected.is_whole
        assert selected.index(((0, 4), (0, 6))) is None
        assert selected.index(((0, 4), (0, 5))) is not None
    assert not SelectedPart((None, ...), SHAPE).is_whole
    scalar = SelectedPart(None, ())
    assert scalar.shape == ()
    assert scalar.index(()) is None


@pytest.mark.parametrize(
    ("part", "kind", "text"),
    [
        (4, IndexError, "index 4 is out of bounds for an axis of size 4"),
        ([0, -5], IndexError, "index -5"),
        ((0, 0, 0), IndexError, "too many indices for a tensor with 2 axes"),
        ((..., ...), IndexError, "too many"),
        (slice(None, None, -1), ValueError, "found -1"),
        (slice(None, None, 0), ValueError, "found 0"),
        (True, TypeError, "not of bool"),
        (np.array([1, 2]), TypeError, "not of ndarray"),
        (Truth(), TypeError, "not of Truth"),
        ("a", TypeError, "not of str"),
        ([[1]], TypeError, "not of list"),
    ],
    ids=repr,
)
def test_other_indices(part, kind, text):
    """They raise the error that NumPy or torch would raise, or say what is accepted."""
    with pytest.raises(kind, match=text):
        SelectedPart(part, SHAPE)


def test_bounds():
    """Those of slices as JAX gives them: without bounds, or with both."""
    assert bounds_of((slice(None), slice(2, 5)), SHAPE) == ((0, 4), (2, 5))
    assert bounds_of((), ()) == ()


def test_grids():
    """Regions that are a product of cells of one size are a grid, any others are not."""
    rows = [((0, 2), (0, 6)), ((2, 4), (0, 6))]
    assert grid_of(rows, SHAPE) == ([2, 2, 1, 6], ([0, 1], slice(None), [0], slice(None)), [2, 1])
    cells = [((row, row + 2), (column, column + 2)) for row in (0, 2) for column in (0, 4)]
    grid = grid_of(cells, SHAPE)
    assert grid.shape == [2, 2, 3, 2]
    assert grid.cells == ([0, 1], slice(None), [0, 2], slice(None))
    assert grid.counts == [2, 2]
    assert grid_of([()], ()) == ([], (), [])
    assert grid_of(cells[:3], SHAPE) is None  # three corners of four
    assert grid_of([((0, 2), (0, 6)), ((2, 3), (0, 6))], SHAPE) is None  # of two sizes
    assert grid_of([((1, 3), (0, 6))], SHAPE) is None  # across two cells
    assert grid_of([((0, 3), (0, 6))], SHAPE) is None  # uneven
