"""Files of MLX arrays: loading and saving."""

import os
from typing import Any, Dict, Optional, Union

import mlx.core as mx
import numpy as np

from safetensors import SafetensorError, numpy, safe_open

from ._frameworks import code_of, is_from_ml_dtypes, refuse

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]

# MLX has no such types, and its own reader takes them for uint8.
_AS_UINT8 = ("float8_e4m3fn", "float8_e8m0fnu")


def save(tensors: Dict[str, mx.array], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """A file of the arrays, as bytes.

    Args:
        tensors: the arrays. Those of bfloat16 need the package ml_dtypes.
        metadata: text to go with them.

    Raises:
        SafetensorError: a type or a name that files cannot have.
    """
    return numpy.save(_mx2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, mx.array],
    filename: Union[str, "os.PathLike[str]"],
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
) -> None:
    """Writes a file of the arrays: whole, or not at all, leaving an old file as it was.

    Args:
        tensors: as `save` has them.
        filename: the file to write.
        metadata: text to go with them.
        fsync: whether to wait until the file is on the disk.

    Raises:
        What `save` raises, and an error that is both SafetensorError and OSError when the system
        refuses.
    """
    numpy.save_file(_mx2np(tensors), filename, metadata=metadata, fsync=fsync)


def load(data: bytes) -> Dict[str, mx.array]:
    """The arrays of a file held in memory, copied.

    F64 becomes float32, as MLX has it with NumPy's arrays; F8_E4M3 and F8_E8M0 become uint8, as
    `mlx.core.load` has them.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.

    Raises:
        SafetensorError: a damaged file, or a type that MLX does not have.
    """
    return _np2mx(numpy.load(data))


def load_file(
    filename: Union[str, "os.PathLike[str]"], *, backend: str = "mmap"
) -> Dict[str, mx.array]:
    """All arrays of a file, with the types that `load` gives them.

    Args:
        filename: the file to read.
        backend: as `safe_open` has it. The arrays are copies by both.
    """
    with safe_open(filename, framework="mlx", backend=backend) as f:
        return f.get_tensors()


def _np2mx(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, mx.array]:
    return {name: _from_numpy(array) for name, array in numpy_dict.items()}


def _mx2np(mx_dict: Dict[str, mx.array]) -> Dict[str, np.ndarray]:
    return {name: _to_numpy(array) for name, array in mx_dict.items()}


def _from_numpy(array: np.ndarray) -> mx.array:
    if not array.flags.c_contiguous:
        array = array.copy()  # MLX takes no negative strides
    name = array.dtype.name
    if name == "bfloat16":
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    if name in _AS_UINT8:
        return mx.array(array.view(np.uint8))
    if is_from_ml_dtypes(array):
        refuse(code_of(array), "MLX")
    return mx.array(array)


def _to_numpy(array: Any) -> np.ndarray:
    if isinstance(array, mx.array) and array.dtype == mx.bfloat16:
        return np.asarray(array.view(mx.uint16)).view(_bfloat16())
    return np.asarray(array)


def _bfloat16() -> Any:
    try:
        return numpy._getdtype("BF16")
    except KeyError:
        raise SafetensorError(
            "Dtype not understood: BF16: NumPy has no such type of its own: install ml_dtypes "
            "(pip install ml_dtypes)"
        ) from None
