"""Loads and saves MLX arrays."""

from __future__ import annotations  # evaluating them would dominate the import time

from typing import Any, Dict, Mapping, Optional

import mlx.core as mx
import numpy as np

from safetensors import deserialize, numpy, safe_open

from ._frameworks import arrays_of, code_of, is_from_ml_dtypes, refuse
from ._numpy_arrays import _TYPES, _getdtype, of_mlx
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]

# NumPy dtypes that carry the bits of dtypes that NumPy does not have. MLX has no 8-bit floats: its
# own reader returns them as uint8.
_CARRIERS = {"BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}


def save(tensors: Dict[str, mx.array], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns a file with the arrays, as bytes.

    Args:
        tensors: arrays by name. Those of bfloat16 need the package ml_dtypes.
        metadata: strings to store in the file's header.

    Raises:
        SafetensorError: the format has no such dtype, or a name cannot be written.
    """
    return numpy.save(_mx2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, mx.array],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves arrays to a file, atomically: if it fails, an existing file is unchanged.

    `tensors` are as for `save`. `safetensors.numpy.save_file` describes the other arguments and the
    errors.
    """
    numpy.save_file(_mx2np(tensors), filename, metadata, fsync=fsync, progress=progress, sums=sums)


def load(data: Buffer) -> Dict[str, mx.array]:
    """Returns the arrays of a file that is in memory, copied.

    F64 becomes float32, as in `mlx.core.array`. F8_E4M3 and F8_E8M0 become uint8, as in
    `mlx.core.load`.

    Args:
        data: the file's bytes: any object with a contiguous buffer.

    Raises:
        SafetensorError: the file is damaged, or MLX has no such dtype.
    """
    result = {}
    for name, entry in deserialize(data):
        code = entry["dtype"]
        _check(code, name)
        carrier = _CARRIERS.get(code) or _getdtype(code)
        array = np.frombuffer(entry["data"], dtype=carrier).reshape(entry["shape"])
        result[name] = _from_file(array, code, name)
    return result


def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, mx.array]:
    """Returns all arrays of a file, with the dtypes that `load` selects.

    Args:
        filename: the file to read: a path, a URL, or a `RangeReader`.
        backend: see `safe_open`. The arrays are copies with every backend.
        storage_options: settings for a URL.
        verify, expected_hashes: see `safetensors.numpy.load_file`.

    Raises:
        SafetensorError: as `load`.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        OSError: the file cannot be read.
    """
    with safe_open(
        filename,
        framework="mlx",
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        return f.get_tensors()


def _check(code: str, name: str, path: Optional[str] = None) -> None:
    """Raises for a tensor of a type of files that MLX does not have."""
    if code not in _CARRIERS and code not in _TYPES:
        refuse(code, "MLX", name, path)


def _np2mx(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, mx.array]:
    return {name: _from_numpy(array, name) for name, array in numpy_dict.items()}


def _mx2np(mx_dict: Dict[str, mx.array]) -> Dict[str, np.ndarray]:
    return arrays_of(mx_dict, of_mlx, "mlx.core.array")


def _from_numpy(array: np.ndarray, name: str) -> mx.array:
    if not is_from_ml_dtypes(array):
        return _copy(array)
    code = code_of(array)
    return _from_file(array.view(_CARRIERS.get(code, array.dtype)), code, name)


def _from_file(array: np.ndarray, code: str, name: str, path: Optional[str] = None) -> mx.array:
    """Copies an array; for a dtype that MLX or NumPy lacks, `array` holds the bits."""
    _check(code, name, path)
    copy = _copy(array)
    return copy.view(mx.bfloat16) if code == "BF16" else copy


def _copy(array: np.ndarray) -> mx.array:
    if not array.flags.c_contiguous:
        array = array.copy()  # MLX takes no negative strides
    return mx.array(array)
