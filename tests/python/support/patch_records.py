"""Patches of one tensor, in memory."""

from safetensors import _extra, safe_open
from safetensors._delta.patch import InMemory
from support import file_builder
from support.file_builder import Raw


def change_of(record, values, dtype, shape=None, *, algorithm="xxh3-128", name="w"):
    """Returns what a patch file with this record and these values says of a tensor.

    `dtype` and `shape` are the values': without a shape, they are a list of units. A removed tensor
    has None for values.
    """
    entries = {f"r/{name}": Raw("U8", (len(record),), bytes(record))}
    if values is not None:
        if shape is None:
            shape = (len(values) * 8 // file_builder.BY_NAME[dtype].bits,)
        entries[f"v/{name}"] = Raw(dtype, shape, bytes(values))
    content = file_builder.to_bytes(entries)
    return _extra._PatchChange(safe_open(InMemory(content), "np", backend="pread"), name, algorithm)
