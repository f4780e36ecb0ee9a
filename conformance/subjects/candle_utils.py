"""candle-nn: candle.utils.load_safetensors."""

import struct

from candle.utils import load_safetensors
from protocol import Unsupported, digest, serve

FORMATS = {"U8": "B", "U32": "I", "I64": "q", "F16": "e", "F32": "f", "F64": "d"}


def flat(value):
    """Returns the numbers of nested lists."""
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


def described(tensor):
    """Returns [dtype, shape, digest]."""
    name = str(tensor.dtype).rpartition(".")[2].upper()
    numbers = [] if 0 in tensor.shape else flat(tensor.values())
    if any(number != number for number in numbers):
        raise Unsupported("values are Python's floats, which lose the bits of NaNs")
    if name == "BF16":
        data = b"".join(struct.pack("<f", x)[2:] for x in numbers)
    else:
        data = struct.pack(f"<{len(numbers)}{FORMATS[name]}", *numbers)
    return [name, list(tensor.shape), digest(data)]


def read(path):
    """Reads a file. Metadata is not returned."""
    return {name: described(tensor) for name, tensor in load_safetensors(path).items()}, None


serve(read)
