"""Lists of slices in an index: several intervals of an axis, end to end in the result."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safetensors import SafetensorError, _core, safe_open
from support import file_builder, strategies
from support.dtype_table import numpy_dtype

WAYS = [
    (framework, backend)
    for framework in ("np", "pt", "flax", "tf", "mlx", "paddle")
    for backend in ("mmap", "pread")
]
MODULES = {"pt": "torch", "flax": "jax", "tf": "tensorflow", "mlx": "mlx.core", "paddle": "paddle"}
SHAPES = {"row": (9,), "matrix": (6, 8), "cube": (4, 3, 5), "one": (1, 1), "none": (0, 4)}
DTYPES = {"row": "U8", "matrix": "F32", "cube": "I16", "one": "F64", "none": "BOOL"}


def tensors():
    """The tensors of the file that these tests read."""
    return {name: file_builder.raw(DTYPES[name], shape) for name, shape in SHAPES.items()}


ARRAYS = {
    name: np.frombuffer(t.data, numpy_dtype(t.dtype)).reshape(t.shape)
    for name, t in tensors().items()
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with tensors of several shapes and types."""
    return file_builder.write(tmp_path_factory.mktemp("lists") / "lists.safetensors", tensors())


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def way(request):
    """A framework and a backend."""
    framework = request.param[0]
    module = pytest.importorskip(MODULES[framework]) if framework in MODULES else None
    if framework != "flax":
        yield request.param
        return
    # Without this option, F64 becomes F32.
    before = module.config.jax_enable_x64
    module.config.update("jax_enable_x64", True)
    yield request.param
    module.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def slices(path, way):
    """A slice handle for each tensor of the file."""
    handle = safe_open(path, way[0], backend=way[1])
    return {name: handle.get_slice(name) for name in SHAPES}


def expected(array, index):
    """Returns what lists select, by NumPy's slices and concatenations of one axis after another."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (array.ndim - (len(items) - 1 - items.count(None)))
    axis = 0
    for item in items:
        if item is None:
            array = np.expand_dims(array, axis)
            axis += 1
            continue
        before = (slice(None),) * axis
        if isinstance(item, list):
            pieces = [array[(*before, slice(0, 0))]]
            for each in item:
                is_slice = isinstance(each, slice)
                pieces.append(array[(*before, each if is_slice else [each])])
            array = np.concatenate(pieces, axis)
            axis += 1
        else:
            array = array[(*before, item)]
            axis += isinstance(item, slice)
    return array


def check(slices, name, index):
    """Checks the result, and that its shape and type are those of the expression."""
    wanted = expected(ARRAYS[name], index)
    found = np.asarray(slices[name][index])
    assert found.dtype == wanted.dtype, (name, index)
    assert found.shape == wanted.shape, (name, index)
    assert np.array_equal(found, wanted), (name, index)


def bounds():
    """Bounds of a slice, also out of range."""
    return st.one_of(st.none(), st.integers(-10, 10))


parts = st.builds(slice, bounds(), bounds(), st.sampled_from([None, 1, 1, 2, 3]))


@st.composite
def cases(draw):
    """Draws a tensor and an expression with at least one list that holds a slice."""
    name = draw(st.sampled_from(list(SHAPES)))
    shape = SHAPES[name]
    items = []
    for size in shape:
        one = st.integers(-size, size - 1)
        integers = [one | one.map(np.int64)] if size else []
        entries = st.one_of(parts, st.lists(st.one_of(parts, *integers), max_size=4), *integers)
        items.append(draw(entries))
    at = draw(st.integers(0, len(shape) - 1))
    items[at] = [*draw(st.lists(parts, max_size=2)), draw(parts)]
    items = items[: draw(st.integers(at + 1, len(shape)))]
    if draw(st.booleans()):
        items.insert(0 if len(items) == len(shape) else len(items), Ellipsis)
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    return name, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def test_lists(slices):
    """Any expression of lists, slices and integers, against slices and concatenations."""

    @strategies.examples(200)
    @given(cases())
    def run(case):
        check(slices, *case)

    run()


def test_lists_of_integers_alone_are_the_frameworks(path):
    """Two lists of integers select elements, as in NumPy and torch; a slice in one changes that."""
    torch = pytest.importorskip("torch")
    for framework in ("np", "pt"):
        for backend in ("mmap", "pread"):
            part = safe_open(path, framework, backend=backend).get_slice("matrix")
            matrix = ARRAYS["matrix"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pairs = part[[0, 2], [1, 3]]
            assert np.array_equal(np.asarray(pairs), matrix[[0, 2], [1, 3]])
            whole = part[[0, slice(2, 3)], [1, 3]]
            assert np.array_equal(np.asarray(whole), matrix[[0, 2]][:, [1, 3]])
            assert isinstance(whole, torch.Tensor) == (framework == "pt")


BAD = {
    "negative step": ([slice(None, None, -1)], ValueError, "step must be a positive integer"),
    "negative step beside": (([slice(0, 2)], slice(None, None, -1)), ValueError, "positive"),
    "step of 0": ([slice(0, 2, 0)], ValueError, "positive"),
    "out of range": ([slice(0, 2), 6], IndexError, "[6] with shape [6, 8]: index 6 out of"),
    "beside": (([slice(0, 2)], 8), IndexError, "index 8 out of bounds"),
    "too many": (([slice(0, 2)], 0, 0), IndexError, "more slicing indexes than dimensions"),
    "mask": ([slice(0, 2), True], SafetensorError, "integers and slices only, not bool"),
    "None": ([slice(0, 2), None], SafetensorError, "a list in an index holds integers and slices"),
    "list": ([slice(0, 2), [1]], SafetensorError, "integers and slices only, not list"),
    "array": (([slice(0, 2)], np.array([1])), SafetensorError, "only, not ndarray"),
    "huge": ([slice(0, 2), 2**70], IndexError, "the int is too large"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_lists(path, slices, name):
    """The error names the file and the tensor, and says what was found."""
    index, error, text = BAD[name]
    with pytest.raises(error) as caught:
        slices["matrix"][index]
    assert isinstance(caught.value, SafetensorError)
    assert text in str(caught.value)
    assert "tensor `matrix`" in str(caught.value)
    assert (caught.value.subject, caught.value.path) == ("matrix", str(path))


class Rows:
    """An index object: what `part` returns is the index."""

    def __init__(self, index):
        self.index = index
        self.shapes = []

    def part(self, shape):
        """Returns the index for a tensor of this shape."""
        self.shapes.append(shape)
        if isinstance(self.index, Exception):
            raise self.index
        return self.index


@pytest.mark.parametrize("index", [3, slice(1, 3), (..., 2), None, [slice(4, 6), slice(0, 1)]])
def test_objects_that_are_parts(slices, index):
    """An object with a method `part` stands for what that returns for the tensor's shape."""
    rows = Rows(index)
    found = np.asarray(slices["matrix"][rows])
    assert rows.shapes == [(6, 8)]
    assert all(type(size) is int for size in rows.shapes[0])
    assert np.array_equal(found, expected(ARRAYS["matrix"], index))


def test_objects_that_fail(slices):
    """What `part` raises propagates; an object that it returns is no index."""
    with pytest.raises(KeyError, match="why"):
        slices["matrix"][Rows(KeyError("why"))]
    with pytest.raises((IndexError, TypeError, SafetensorError)):
        slices["matrix"][Rows(Rows(1))]


def test_a_list_that_changes_while_it_is_read(slices):
    """An item may run code when it is converted."""
    items = []

    class Item:
        def __index__(self):
            items.clear()
            return 1

    items.extend([Item(), slice(0, 2)])
    assert np.array_equal(np.asarray(slices["matrix"][items]), ARRAYS["matrix"][[1, 0, 1]])


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_part_of_a_mapped_file_is_a_copy(path, framework):
    """It is one dense array that shares no memory with the file's pages."""
    if framework == "pt":
        pytest.importorskip("torch")
    with safe_open(path, framework) as handle:
        whole = handle.get_tensor("matrix")
        found = handle.get_slice("matrix")[[slice(0, 2), slice(2, 4)]]
        found[:] = -1
        assert np.array_equal(np.asarray(whole), ARRAYS["matrix"])
        whole[0, 0] = 5  # the copy shows what the views of the file show
        assert np.asarray(handle.get_slice("matrix")[[slice(0, 1)]])[0, 0] == 5
        assert (np.asarray(found) == -1).all()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_parts_of_f4(tmp_path, backend, framework):
    """Lists of other axes take whole bytes; the last axis must be whole."""
    pytest.importorskip("ml_dtypes" if framework == "np" else "torch")
    raw = file_builder.raw("F4", (6, 4))
    path = file_builder.write(tmp_path / "f4.st", {"a": raw})
    with safe_open(path, framework, backend=backend) as handle:
        part = handle.get_slice("a")
        try:
            whole = handle.get_tensor("a")
        except (AttributeError, SafetensorError) as error:
            pytest.skip(f"{framework} has no type for F4: {error}")
        found = part[[slice(4, 6), 0]]
        if framework == "pt":
            import torch

            found, whole = found.view(torch.uint8), whole.view(torch.uint8)
            assert found.tolist() == torch.cat([whole[4:6], whole[:1]]).tolist()
        else:
            assert found.astype("f4").tolist() == whole.astype("f4")[[4, 5, 0]].tolist()
        for index in ((..., [slice(0, 2)]), ([slice(0, 2)], slice(0, 2)), ([slice(0, 2)], 0)):
            with pytest.raises(SafetensorError, match="whole last axis|byte boundaries.*`a`"):
                part[index]


PLAN = {
    "matrix": [slice(0, 2), slice(3, 4), slice(5, 6)],
    "cube": (slice(1, 3), [2, 0], [slice(3, 5), 0]),
    "row": [7, 3, 3],
    "one": Rows((slice(None), [slice(0, 1)])),
    "none": Rows(None),
}


def load(path, device, backend, plan):
    """Loads the parts of a plan by the core, and returns them by name."""
    handle = safe_open(path, "pt", backend=backend)
    requests = [(handle, name, part, None) for name, part in plan.items()]
    (tensors,) = _core._load_groups([(device, requests)])
    return dict(zip(plan, tensors, strict=True))


def check_plan(found):
    """Checks what a load with PLAN returned."""
    assert set(found) == set(PLAN)
    for name, part in PLAN.items():
        index = part.index if isinstance(part, Rows) else part
        wanted = ARRAYS[name] if index is None else expected(ARRAYS[name], index)
        assert tuple(found[name].shape) == wanted.shape
        assert np.array_equal(found[name].numpy(), wanted), name


@pytest.mark.parametrize("backend", ["mmap", "pread", "direct"])
def test_requests(path, backend):
    """All lists of a request are intervals, also those of integers alone."""
    pytest.importorskip("torch")
    check_plan(load(path, "cpu", backend, PLAN))


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_cuda(path, cuda, backend):
    """The engine copies the ranges alone to a device, for requests and for slices."""
    pytest.importorskip("torch")
    from support import fake_cuda

    check_plan(load(path, "cuda:0", backend, PLAN))
    with safe_open(path, "pt", device="cuda:0", backend=backend) as handle:
        before = cuda.stat(fake_cuda.COPIED_BYTES)
        found = handle.get_slice("matrix")[PLAN["matrix"]]
        assert cuda.stat(fake_cuda.COPIED_BYTES) - before == found.nbytes == 4 * 8 * 4
        assert np.array_equal(found.numpy(), expected(ARRAYS["matrix"], PLAN["matrix"]))


def test_read_request(path):
    """The memory that another package allocated is filled with the ranges alone."""
    pytest.importorskip("torch")
    wanted = expected(ARRAYS["cube"], PLAN["cube"])
    memory = np.zeros_like(wanted)
    _core._read_request(
        safe_open(path, "pt"), "cube", PLAN["cube"], memory.ctypes.data, memory.nbytes
    )
    assert np.array_equal(memory, wanted)


@pytest.mark.parametrize(
    ("part", "error"),
    [([slice(0, 2), 6], IndexError), ([slice(None, None, -1)], ValueError),
     ([True, False], SafetensorError), ([[0]], SafetensorError), ("x", SafetensorError)],
)  # fmt: skip
def test_bad_requests(path, part, error):
    """The error names the tensor."""
    pytest.importorskip("torch")
    with pytest.raises(error, match="`matrix`") as caught:
        load(path, "cpu", "pread", {"matrix": part})
    assert isinstance(caught.value, SafetensorError)
