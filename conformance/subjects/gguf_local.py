"""gguf-py, the package of llama.cpp: gguf.utility.SafetensorsLocal, which its converters use."""

from pathlib import Path

from gguf.utility import SafetensorsLocal
from protocol import digest, serve


def read(path):
    """Reads a file and maps its tensors. Metadata is not returned."""
    with SafetensorsLocal(Path(path)) as found:
        tensors = {}
        for name, tensor in found.items():
            # NumPy cannot map 0 bytes, and the converters do not try.
            data = tensor.mmap_bytes().tobytes() if tensor.data_range.size else b""
            tensors[name] = [tensor.dtype, list(tensor.shape), digest(data)]
    return tensors, None


serve(read)
