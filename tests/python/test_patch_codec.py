"""The codec of patches as Python calls it: buffers, digests, errors.

Its bytes are compared with the reference of the documents in test_delta_reference.py.
"""

import hashlib

import numpy as np
import pytest

from safetensors import SafetensorError, _extra, delta
from support.patch_records import change_of

UNITS = 3 * 65536


def a_change(dtype="BF16", units=UNITS):
    """Returns the bytes of a tensor, and those in which some units differ by one."""
    unit = {"BF16": 2, "F32": 4}[dtype]
    old = np.random.default_rng(3).integers(0, 256, unit * units, "u1").view(f"<u{unit}")
    new = old.copy()
    new[::50] += 1
    return old.tobytes(), new.tobytes()


def a_patch(dtype="BF16", units=UNITS, **options):
    """Returns old and new bytes, and the record and values between them."""
    old, new = a_change(dtype, units)
    return old, new, *_extra._encode_patch(old, new, dtype, [units], **options)[:2]


@pytest.mark.parametrize("set_values", [False, True])
def test_a_wrong_base_is_named_and_left_alone(set_values):
    old, new, record, values = a_patch(set_values=set_values)
    patch = change_of(record, values, "BF16", name="h.0.weight")

    def check(tensor):
        return patch.check("BF16", [UNITS], tensor, False)

    at = np.empty(patch.changed, "i8")
    patch.positions(at)
    for start in [old, new]:
        other = np.frombuffer(start, "<u2").copy()
        other[at[at > 65536][0]] ^= 0x400
        before = other.tobytes()
        for call in [check, patch.apply]:
            with pytest.raises(delta.WrongBaseError) as caught:
                call(other)
            assert caught.value.code == "wrong_base"
            assert caught.value.subject == "h.0.weight"
            block = (
                "block 1 (elements 65,536 to 131,072)" if start is old else "block 0 (elements 0"
            )
            assert "`h.0.weight`" in str(caught.value)
            assert block in str(caught.value)
            assert other.tobytes() == before
    with pytest.raises(delta.WrongBaseError, match="393,214 bytes"):
        check(old[:-2])


def test_buffers_may_be_at_any_address():
    old, new, record, values = a_patch("F32", 70000)
    room = bytearray(len(old) + 1)
    tensor = memoryview(room)[1:]
    tensor[:] = old
    odd = [memoryview(b"x" + part)[1:] for part in (old, new)]
    assert _extra._encode_patch(*odd, "F32", [70000])[:2] == (record, values)
    change_of(record, values, "F32").apply(tensor)
    assert tensor == new


def test_differences_need_a_base():
    old, _, record, values = a_patch()
    patch = change_of(record, values, "BF16")
    out = np.empty(patch.changed, "<u2")
    with pytest.raises(SafetensorError, match='values="set"'):
        patch.new_values(None, out)
    with pytest.raises(SafetensorError, match="room for"):
        patch.new_values(old, out[1:])
    with pytest.raises(SafetensorError, match="room for"):
        patch.positions(np.empty(1, "i8"))
    _, _, record, values = a_patch(set_values=True)
    patch = change_of(record, values, "BF16")
    out = np.empty(patch.changed, "<u2")
    patch.new_values(None, out)
    assert out.tobytes() == values


def test_digests_are_the_given_ones():
    def sha(data):
        return "sha256:" + hashlib.sha256(b"BF16 [65536]\n" + data).hexdigest()

    old, new = a_change(units=65536)
    record, values, *digests = _extra._encode_patch(
        old, new, "BF16", [65536], base_digest=sha(old), target_digest=sha(new)
    )
    patch = change_of(record, values, "BF16", algorithm="sha256")
    assert (patch.base, patch.target) == (sha(old), sha(new)) == tuple(digests[1:])
    assert "add8" in patch.codes
    assert patch.check("BF16", [65536], new, False) == "applied"  # hashlib says so
    with pytest.raises(delta.WrongBaseError):
        patch.check("BF16", [65536], bytes(len(old)), False)
    with pytest.raises(delta.PatchError, match="digest"):
        change_of(record, values, "BF16")
    with pytest.raises(SafetensorError, match="two algorithms"):
        _extra._encode_patch(old, new, "BF16", [65536], base_digest=sha(old))


def test_whole_and_removed_tensors():
    data = np.arange(6, dtype="<f4").tobytes()
    digest = "xxh3-128:" + "12" * 16
    record = _extra._whole_patch(data, "F32", [2, 3], base_digest=None)
    patch = change_of(record, data, "F32", (2, 3))
    assert (patch.kind, patch.base) == ("whole", None)
    hasher = _extra._TensorHasher("F32", [2, 3])
    hasher.update(data)
    assert patch.target == hasher.digest()
    assert (patch.unit, patch.units, patch.shape) == (0, 6, (2, 3))
    assert (patch.changed, patch.codes) == (6, {})
    record = _extra._whole_patch(data, "F32", [2, 3], base_digest=digest, target_digest=digest)
    patch = change_of(record, data, "F32", (2, 3))
    assert (patch.base, patch.target) == (digest, digest)
    record = _extra._whole_patch(None, "F32", [2, 3], base_digest=digest)
    assert len(record) == 96
    patch = change_of(record, None, "F32")
    assert (patch.kind, patch.base, patch.target) == ("removed", digest, None)
    with pytest.raises(delta.WrongBaseError, match="not that of the base"):
        patch.check("F32", [2, 3], data, False)
    with pytest.raises(SafetensorError, match="no blocks"):
        patch.positions(bytearray())
    with pytest.raises(SafetensorError, match="base_digest"):
        _extra._whole_patch(None, "F32", [2, 3], base_digest=None)


def test_arguments_are_checked():
    data = bytes(8)
    with pytest.raises(SafetensorError, match="8 bytes, its shape 12"):
        _extra._encode_patch(data, data, "F32", [3])
    with pytest.raises(SafetensorError, match="8 bytes, its shape 4"):
        _extra._encode_patch(data[:4], data, "F32", [1])
    with pytest.raises(SafetensorError, match="dtype"):
        _extra._encode_patch(data, data, "F31", [2])
    with pytest.raises(SafetensorError, match="dtype and shape"):
        _extra._encode_patch(data, data, "F32", [2**62, 2**62])
    with pytest.raises(SafetensorError, match="dtype and shape"):
        _extra._encode_patch(data, data, "F4", [3])
    with pytest.raises(SafetensorError, match="algorithm"):
        change_of(data, data, "F32", algorithm="md5")
    old, _, record, values = a_patch()
    patch = change_of(record, values, "BF16")
    with pytest.raises(BufferError):
        patch.apply(old)
