"""pure-safetensors with NumPy."""

import numpy as np
from protocol import Unsupported, digest, serve
from pure_safetensors import SafeTensors, dtypes


def read(path):
    """Reads a file; bfloat16 as 16-bit integers."""
    with SafeTensors(path, "r") as file:
        arrays = file.as_numpy(bfloat16_as_uint16=True)
        tensors = {
            name: [str(info.dtype), list(info.shape), digest(arrays[name].tobytes())]
            for name, info in file.tensors.items()
        }
        return tensors, dict(file.metadata or {})


def write(tensors, out, metadata):
    """Writes a file."""
    with SafeTensors(out, "w+", sparse=False) as file:
        if metadata:
            file.metadata = metadata
        arrays = file.as_numpy(bfloat16_as_uint16=True)
        values = {}
        for name, (dtype, shape, data) in tensors.items():
            if dtype not in dtypes:
                raise Unsupported(f"there is no {dtype}")
            own = dtypes[dtype]
            numpy_dtype = np.dtype("u2" if dtype == "BF16" else own.numpy_name)
            values[name] = (np.frombuffer(data, numpy_dtype).reshape(shape), own)
        arrays.update({name: value for name, (value, _) in values.items()})


serve(read, write)
