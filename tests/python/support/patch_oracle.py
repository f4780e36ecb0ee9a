"""The records of patches, by NumPy and written for one purpose: to compare the codec with."""

import struct

import numpy as np

from safetensors import _core

BLOCK = 65536
BITS = {
    **dict.fromkeys(["U64", "I64", "F64", "C64"], 64),
    **dict.fromkeys(["F32", "U32", "I32"], 32),
    **dict.fromkeys(["BF16", "F16", "U16", "I16"], 16),
    **dict.fromkeys(["F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2"], 8),
    **dict.fromkeys(["I8", "U8", "BOOL"], 8),
    **dict.fromkeys(["F6_E3M2", "F6_E2M3"], 6),
    "F4": 4,
}


def unit_of(dtype):
    """Returns the bytes that change together."""
    return max(1, BITS[dtype] // 8)


def xxh3_64(data):
    """Returns XXH3-64 of bytes, at least one, as 8 little-endian bytes."""
    hasher = _core._TensorHasher("U8", [len(data)], block_size=len(data))
    hasher.update(data)
    return hasher.blocks()


def digest(dtype, shape, data):
    """Returns the 32 bytes of the field for a tensor's digest."""
    hasher = _core._TensorHasher(dtype, shape)
    hasher.update(data)
    return bytes.fromhex(hasher.digest().partition(":")[2]).ljust(32, b"\0")


def sealed(record, values):
    """Returns the record with the check of its other bytes and the values."""
    return xxh3_64(record[8:] + values) + record[8:]


def _gaps(at):
    out = bytearray()
    for skip in np.diff(at, prepend=-1) - 1:
        out += b"\xff" * int(skip // 255) + bytes([skip % 255])
    return bytes(out)


def _runs(at):
    ends = np.flatnonzero(np.diff(at) != 1)
    pairs = zip(np.r_[at[0], at[ends + 1]], np.r_[at[ends], at[-1]], strict=True)
    return b"".join(struct.pack("<HH", first, last) for first, last in pairs)


def _positions(changes):
    at = np.flatnonzero(changes)
    ways = [
        _gaps(at) if at.size <= 8192 else bytes(8193),
        at.astype("<u2").tobytes(),
        np.packbits(changes, bitorder="little").tobytes(),
        _runs(at),
    ]
    best = min((way for way in ways if len(way) <= 8192), key=len)
    return ways.index(best) + 1, best


def _block(old, new, unit, set_values):
    """Returns the row of a block, its bytes in the stream, and its values."""
    changes = old != new
    if not changes.any():
        return bytes(16), b"", b""
    code, positions = _positions(changes)
    if len(positions) + np.count_nonzero(changes) * unit > old.nbytes + 4:
        code, positions = 4, struct.pack("<HH", 0, old.size - 1)
        changes = np.ones_like(changes)
    old, new = old[changes], new[changes]
    steps = (new - old).view(new.dtype.str.replace("u", "i"))
    is_wide = (steps < -127) | (steps > 127)
    wide = np.count_nonzero(is_wide)
    adds = not set_values and unit > 1 and old.size + wide * unit < old.size * unit
    wide_field = int(wide) if adds else 0
    head = struct.pack("<BBHHH", code, int(adds), len(positions), old.size - 1, wide_field)
    row = head + xxh3_64(old.tobytes())
    if not adds:
        return row, positions, new.tobytes()
    narrow = np.where(is_wide, -128, steps).astype("i1").tobytes()
    return row, positions + narrow, new[is_wide].tobytes()


def encode(old, new, dtype, shape, set_values=False):
    """Returns the record and the values that make `new` of `old`, both bytes of a tensor."""
    unit = unit_of(dtype)
    a, b = np.frombuffer(old, f"<u{unit}"), np.frombuffer(new, f"<u{unit}")
    if (a == b).all():
        return b"", b""
    starts = range(0, a.size, BLOCK)
    with np.errstate(over="ignore"):
        blocks = [_block(a[i : i + BLOCK], b[i : i + BLOCK], unit, set_values) for i in starts]
    rows, streams, values = (b"".join(part) for part in zip(*blocks, strict=True))
    flags = 3 if BITS[dtype] < 8 else 1
    record = bytes(8) + struct.pack("<BBBBIQQ", 2, unit, flags, 0, len(shape), a.size, len(starts))
    record += digest(dtype, shape, old) + digest(dtype, shape, new)
    record += struct.pack(f"<{len(shape)}Q", *shape) + rows + streams
    return sealed(record, values), values
