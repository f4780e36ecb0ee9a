"""The reference of the patch format in docs/ against the compiled codec, byte for byte."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from safetensors import _extra, delta
from support.dtype_table import TABLE
from support.patch_records import change_of

xxhash = pytest.importorskip("xxhash")

BLOCK = 65536
PAGE = Path(__file__).parents[2] / "docs" / "patch_reference.py"
_spec = importlib.util.spec_from_file_location("patch_reference", PAGE)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 1)
SHARES = (0, 1e-5, 1e-3, 0.02, 0.3, 1)
PATTERNS = ("random", "runs", "ends", "wide", "signs")


def changed(units, share, pattern, random):
    """Returns a copy in which a share of the units differs."""
    new = units.copy()
    count = math.ceil(share * units.size)
    if count == 0:
        return new
    at = random.choice(units.size, count, replace=False)
    if pattern == "runs":
        at = np.arange(count) + random.integers(units.size - count + 1)
    elif pattern == "ends":
        at = np.unique(np.r_[0, units.size - 1, np.arange(BLOCK - 1, units.size, BLOCK)])
    if pattern == "wide":
        new[at] = random.integers(0, 256, at.size * units.itemsize, "u1").view(units.dtype)
    elif pattern == "signs":  # the highest bit, the most distant step
        new[at] ^= units.dtype.type(1 << (8 * units.itemsize - 1))
    else:
        new[at] += random.choice(np.array([1, 2, 255, 127, 128], "u1"), at.size)
    return new


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_codec_is_the_reference(row):
    """Both write the same bytes, and apply them to the same effect."""
    random = np.random.default_rng(row.bits)
    unit = reference.UNITS.get(row.name, 1)
    elements = 8 // math.gcd(8, row.bits)  # as many end at a byte
    codes = set()
    for size in SIZES:
        size -= size % (row.bits * elements // 8) if row.bits < 8 else 0
        shape = (size * 8 * unit // row.bits,)
        base = random.integers(0, 256, size * unit, "u1").view(f"<u{unit}")
        for share, pattern, set_values in [
            (share, pattern, len(pattern) % 2 == i % 2)
            for i, share in enumerate(SHARES)
            for pattern in PATTERNS
        ]:
            target = changed(base, share, pattern, random)
            old, new = base.tobytes(), target.tobytes()
            encoded = _extra._encode_patch(old, new, row.name, shape, set_values=set_values)
            assert (encoded is None) == (old == new)
            if encoded is None:
                continue
            record, values, count, *digests = encoded
            expected = reference.encode(row.name, shape, old, new, set_values)
            assert (bytes(record), bytes(values)) == expected, (size, share, pattern)
            dtype = "U8" if row.bits < 8 else row.name
            found = change_of(record, values, dtype)
            blocks = [block for block in reference.decode(*expected).blocks if block is not None]
            assert found.changed == count == sum(block[0].size for block in blocks)
            assert found.base == "xxh3-128:" + reference.digest(row.name, shape, old).hex()
            assert found.target == "xxh3-128:" + reference.digest(row.name, shape, new).hex()
            assert digests == [found.base, found.target]
            at, units = np.empty(count, "i8"), np.empty(count, base.dtype)
            found.positions(at)
            found.new_values(old, units)
            assert (np.diff(at) > 0).all()
            filled = base.copy()
            filled[at] = units
            assert (filled == target).all()
            codes |= {code for code, number in found.codes.items() if number}
            ours, theirs = bytearray(old), bytearray(old)
            assert found.check(row.name, shape, ours, False) == "base"
            found.apply(ours)
            reference.apply(*expected, theirs)
            assert ours == theirs == new
            assert found.check(row.name, shape, ours, False) == "applied"
    assert codes >= {"gap8", "pos16", "bitmap", "runs", "set"}
    assert ("add8" in codes) == (unit > 1)


def test_tensors_as_a_whole():
    """Records of new, replaced and removed tensors."""
    data = np.arange(6, dtype="<f4").tobytes()
    after = reference.digest("F32", (2, 3), data)
    before = reference.digest("F32", (6,), data)
    texts = {"base_digest": "xxh3-128:" + before.hex()}
    assert bytes(_extra._whole_patch(data, "F32", (2, 3), base_digest=None)) == (
        reference.encode_whole(None, after, data)
    )
    assert bytes(_extra._whole_patch(data, "F32", (2, 3), **texts)) == (
        reference.encode_whole(before, after, data)
    )
    removed = _extra._whole_patch(None, "F32", (6,), **texts)
    assert bytes(removed) == reference.encode_whole(before)
    assert reference.decode(bytes(removed), b"").kind == reference.REMOVED


def flips(record):
    """The bits of a record to flip: each in the head and rows, some of the rest."""
    head = range(8 * (96 + 8 + 4 * 16))
    return [*head, *range(8 * len(record) - 64, 8 * len(record))]


@pytest.mark.parametrize("set_values", [False, True])
def test_every_class_of_byte(set_values):
    """A flipped bit is refused. With the first field corrected, both say the same of it."""
    random = np.random.default_rng(1)
    base = random.integers(0, 256, 2 * (3 * BLOCK + 1), "u1").view("<u2")
    target = base.copy()
    target[[1, 700]] += 1  # pos16
    target[BLOCK : BLOCK + 300] ^= 0x8000  # runs
    target[2 * BLOCK : 3 * BLOCK : 20] += 3  # gap8
    target[-1] += 999
    old, new = base.tobytes(), target.tobytes()
    record, values = reference.encode("BF16", base.shape, old, new, set_values)
    refused = 0
    for bit in flips(record):
        broken = bytearray(record)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(delta.PatchError):
            change_of(broken, values, "BF16")
        if bit < 64:
            continue
        corrected = reference.with_check(bytes(broken), values)
        try:
            reference.decode(corrected, values)
        except ValueError:
            with pytest.raises(delta.PatchError):
                change_of(corrected, values, "BF16")
            refused += 1
            continue
        found = change_of(corrected, values, "BF16")
        ours, theirs = bytearray(old), bytearray(old)
        try:
            reference.apply(corrected, values, theirs)
        except ValueError:
            with pytest.raises(delta.WrongBaseError):
                found.apply(ours)
            assert ours == old
        else:
            found.apply(ours)
            assert ours == theirs
    assert refused > 300
