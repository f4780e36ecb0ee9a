"""Builds files byte by byte, so that reading is tested apart from the package's own saving.

A dict of tensors may hold `Raw` values, NumPy arrays, or both.
"""

import json
import math
import struct
from typing import NamedTuple

from support.dtype_table import BY_NAME, TABLE

_NAME_OF_NUMPY = {row.numpy: row.name for row in TABLE if row.numpy}


class Raw(NamedTuple):
    """A tensor by the format's dtype name, shape and bytes."""

    dtype: str
    shape: tuple
    data: bytes


def raw(dtype, shape, fill=None):
    """Returns a Raw with the bytes `fill`; by default 1, 2, 3, ..., and 1, 0, 1, ... for BOOL."""
    size = BY_NAME[dtype].nbytes(shape)
    if fill is None:
        period = 2 if dtype == "BOOL" else 251
        fill = bytes((i + 1) % period for i in range(size))
    return Raw(dtype, tuple(shape), fill)


def raw_of(value):
    """Returns a Raw unchanged, and a little-endian NumPy array in C order as a Raw."""
    if isinstance(value, Raw):
        return value
    return Raw(_NAME_OF_NUMPY[value.dtype.name], value.shape, value.tobytes())


def with_length(header, data=b"", length=None):
    """Returns a file from the bytes of its header, which need not be JSON."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    """Returns the header's entry of a tensor."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def from_entries(entries, data=b""):
    """Returns a file from a header: JSON text, bytes or a dict."""
    if not isinstance(entries, (str, bytes)):
        entries = json.dumps(entries)
    return with_length(entries.encode() if isinstance(entries, str) else entries, data)


def header_dict(tensors, metadata=None):
    """Returns the header of `tensors`, whose data is in the order of the dict."""
    header = {} if metadata is None else {"__metadata__": metadata}
    begin = 0
    for name, value in tensors.items():
        tensor = raw_of(value)
        header[name] = entry(tensor.dtype, tensor.shape, begin, begin + len(tensor.data))
        begin += len(tensor.data)
    return header


def padded_header(header, **json_options):
    """Returns the length and the JSON text of a header, padded with spaces to 8 bytes."""
    text = json.dumps(header, **json_options).encode()
    return with_length(text + b" " * (-len(text) % 8))


def to_bytes(tensors, metadata=None, shuffled=None, **json_options):
    """Returns a file with `tensors`. `shuffled` reorders the header's keys, not the data."""
    header = header_dict(tensors, metadata)
    if shuffled is not None:
        header = {key: header[key] for key in shuffled(list(header))}
    data = b"".join(raw_of(value).data for value in tensors.values())
    return padded_header(header, **json_options) + data


def write(path, content, metadata=None):
    """Writes bytes, or a dict of tensors, and returns the path."""
    path.write_bytes(to_bytes(content, metadata) if isinstance(content, dict) else content)
    return path


def write_sparse(path, shapes):
    """Writes F32 tensors of these shapes whose data is a hole; returns where the data begins."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = entry("F32", shape, begin, end)
    start = padded_header(header)
    with open(path, "wb") as out:
        out.write(start)
        out.truncate(len(start) + end)
    return len(start)


def split(content):
    """Returns the header's bytes and the data of a file."""
    (length,) = struct.unpack_from("<Q", content)
    return content[8 : 8 + length], content[8 + length :]
