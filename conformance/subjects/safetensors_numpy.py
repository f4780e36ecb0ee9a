"""The Python package safetensors with NumPy: this project's, or upstream's."""

import ctypes

import numpy as np
from protocol import Unsupported, digest, serve

from safetensors import TensorSpec, deserialize, safe_open, serialize_file

DTYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32",
    "F64": "float64", "BF16": "bfloat16", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F99": "float99",
}  # fmt: skip


def read(path):
    """Reads a file twice: from memory, and by its path."""
    with open(path, "rb") as file:
        found = deserialize(file.read())
    with safe_open(path, "np") as handle:
        if sorted(handle.keys()) != sorted(name for name, _ in found):
            raise RuntimeError("deserialize and safe_open find different names")
        metadata = handle.metadata() or {}
    return {name: [t["dtype"], t["shape"], digest(t["data"])] for name, t in found}, metadata


def write(tensors, out, metadata):
    """Writes a file by the addresses of the bytes."""
    specs, buffers = {}, []
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F4" and shape and shape[-1] % 2 == 0:
            own, shape = "float4_e2m1fn_x2", [*shape[:-1], shape[-1] // 2]
        elif dtype in DTYPES:
            own = DTYPES[dtype]
        else:
            raise Unsupported(f"there is no name for {dtype} {shape}")
        buffers.append(ctypes.create_string_buffer(data, len(data) + 8))
        address = ctypes.addressof(buffers[-1])
        specs[name] = TensorSpec(dtype=own, shape=shape, data_ptr=address, data_len=len(data))
    serialize_file(specs, out, metadata)


def take(path, tensor, index):
    """Reads a part of a tensor."""
    with safe_open(path, "np") as handle:
        part = np.asarray(handle.get_slice(tensor)[index])
    return part.shape, part.tobytes()


serve(read, write, take)
