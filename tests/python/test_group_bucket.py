"""Many short tensors in one message: their forms, the reads, and the copies out of it."""

import math
from array import array
from unittest import mock

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from safetensors import SafetensorError, _extra, safe_open  # noqa: E402
from safetensors._group import schedule  # noqa: E402
from safetensors._group.bucket import Packer  # noqa: E402
from safetensors._group.schedule import Broadcast  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from support.rank_loads import loads, offsets, scheduled, small_limits  # noqa: E402


def forms(path, names):
    with safe_open(path, "pt") as file:
        return _extra._forms(file, names)


def test_forms(tmp_path):
    """Tensors of one dtype and shape have one form, also if other tensors lie between them."""
    tensors = {
        "scalar": torch.tensor(7.0),
        "matrix": torch.zeros(2, 3),
        "scalar 2": torch.tensor(8.0),
        "vector": torch.zeros(6),
        "empty": torch.zeros(0, 3),
        "empty 2": torch.zeros(2, 0, 3),
        "integers": torch.zeros(2, 3, dtype=torch.int32),
        "matrix 2": torch.ones(3, 2).T.contiguous(),
        "halves": torch.zeros(2, 3, dtype=torch.float16),
        "bytes": torch.zeros(6, dtype=torch.uint8),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path)
    found, places = forms(path, [*tensors])
    assert [found[place] for place in places] == [
        (tuple(each.shape), each.nbytes) for each in tensors.values()
    ]
    kinds = [(each.dtype, each.shape) for each in tensors.values()]
    assert places == [[*dict.fromkeys(kinds)].index(kind) for kind in kinds]
    assert forms(path, ["vector", "scalar", "vector"]) == ([((6,), 24), ((), 4)], [0, 1, 0])
    assert forms(path, []) == ([], [])


def test_forms_of_what_is_not_there(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(SafetensorError, match=r"does not contain tensor 'b'|tensor b"):
        forms(path, ["a", "b"])
    with pytest.raises(TypeError):
        forms(path, ["a", 3])
    with safe_open(path, "pt") as file:
        pass
    with pytest.raises(SafetensorError):
        _extra._forms(file, ["a"])


def copy(source, moves):
    _extra._copy_rows(source.ctypes.data, source.nbytes, array("q", [n for m in moves for n in m]))


@given(st.data())
def test_rows_are_copied(data):
    """As numpy copies between arrays with strides, and nothing beside them."""
    shape = [data.draw(st.integers(1, 9)) for _ in range(4)]
    source = np.random.default_rng(0).integers(0, 256, (shape[0], shape[1]), dtype=np.uint8)
    to = np.zeros((shape[2] + shape[0], shape[3] + shape[1]), dtype=np.uint8)
    begin, end = sorted(data.draw(st.integers(0, shape[1])) for _ in range(2))
    first = data.draw(st.integers(0, shape[0] - 1))
    row, column = data.draw(st.integers(0, shape[2])), data.draw(st.integers(0, shape[3]))
    expected = to.copy()
    rows = shape[0] - first
    expected[row : row + rows, column : column + end - begin] = source[first:, begin:end]
    address = to.ctypes.data + row * to.strides[0] + column
    offset = first * shape[1] + begin
    copy(source, [(address, offset, end - begin, rows, to.strides[0], shape[1])])
    assert np.array_equal(to, expected)


def test_several_moves():
    source = np.arange(12, dtype=np.uint8)
    to = np.zeros(6, dtype=np.uint8)
    copy(source, [])
    copy(source, [(to.ctypes.data, 9, 3, 1, 0, 0), (to.ctypes.data + 3, 0, 1, 3, 1, 5)])
    assert to.tolist() == [9, 10, 11, 0, 5, 10]
    copy(source, [(to.ctypes.data, 0, 1, 6, 1, 1), (to.ctypes.data + 1, 6, 1, 2, 1, 5)])
    assert to.tolist() == [0, 6, 11, 3, 4, 5]


@pytest.mark.parametrize(
    "move",
    [
        (13, 0, 1, 0, 0),
        (12, 1, 1, 0, 0),
        (0, 2, 12, 1, 1),
        (1, 1, 5, 1, 3),
        (0, 1, 1 << 62, 0, 4),
        (0, -1, 1, 0, 0),
        (-1, 1, 1, 0, 0),
        (0, 1, 2, 0, -1),
        (0, 1, 0, 0, 0),
        (0, 1, -1, 1, 1),
    ],
)
def test_rows_outside_of_the_source_are_refused(move):
    """Before anything is copied."""
    source, to = np.ones(12, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    offset, nbytes, rows, to_stride, from_stride = move
    moves = [
        (to.ctypes.data, 0, 1, 1, 0, 0),
        (to.ctypes.data, offset, nbytes, rows, to_stride, from_stride),
    ]
    with pytest.raises(ValueError, match="outside of the source"):
        copy(source, moves)
    assert not to.any()


def test_half_a_move_is_refused():
    with pytest.raises(ValueError, match="6 integers of 64 bits"):
        _extra._copy_rows(0, 0, array("q", [0] * 9))


@pytest.mark.parametrize("unpack", ["unpack", "_unpack_by_torch"])
@settings(deadline=None, max_examples=150)
@given(load=loads(), has_addresses=st.booleans())
def test_blocks_arrive(unpack, load, has_addresses):
    """All that ranks share is sent in messages, of which each rank takes its own bytes."""
    tensors, taken = load
    with small_limits(), mock.patch.object(schedule, "_MIN_EXCHANGE_NBYTES", 1 << 30):
        planned = scheduled(tensors, taken)
        whole = [
            torch.randint(256, (math.prod(each.shape),), dtype=torch.uint8) for each in tensors
        ]
        shared = {number for number, each in enumerate(planned.frames) if each is not None}
        for rank, parts in enumerate(taken):
            expected = {
                number: whole[number][offsets(tensors[number].shape, part)]
                for number, part in enumerate(parts)
                if number in shared and part is not None
            }
            local = {number: torch.zeros_like(each) for number, each in expected.items()}
            addresses = [
                local[number].data_ptr() if has_addresses and number in local else 0
                for number in range(len(tensors))
            ]
            packer = Packer(rank, planned.frames, addresses, local.__getitem__)
            for step in planned.steps:
                if isinstance(step, Broadcast):
                    data = torch.zeros(step.nbytes + 7, dtype=torch.uint8)  # buffers are longer
                    for number, axes, to in packer.requests(step.blocks, data):
                        to.copy_(whole[number][offsets(tensors[number].shape, axes)])
                    getattr(packer, unpack)(step.blocks, data)
            assert all(torch.equal(local[number], each) for number, each in expected.items())
