"""Damages files, and says where their tensors are."""

import json

BLOCK = 4 << 20


def flip(path, at, bit=3):
    """Flips one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def places_of(data):
    """Returns the range of each tensor in the file, and where the data begins."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: tuple(start + each for each in entry["data_offsets"])
        for name, entry in header.items()
    }, start
