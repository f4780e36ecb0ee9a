"""Writes the format by hand, so that tests need no code of the package to make a file."""

import json
import struct
from typing import NamedTuple

from support.dtype_table import BY_NAME


class Raw(NamedTuple):
    """A tensor as a file holds it."""

    dtype: str
    shape: tuple
    data: bytes


def raw(dtype, shape, fill=None):
    """A Raw whose bytes are `fill`, or count up from 1 where a bool allows it."""
    size = BY_NAME[dtype].nbytes(shape)
    if fill is None:
        period = 2 if dtype == "BOOL" else 251
        fill = bytes((i + 1) % period for i in range(size))
    return Raw(dtype, tuple(shape), fill)


def with_length(header, data=b"", length=None):
    """A file from the bytes of its header, which need not be JSON."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    """One tensor's entry."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def from_entries(entries, data=b""):
    """A file from a header given as JSON text, bytes or a dict."""
    if not isinstance(entries, (str, bytes)):
        entries = json.dumps(entries)
    return with_length(entries.encode() if isinstance(entries, str) else entries, data)


def header_dict(tensors, metadata=None):
    """The header of `tensors`, a dict of Raw laid out in its own order."""
    header = {} if metadata is None else {"__metadata__": metadata}
    begin = 0
    for name, tensor in tensors.items():
        header[name] = entry(tensor.dtype, tensor.shape, begin, begin + len(tensor.data))
        begin += len(tensor.data)
    return header


def to_bytes(tensors, metadata=None, shuffled=None, **json_options):
    """A file of `tensors`; `shuffled` reorders the header's keys, not the data."""
    header = header_dict(tensors, metadata)
    if shuffled is not None:
        header = {key: header[key] for key in shuffled(list(header))}
    text = json.dumps(header, **json_options).encode()
    text += b" " * (-len(text) % 8)
    return with_length(text, b"".join(tensor.data for tensor in tensors.values()))


def write(path, content):
    """Write bytes, or a dict of Raw, and return the path."""
    path.write_bytes(to_bytes(content) if isinstance(content, dict) else content)
    return path


def split(content):
    """The header's bytes and the data of a file."""
    (length,) = struct.unpack_from("<Q", content)
    return content[8 : 8 + length], content[8 + length :]
