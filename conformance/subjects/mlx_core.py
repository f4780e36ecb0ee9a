"""mlx: mlx.core.load and save_safetensors."""

import mlx.core as mx
import numpy as np
from protocol import Unsupported, digest, serve

mx.set_default_device(mx.cpu)
DTYPES = {
    "BOOL": mx.bool_, "U8": mx.uint8, "U16": mx.uint16, "U32": mx.uint32, "U64": mx.uint64,
    "I8": mx.int8, "I16": mx.int16, "I32": mx.int32, "I64": mx.int64, "F16": mx.float16,
    "BF16": mx.bfloat16, "F32": mx.float32, "F64": mx.float64, "C64": mx.complex64,
}  # fmt: skip
NAMES = {str(dtype): name for name, dtype in DTYPES.items()}


def bytes_of(array):
    """Returns an array's bytes."""
    array = mx.flatten(array)  # NumPy takes at most 64 axes
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.array(array).tobytes()


def read(path):
    """Reads a file with all its tensors."""
    arrays, metadata = mx.load(path, return_metadata=True)
    tensors = {
        name: [NAMES[str(array.dtype)], list(array.shape), digest(bytes_of(array))]
        for name, array in arrays.items()
    }
    return tensors, metadata


def write(tensors, out, metadata):
    """Writes arrays."""
    arrays = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype not in DTYPES:
            raise Unsupported(f"mlx has no {dtype}")
        raw = np.frombuffer(data, np.uint8)
        if dtype in ("F64", "C64"):  # views to these are not on the CPU of all versions
            arrays[name] = mx.array(
                raw.view({"F64": "<f8", "C64": "<c8"}[dtype]).reshape(shape), DTYPES[dtype]
            )
        else:
            arrays[name] = mx.array(raw).view(DTYPES[dtype]).reshape(shape)
    mx.save_safetensors(out, arrays, metadata)


serve(read, write)
