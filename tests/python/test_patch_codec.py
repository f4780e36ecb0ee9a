"""The codec of patches gives the bytes of an oracle in NumPy, and applies them exactly."""

import copy
import hashlib
import pickle

import numpy as np
import pytest

from safetensors import SafetensorError, _core, delta
from support import patch_oracle as oracle

SIZES = [0, 1, 63, 64, 65, 65535, 65536, 65537, 3 * 65536 + 1]
ONE_OF_EACH = ["U8", "F4", "F6_E3M2", "BF16", "F32", "F64", "C64"]


def shape_of(dtype, units):
    """Returns a shape of as many units; for sub-byte types, of about as many bytes."""
    if dtype == "F4":
        return [units, 2]
    if dtype.startswith("F6"):
        return [units // 3, 4]
    return [units]


def tensor_bytes(rng, dtype, units):
    """Returns random bytes, and as an array of units."""
    shape = shape_of(dtype, units)
    nbytes = int(np.prod(shape)) * oracle.BITS[dtype] // 8
    return shape, rng.integers(0, 256, nbytes, dtype="u1").tobytes()


def changed_at(rng, units, share):
    """Returns which units change."""
    if share == "ends":
        return np.unique([0, units - 1])
    if share == "runs":
        return np.flatnonzero(np.arange(units) % 5000 < 300)
    if share == "one":
        return rng.integers(0, units, 1)
    return np.flatnonzero(rng.random(units) < share)


def changed(rng, old, dtype, share, kind):
    """Returns the bytes of a tensor after a change."""
    unit = oracle.unit_of(dtype)
    new = np.frombuffer(old, f"<u{unit}").copy()
    if not new.size:
        return old
    at = changed_at(rng, new.size, share)
    with np.errstate(over="ignore"):
        if kind == "ulp":
            new[at] += rng.integers(0, 2, at.size).astype(new.dtype) * 2 - new.dtype.type(1)
        elif kind == "sign":
            new[at] ^= new.dtype.type(1 << (8 * unit - 1))
        elif kind == "edge":  # differences at the limits of a signed byte
            steps = rng.choice([-129, -128, -127, -1, 1, 126, 127, 128], at.size)
            new[at] += steps.astype("i8").astype(new.dtype)
        else:
            new[at] = rng.integers(0, 256, at.size * unit, dtype="u1").view(new.dtype)
    return new.tobytes()


def check_case(old, new, dtype, shape, set_values=False):
    """Compares the record with the oracle's, and applies it."""
    record, values, count = _core._encode_patch(old, new, dtype, shape, set_values=set_values)
    assert (record, values) == oracle.encode(old, new, dtype, shape, set_values)
    assert (count == 0) == (old == new)
    if old == new:
        return {}
    packed = oracle.BITS[dtype] < 8
    patch = _core._PatchRecord(record, values, "U8" if packed else dtype, "xxh3-128", "w")
    assert (patch.kind, patch.shape, patch.changed) == ("blocks", tuple(shape), count)
    assert patch.base is not None
    assert patch.base != patch.target
    tensor = bytearray(old)
    assert patch.check(tensor) == "base"
    unit = patch.unit
    at = np.empty(count, "i8")
    patch.positions(at)
    units = np.empty(count, f"<u{unit}")
    patch.new_values(old, units)
    expected = np.frombuffer(old, units.dtype).copy()
    assert (np.diff(at) > 0).all()
    expected[at] = units
    assert expected.tobytes() == new
    patch.apply(tensor)
    assert tensor == new
    assert patch.check(tensor) == "applied"
    with pytest.raises(delta.AlreadyAppliedError, match="`w`"):
        patch.apply(tensor)
    assert tensor == new
    return patch.codes


@pytest.mark.parametrize("dtype", sorted(oracle.BITS))
def test_every_dtype_has_the_oracles_bytes(dtype):
    rng = np.random.default_rng(1)
    for units in [0, 3, 65537]:
        shape, old = tensor_bytes(rng, dtype, units)
        for share in [0.02, "one", 1.0]:
            check_case(old, changed(rng, old, dtype, share, "ulp"), dtype, shape)


@pytest.mark.parametrize("dtype", ONE_OF_EACH)
@pytest.mark.parametrize("set_values", [False, True])
def test_sizes_and_patterns_have_the_oracles_bytes(dtype, set_values):
    rng = np.random.default_rng(2)
    used = set()
    for units in SIZES:
        shape, old = tensor_bytes(rng, dtype, units)
        for share in ["one", "ends", "runs", 1e-4, 0.003, 0.03, 0.5, 1.0]:
            kind = ["ulp", "sign", "edge", "random"][rng.integers(4)]
            new = changed(rng, old, dtype, share, kind)
            used |= check_case(old, new, dtype, shape, set_values).keys()
    assert used >= {"same", "gap8", "pos16", "bitmap", "runs", "set"}
    assert ("add8" in used) == (not set_values and oracle.unit_of(dtype) > 1)


def a_patch(dtype="BF16", units=3 * 65536, **options):
    """Returns old and new bytes, and the record and values between them."""
    rng = np.random.default_rng(3)
    shape, old = tensor_bytes(rng, dtype, units)
    new = changed(rng, old, dtype, 0.02, "ulp")
    return old, new, *_core._encode_patch(old, new, dtype, shape, **options)[:2]


@pytest.mark.parametrize("set_values", [False, True])
def test_a_wrong_base_is_named_and_left_alone(set_values):
    old, new, record, values = a_patch(set_values=set_values)
    patch = _core._PatchRecord(record, values, "BF16", "xxh3-128", "h.0.weight")
    at = np.empty(patch.changed, "i8")
    patch.positions(at)
    for start in [old, new]:
        other = np.frombuffer(start, "<u2").copy()
        other[at[at > 65536][0]] ^= 0x400
        before = other.tobytes()
        for call in [patch.check, patch.apply]:
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
        patch.check(old[:-2])


def test_units_that_do_not_change_are_not_compared():
    old, new, record, values = a_patch()
    patch = _core._PatchRecord(record, values, "BF16", "xxh3-128")
    at = np.empty(patch.changed, "i8")
    patch.positions(at)
    other = np.frombuffer(old, "<u2").copy()
    rest = np.setdiff1d(np.arange(other.size), at)
    other[rest] += 1
    patch.apply(other)
    assert (other[at] == np.frombuffer(new, "<u2")[at]).all()
    assert (other[rest] == np.frombuffer(old, "<u2")[rest] + np.uint16(1)).all()


def test_buffers_may_be_at_any_address():
    old, new, record, values = a_patch("F32", 70000)
    room = bytearray(len(old) + 1)
    tensor = memoryview(room)[1:]
    tensor[:] = old
    odd = [memoryview(b"x" + part)[1:] for part in (old, new, record, values)]
    assert _core._encode_patch(odd[0], odd[1], "F32", [70000])[:2] == (record, values)
    _core._PatchRecord(odd[2], odd[3], "F32", "xxh3-128").apply(tensor)
    assert tensor == new


def test_differences_need_a_base():
    old, _, record, values = a_patch()
    patch = _core._PatchRecord(record, values, "BF16", "xxh3-128", "w")
    out = np.empty(patch.changed, "<u2")
    with pytest.raises(SafetensorError, match='values="set"'):
        patch.new_values(None, out)
    with pytest.raises(SafetensorError, match="room for"):
        patch.new_values(old, out[1:])
    with pytest.raises(SafetensorError, match="room for"):
        patch.positions(np.empty(1, "i8"))
    _, _, record, values = a_patch(set_values=True)
    patch = _core._PatchRecord(record, values, "BF16", "xxh3-128", "w")
    out = np.empty(patch.changed, "<u2")
    patch.new_values(None, out)
    assert out.tobytes() == values


def test_digests_are_the_given_ones():
    def sha(data):
        return "sha256:" + hashlib.sha256(b"BF16 [65536]\n" + data).hexdigest()

    rng = np.random.default_rng(4)
    shape, old = tensor_bytes(rng, "BF16", 65536)
    new = changed(rng, old, "BF16", 0.01, "ulp")
    record, values, _ = _core._encode_patch(
        old, new, "BF16", shape, base_digest=sha(old), target_digest=sha(new)
    )
    patch = _core._PatchRecord(record, values, "BF16", "sha256", "w")
    assert (patch.base, patch.target) == (sha(old), sha(new))
    assert "add8" in patch.codes
    assert patch.check(new) == "applied"  # hashlib says so
    with pytest.raises(delta.WrongBaseError):
        patch.check(bytes(len(old)))
    with pytest.raises(delta.PatchError, match="digest"):
        _core._PatchRecord(record, values, "BF16", "xxh3-128", "w")
    with pytest.raises(SafetensorError, match="two algorithms"):
        _core._encode_patch(old, new, "BF16", shape, base_digest=sha(old))


def test_whole_and_removed_tensors():
    data = np.arange(6, dtype="<f4").tobytes()
    digest = "xxh3-128:" + "12" * 16
    record = _core._whole_patch(data, "F32", [2, 3], base_digest=None)
    patch = _core._PatchRecord(record, data, "F32", "xxh3-128")
    assert (patch.kind, patch.base) == ("whole", None)
    hasher = _core._TensorHasher("F32", [2, 3])
    hasher.update(data)
    assert patch.target == hasher.digest()
    assert (patch.unit, patch.units, patch.shape, patch.changed, patch.codes) == (0, 0, (), 0, {})
    record = _core._whole_patch(data, "F32", [2, 3], base_digest=digest, target_digest=digest)
    patch = _core._PatchRecord(record, data, "F32", "xxh3-128", "w")
    assert (patch.base, patch.target) == (digest, digest)
    record = _core._whole_patch(None, "F32", [2, 3], base_digest=digest)
    assert len(record) == 96
    patch = _core._PatchRecord(record, b"", "F32", "xxh3-128")
    assert (patch.kind, patch.base, patch.target) == ("removed", digest, None)
    for call in [lambda: patch.check(data), lambda: patch.positions(bytearray())]:
        with pytest.raises(SafetensorError, match="no blocks"):
            call()
    with pytest.raises(SafetensorError, match="base_digest"):
        _core._whole_patch(None, "F32", [2, 3], base_digest=None)


def test_errors_are_pickled_by_their_public_names():
    for name in ["PatchError", "WrongBaseError", "AlreadyAppliedError"]:
        error = getattr(delta, name)
        assert issubclass(error, (SafetensorError, ValueError))
        assert (error.__module__, error.__qualname__) == ("safetensors.delta", name)
    error = copy.copy(pickle.loads(pickle.dumps(delta.WrongBaseError("a text"))))
    assert type(error) is delta.WrongBaseError
    assert str(error) == "a text"


def test_arguments_are_checked():
    data = bytes(8)
    with pytest.raises(SafetensorError, match="8 bytes, its shape 12"):
        _core._encode_patch(data, data, "F32", [3])
    with pytest.raises(SafetensorError, match="8 bytes, its shape 4"):
        _core._encode_patch(data[:4], data, "F32", [1])
    with pytest.raises(SafetensorError, match="dtype"):
        _core._encode_patch(data, data, "F31", [2])
    with pytest.raises(SafetensorError, match="dtype and shape"):
        _core._encode_patch(data, data, "F32", [2**62, 2**62])
    with pytest.raises(SafetensorError, match="dtype and shape"):
        _core._encode_patch(data, data, "F4", [3])
    with pytest.raises(SafetensorError, match="algorithm"):
        _core._PatchRecord(data, data, "F32", "md5")
    old, _, record, values = a_patch()
    patch = _core._PatchRecord(record, values, "BF16", "xxh3-128")
    with pytest.raises(BufferError):
        patch.apply(old)
