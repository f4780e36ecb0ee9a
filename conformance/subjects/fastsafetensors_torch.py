"""fastsafetensors with torch, on the CPU."""

from fastsafetensors import fastsafe_open
from protocol import serve
from torch_bytes import described


def read(path):
    """Reads a file."""
    with fastsafe_open(path, framework="pt", device="cpu", nogds=True) as file:
        tensors = {name: described(file.get_tensor(name)) for name in tuple(file.keys())}
        metadata = next(iter(file.metadata().values()), {})
        return tensors, metadata


serve(read)
