"""cryptotensors, a fork of upstream, with files that are not encrypted."""

from cryptotensors import deserialize, safe_open, serialize_file
from protocol import Unsupported, digest, serve

DTYPES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32",
    "F64": "float64", "BF16": "bfloat16", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F99": "float99",
}  # fmt: skip


def read(path):
    """Reads a file twice: from memory, and by its path."""
    with open(path, "rb") as file:
        found = deserialize(file.read())
    with safe_open(path, "np") as handle:
        metadata = handle.metadata() or {}
    return {name: [t["dtype"], t["shape"], digest(t["data"])] for name, t in found}, metadata


def write(tensors, out, metadata):
    """Writes bytes."""
    found = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype not in DTYPES:
            raise Unsupported(f"there is no name for {dtype}")
        found[name] = {"dtype": DTYPES[dtype], "shape": shape, "data": data}
    serialize_file(found, out, metadata)


def take(path, tensor, index):
    """Reads a part of a tensor."""
    with safe_open(path, "np") as handle:
        part = handle.get_slice(tensor)[index]
    return part.shape, part.tobytes()


serve(read, write, take)
