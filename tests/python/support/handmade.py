"""Files put together by hand, so that reading is tested apart from saving."""

import json
import os
import struct

import numpy as np

WORDS = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8", "b1": "BOOL"}


def header(entries):
    """The length and the padded JSON that start a file."""
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def to_bytes(arrays, metadata=None):
    """A whole file that holds the arrays in the order given."""
    entries, data = {}, b""
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, array in arrays.items():
        begin, data = len(data), data + array.tobytes()
        entries[name] = {
            "dtype": WORDS[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
    return header(entries) + data


def write(path, arrays, metadata=None):
    """Write such a file and return its path as text."""
    with open(path, "wb") as out:
        out.write(to_bytes(arrays, metadata))
    return os.fspath(path)


def write_sparse(path, shapes):
    """Write a file of F32 tensors whose data is one hole; return where the data begins."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape, dtype=np.int64))
        entries[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    head = header(entries)
    with open(path, "wb") as out:
        out.write(head)
        out.truncate(len(head) + end)
    return len(head)
