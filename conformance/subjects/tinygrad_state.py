"""tinygrad: tinygrad.nn.state.safe_load and safe_save."""

import math
from pathlib import Path

from protocol import Unsupported, digest, serve
from tinygrad import Tensor, dtypes
from tinygrad.nn.state import (
    inverse_safe_dtypes,
    safe_dtypes,
    safe_load,
    safe_load_metadata,
    safe_save,
)


def bytes_of(tensor):
    """Returns a tensor's bytes."""
    if 0 in tensor.shape:
        return b""
    return bytes(tensor.flatten().bitcast(dtypes.uint8).to("CPU").contiguous().data())


def read(path):
    """Reads a file with all its tensors."""
    found = safe_load(path)
    metadata = safe_load_metadata(Tensor(Path(path)))[2].get("__metadata__")
    tensors = {
        name: [inverse_safe_dtypes[tensor.dtype], list(tensor.shape), digest(bytes_of(tensor))]
        for name, tensor in found.items()
    }
    return tensors, metadata


def write(tensors, out, metadata):
    """Writes tensors."""
    state = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype not in safe_dtypes:
            raise Unsupported(f"tinygrad has no {dtype}")
        if not data and math.prod(shape) == 0:
            state[name] = Tensor.empty(*shape, dtype=safe_dtypes[dtype])
        else:
            raw = Tensor(data, dtype=dtypes.uint8, device="CPU")
            state[name] = raw.bitcast(safe_dtypes[dtype]).reshape(shape)
    safe_save(state, out, metadata)


serve(read, write)
