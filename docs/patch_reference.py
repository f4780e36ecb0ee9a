"""A reference of the patch format, version 1: one tensor's record and values (docs/patches.md).

It needs NumPy and xxhash, and is written to be read. A record is the content of the entry `r/NAME`
of a patch, values are the content of `v/NAME`. Tensors are bytes, as they are in a file.
"""

import struct
from typing import NamedTuple

import numpy as np
import xxhash

BLOCK = 65536  # units
HEAD = struct.Struct("<Q BBBx I QQ 32s 32s")
ROW = np.dtype("u1, u1, <u2, <u2, <u2, <u8")
REMOVED, WHOLE, BLOCKS = range(3)
SAME, GAP8, POS16, BITMAP, RUNS = range(5)  # codes of positions
SET, ADD8 = range(2)  # codes of values
HAS_BASE, SUB_BYTE = 1, 2  # flags
UNITS = {"U64": 8, "I64": 8, "F64": 8, "C64": 8, "F32": 4, "U32": 4, "I32": 4}
UNITS |= {"BF16": 2, "F16": 2, "U16": 2, "I16": 2}  # 1 for all other dtypes
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class Record(NamedTuple):
    """A valid record."""

    kind: int
    shape: tuple
    base: bytes  # digests; base is empty if the base does not have the tensor
    target: bytes
    blocks: list  # for each block None, or (positions, steps, is_wide, wide values, check)


def digest(dtype, shape, data):
    """Returns XXH3-128 of a tensor."""
    text = f"{dtype} [{','.join(map(str, shape))}]\n"
    return xxhash.xxh3_128(text.encode() + data).digest()


def require(condition, text):
    if not condition:
        raise ValueError(f"invalid patch: {text}")


def encode_whole(base=None, target=None, values=b""):
    """Returns the record of a new tensor, whose values are `values`, or of a removed one.

    `base` and `target` are the digests of the tensors; None where there is none.
    """
    kind, has_base = REMOVED if target is None else WHOLE, 0 if base is None else HAS_BASE
    return with_check(HEAD.pack(0, kind, 0, has_base, 0, 0, 0, base or b"", target or b""), values)


def encode(dtype, shape, base, target, set_values=False):
    """Returns (record, values) of a tensor that keeps its dtype and shape."""
    unit = UNITS.get(dtype, 1)
    old, new = np.frombuffer(base, f"<u{unit}"), np.frombuffer(target, f"<u{unit}")
    rows, stream, values = np.zeros(-(-old.size // BLOCK), ROW), b"", b""
    for i in range(rows.size):
        here = slice(i * BLOCK, (i + 1) * BLOCK)
        if (old[here] != new[here]).any():
            rows[i], narrow, wide = encode_block(old[here], new[here], unit, set_values)
            stream, values = stream + narrow, values + wide
    flags = HAS_BASE | (SUB_BYTE if dtype in BITS else 0)
    digests = digest(dtype, shape, base), digest(dtype, shape, target)
    head = HEAD.pack(0, BLOCKS, unit, flags, len(shape), old.size, rows.size, *digests)
    head += struct.pack(f"<{len(shape)}Q", *shape)
    return with_check(head + rows.tobytes() + stream, values), values


def with_check(record, values):
    """Returns the record with its first field."""
    check = xxhash.xxh3_64(record[8:] + values).intdigest()
    return struct.pack("<Q", check) + record[8:]


def encode_block(old, new, unit, set_values):
    """Returns (row, positions and narrow values, wide values) of a block that changes."""
    at = np.flatnonzero(old != new)
    code, positions = encode_positions(at, old.size)
    if len(positions) + at.size * unit > 4 + old.nbytes:  # then one run of all units is shorter
        at = np.arange(old.size)
        code, positions = RUNS, struct.pack("<HH", 0, old.size - 1)
    step = (new[at] - old[at]).view(f"<i{unit}")  # modulo 2 ** bits
    is_wide = (step < -127) | (step > 127)
    can_add = unit > 1 and not set_values
    check = xxhash.xxh3_64(old[at].tobytes()).intdigest()
    if can_add and at.size + is_wide.sum() * unit < at.size * unit:
        narrow = np.where(is_wide, -128, step).astype("i1").tobytes()
        row = (code, ADD8, len(positions), at.size - 1, is_wide.sum(), check)
        return row, positions + narrow, new[at][is_wide].tobytes()
    row = (code, SET, len(positions), at.size - 1, 0, check)
    return row, positions, new[at].tobytes()


def encode_positions(at, size):
    """Returns (code, bytes): the shortest of four, the lowest code of equally short ones."""
    skips = np.diff(at, prepend=-1) - 1
    ends = np.cumsum(skips // 255 + 1) - 1
    gaps = np.full(ends[-1] + 1, 255, "u1")
    gaps[ends] = skips % 255
    bits = np.zeros(size, bool)
    bits[at] = True
    begins = np.append(True, skips[1:] > 0)
    runs = np.stack([at[begins], at[np.append(begins[1:], True)]], axis=1)
    found = {GAP8: gaps, POS16: at.astype("<u2"), BITMAP: np.packbits(bits, bitorder="little")}
    found[RUNS] = runs.astype("<u2")
    code = min((c for c in found if found[c].nbytes <= 8192), key=lambda c: (found[c].nbytes, c))
    return code, found[code].tobytes()


def decode(record, values):
    """Returns the Record, or raises ValueError. Checks everything but the base.

    The digests are XXH3-128. Those of SHA-256 have no zeros behind them.
    """
    require(len(record) >= HEAD.size, "the record is cut short")
    check, kind, unit, flags, ndim, units, count, base, target = HEAD.unpack_from(record)
    require(check == xxhash.xxh3_64(record[8:] + values).intdigest(), "the record is damaged")
    require(kind <= BLOCKS and flags <= (HAS_BASE | SUB_BYTE) and record[11] == 0, "unknown kind")
    require(flags & HAS_BASE or not any(base), "a digest of no base")
    require(not any(base[16:] + target[16:]), "a digest is too long")
    if kind != BLOCKS:
        require(
            len(record) == HEAD.size and not (unit or ndim or units or count or flags & SUB_BYTE),
            "not zero",
        )
        require(kind == WHOLE or (flags & HAS_BASE and not any(target) and not values), "removed")
        return Record(kind, (), base if flags & HAS_BASE else b"", target, [])
    require(flags & HAS_BASE and unit in (1, 2, 4, 8) and ndim <= 64, "unknown unit, or no base")
    require(not flags & SUB_BYTE or unit == 1, "elements below a byte have units of a byte")
    place = HEAD.size + 8 * ndim
    require(count <= (len(record) - place) // 16, "the record is cut short")
    require(count == -(-units // BLOCK), "another number of blocks")
    shape = struct.unpack_from(f"<{ndim}Q", record, HEAD.size)
    product = 0 if 0 in shape else 1
    for dim in shape:
        product *= dim
    packed = {product * bits // 8 for bits in (4, 6) if product * bits % 8 == 0}
    require(units in (packed if flags & SUB_BYTE else {product}), "the shape has another size")
    require(len(values) % unit == 0, "values of another size")
    rows, wides = np.frombuffer(record, ROW, count, place), np.frombuffer(values, f"<u{unit}")
    place, taken, blocks = place + 16 * count, 0, []
    for i, row in enumerate(rows):
        code, way, nbytes, last, wide, check = map(int, row)
        if code == SAME:
            require(not any(row.tobytes()), "a row without positions is not zero")
            blocks.append(None)
            continue
        require(code <= RUNS and way <= (ADD8 if unit > 1 else SET), "an unknown code")
        require(nbytes <= 8192 and (way == ADD8 or not wide), "positions or values too long")
        n, end = last + 1, place + nbytes + (last + 1 if way == ADD8 else 0)
        require(end <= len(record), "the record is cut short")
        at = decode_positions(code, record[place : place + nbytes], min(BLOCK, units - i * BLOCK))
        require(at.size == n, "more or fewer positions than the row says")
        steps = np.frombuffer(record[place + nbytes : end], "i1")
        is_wide = steps == -128 if way == ADD8 else np.ones(n, bool)
        require(way == SET or is_wide.sum() == wide, "more or fewer wide values")
        place, taken = end, taken + int(is_wide.sum())
        require(taken <= wides.size, "the values are cut short")
        blocks.append((at, steps, is_wide, wides[taken - is_wide.sum() : taken], check))
    require(place == len(record) and taken == wides.size, "there are bytes left over")
    return Record(kind, shape, base, target, blocks)


def decode_positions(code, data, size):
    """Returns ascending positions below `size`."""
    if code == GAP8:
        gaps = np.frombuffer(data, "u1").astype(np.int64)
        require(gaps.size and gaps[-1] != 255, "a gap has no end")
        at = (np.cumsum(gaps + (gaps < 255)) - 1)[gaps < 255]
    elif code == POS16:
        require(len(data) % 2 == 0, "half a position")
        at = np.frombuffer(data, "<u2").astype(np.int64)
        require((np.diff(at) > 0).all(), "the positions do not ascend")
    elif code == BITMAP:
        require(len(data) == -(-size // 8), "a bitmap of another size")
        at = np.flatnonzero(np.unpackbits(np.frombuffer(data, "u1"), bitorder="little"))
    else:
        require(len(data) % 4 == 0, "half a run")
        runs = np.frombuffer(data, "<u2").astype(np.int64).reshape(-1, 2)
        first, last = runs.T
        require((first <= last).all() and (first[1:] > last[:-1] + 1).all(), "runs touch")
        at = np.concatenate([np.arange(0)] + [np.arange(f, e + 1) for f, e in runs])
    require(at.size and at[-1] < size, "a position behind the end of the block")
    return at


def apply(record, values, tensor):
    """Changes `tensor`, a bytearray, in place, or raises ValueError and changes nothing."""
    found = decode(record, values)
    require(found.kind == BLOCKS, "no record of blocks")
    unit, units = record[9], struct.unpack_from("<Q", record, 16)[0]
    if len(tensor) != unit * units:
        raise ValueError("wrong base: a tensor of another size")
    data, new = np.frombuffer(tensor, f"<u{unit}"), []
    for i, block in enumerate(found.blocks):
        if block is not None:
            at, steps, is_wide, wide, check = block
            old = data[i * BLOCK + at]
            if xxhash.xxh3_64(old.tobytes()).intdigest() != check:
                raise ValueError(f"wrong base: block {i} has other values")
            if steps.size:
                old += steps.astype(f"<i{unit}").view(f"<u{unit}")
            old[is_wide] = wide
            new.append((i * BLOCK + at, old))
    for at, new_units in new:
        data[at] = new_units
