"""Files of MLX arrays: loading and saving."""

from __future__ import annotations  # to evaluate them takes most of an import

from typing import Any, Dict, Optional

import mlx.core as mx
import numpy as np

from safetensors import SafetensorError, deserialize, numpy, safe_open

from ._frameworks import code_of, is_from_ml_dtypes, refuse
from ._typing import Buffer, Path, Progress

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]

# NumPy types that carry the bits of types that NumPy lacks. MLX has no 8-bit floats; its own reader
# returns these two as uint8.
_CARRIERS = {"BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}


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
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Writes a file of the arrays: whole, or not at all, leaving an old file as it was.

    Args:
        tensors: as `save` has them.
        filename: the file to write.
        metadata: text to go with them.
        fsync: whether to wait until the file is on the disk.
        progress: called as progress(done, total) with the bytes that are written and those of the
            file; the last call has both equal. If it raises, the save is undone and the exception
            passes through.

    Raises:
        What `save` raises, and an error that is both SafetensorError and OSError when the system
        refuses.
    """
    numpy.save_file(_mx2np(tensors), filename, metadata=metadata, fsync=fsync, progress=progress)


def load(data: Buffer) -> Dict[str, mx.array]:
    """The arrays of a file held in memory, copied.

    F64 becomes float32, as MLX has it with NumPy's arrays; F8_E4M3 and F8_E8M0 become uint8, as
    `mlx.core.load` has them.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.

    Raises:
        SafetensorError: a damaged file, or a type that MLX does not have.
    """
    result = {}
    for name, entry in deserialize(data):
        code = entry["dtype"]
        _check(code)
        carrier = _CARRIERS.get(code) or numpy._getdtype(code)
        array = np.frombuffer(entry["data"], dtype=carrier).reshape(entry["shape"])
        result[name] = _from_file(array, code)
    return result


def load_file(filename: Path, *, backend: str = "mmap") -> Dict[str, mx.array]:
    """All arrays of a file, with the types that `load` gives them.

    Args:
        filename: the file to read.
        backend: as `safe_open` has it. The arrays are copies by both.
    """
    with safe_open(filename, framework="mlx", backend=backend) as f:
        return f.get_tensors()


def _check(code: str) -> None:
    """Raises for a type of files that MLX does not have."""
    if code not in _CARRIERS and code not in numpy._TYPES:
        refuse(code, "MLX")


def _np2mx(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, mx.array]:
    return {name: _from_numpy(array) for name, array in numpy_dict.items()}


def _mx2np(mx_dict: Dict[str, mx.array]) -> Dict[str, np.ndarray]:
    return {name: _to_numpy(array) for name, array in mx_dict.items()}


def _from_numpy(array: np.ndarray) -> mx.array:
    if not is_from_ml_dtypes(array):
        return _copy(array)
    code = code_of(array)
    return _from_file(array.view(_CARRIERS.get(code, array.dtype)), code)


def _from_file(array: np.ndarray, code: str) -> mx.array:
    """A copy; of a type that MLX or NumPy lacks, the array holds the bits."""
    _check(code)
    copy = _copy(array)
    return copy.view(mx.bfloat16) if code == "BF16" else copy


def _copy(array: np.ndarray) -> mx.array:
    if not array.flags.c_contiguous:
        array = array.copy()  # MLX takes no negative strides
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
