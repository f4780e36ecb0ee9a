"""_read_requests, which loads tensors and parts of several files to memory in one load."""

import itertools

import numpy as np
import pytest

from safetensors import SafetensorError, _core, safe_open
from safetensors.numpy import save_file
from support import children, file_builder
from support.file_builder import raw
from support.range_readers import FailingReader, MemoryReader

ARRAY = np.arange(96, dtype=np.int32).reshape(8, 12)


@pytest.fixture
def handle(tmp_path):
    save_file({"a": ARRAY, "b": ARRAY[:2] + 1}, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "np", backend="pread") as f:
        yield f


def to(array):
    """Returns the last two parts of a request."""
    return array.ctypes.data, array.nbytes


def test_tensors_and_parts_of_several_files(handle, tmp_path):
    """Any index of a part, and handles of any backend and framework."""
    save_file({"c": ARRAY * 2}, tmp_path / "c.safetensors")
    whole, rows, columns, other = (np.zeros(shape, np.int32) for shape in [24, (3, 12), 24, 96])
    calls = []
    with safe_open(tmp_path / "c.safetensors", "np") as mapped:
        requests = [
            (handle, "b", None, *to(whole)),
            (handle, "a", slice(2, 5), *to(rows)),
            (handle, "a", (slice(None), [slice(4, 6), 1]), *to(columns)),
            (mapped, "c", ..., *to(other)),
        ]
        _core._read_requests(requests, lambda done, total: calls.append((done, total)))
    assert np.array_equal(whole, (ARRAY[:2] + 1).ravel())
    assert np.array_equal(rows, ARRAY[2:5])
    assert np.array_equal(columns, ARRAY[:, [4, 5, 1]].ravel())
    assert np.array_equal(other, ARRAY.ravel() * 2)
    total = sum(request[4] for request in requests)
    assert calls[-1] == (total, total)


@pytest.mark.parametrize("cells", [*itertools.product([1, 2, 8], [1, 3, 4, 12])], ids=str)
def test_cells_of_a_tensor(handle, cells):
    """One request reads all cells of a grid, each to memory of its own, with room between them."""
    rows, columns = (size // count for size, count in zip(ARRAY.shape, cells, strict=True))
    step = rows * columns * 4 + 8
    memory = np.full(cells[0] * cells[1] * step, 255, np.uint8)
    shape = [cells[0], rows, cells[1], columns]
    strides = [cells[1] * step, columns * 4, step, 4]
    request = (handle, "a", ..., memory.ctypes.data, ARRAY.nbytes, shape, strides)
    _core._read_requests([request])
    for i, (row, column) in enumerate(itertools.product(*map(range, cells))):
        cell = memory[i * step : (i + 1) * step]
        wanted = ARRAY[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        assert cell[:-8].tobytes() == wanted.tobytes()
        assert (cell[-8:] == 255).all()


def test_some_cells(handle):
    """The index selects among them."""
    memory = np.zeros((2, 8, 3), np.int32)
    index = (..., [0, 2], slice(None))
    request = (handle, "a", index, *to(memory), [8, 4, 3], [12, 8 * 12, 4])
    _core._read_requests([request])
    assert np.array_equal(memory, ARRAY.reshape(8, 4, 3)[:, [0, 2]].transpose(1, 0, 2))


def test_cells_share_requests():
    """The columns of a remote tensor are read once, whatever their number."""
    array = np.arange(1 << 20, dtype=np.int32).reshape(4096, 256)
    reader = MemoryReader(file_builder.to_bytes({"a": array}))
    memory = np.zeros((8, 4096, 32), np.int32)
    with safe_open(reader, "np") as f:
        strides = [32 * 4, 4096 * 32 * 4, 4]
        _core._read_requests([(f, "a", ..., *to(memory), [4096, 8, 32], strides)])
    assert np.array_equal(memory, array.reshape(4096, 8, 32).transpose(1, 0, 2))
    assert reader.nbytes <= array.nbytes


@pytest.mark.parametrize(
    ("request_of", "text"),
    [
        (lambda f, to: (f, "absent", None, *to), "absent"),
        (lambda f, to: (f, "a", None, to[0], 383), "has 384 bytes, not 383"),
        (lambda f, to: (f, "a", slice(0, 1), *to), "has 48 bytes, not 384"),
        (lambda f, to: (f, "a", slice(None, None, -1), *to), "step"),
        (lambda f, to: (f, "a", "b", *to), "not of str"),
        (lambda f, to: (f, "a", ..., *to, [97], [4]), "another number of elements"),
        (lambda f, to: (f, "a", ..., *to, [2**63, 2**63], [4, 4]), "another number of elements"),
        (lambda f, to: (f, "a", ..., *to, [96], [4, 4]), "strides"),
        (lambda f, to: (f, "a", slice(0, 97), *to, [96], [2**63]), "."),
    ],
)
def test_wrong_requests(handle, request_of, text):
    """Nothing is read."""
    memory = np.full(ARRAY.size + 1, 7, np.int32)
    request = request_of(handle, (memory.ctypes.data, ARRAY.nbytes))
    with pytest.raises(SafetensorError, match=text):
        _core._read_requests([request])
    assert (memory == 7).all()


def test_other_wrong_requests(handle):
    with pytest.raises(TypeError, match="five or seven parts"):
        _core._read_requests([(handle, "a", None, 0)])
    with pytest.raises(ValueError, match="no address"):
        _core._read_requests([(handle, "a", None, 0, ARRAY.nbytes)])
    handle.close()
    with pytest.raises(SafetensorError, match="closed"):
        _core._read_requests([(handle, "a", None, 1, ARRAY.nbytes)])


def test_failures_end_the_load():
    """Of the reader, and of the progress function."""
    array = np.zeros(1 << 20, np.int32)
    memory = np.zeros_like(array)
    content = file_builder.to_bytes({"a": array})
    failing, whole = FailingReader(content, OSError("gone")), MemoryReader(content)
    with safe_open(failing, "np") as f, pytest.raises(SafetensorError, match="memory://model"):
        _core._read_requests([(f, "a", None, *to(memory))])
    with safe_open(whole, "np") as f, pytest.raises(ZeroDivisionError):
        _core._read_requests([(f, "a", None, *to(memory))], lambda done, total: 1 // 0)


def test_packed_elements(tmp_path):
    """Rows of F4, two elements in a byte."""
    tensor = raw("F4", (4, 8))
    path = file_builder.write(tmp_path / "a.safetensors", {"a": tensor})
    memory = np.zeros((2, 16), np.uint8)
    with safe_open(path, "np") as f:
        request = (f, "a", ([1, 0], ...), *to(memory), [2, 2, 1, 8], [16, 4, 4, 0])
        memory[:] = 0
        _core._read_requests([(*request[:4], 16, *request[5:])])
    data = np.frombuffer(tensor.data, np.uint8).reshape(2, 8)
    assert np.array_equal(memory[:, :8], data[::-1])


def test_torch_is_not_needed(tmp_path):
    """Neither to open the files of a model, nor to read them."""
    save_file({"a": ARRAY}, tmp_path / "a.safetensors")
    code = """
        sys.modules["torch"] = None
        import numpy as np
        from safetensors import _core

        handle = _core._open_shard(sys.argv[1], "pread")
        memory = np.zeros((4, 12), np.int32)
        request = (handle, "a", slice(4, 8), memory.ctypes.data, memory.nbytes)
        _core._read_requests([request])
        print(memory.sum())
    """
    assert children.run(code, tmp_path / "a.safetensors").split() == [str(ARRAY[4:].sum())]
