"""Loads and saves TensorFlow tensors."""

from __future__ import annotations  # evaluating them would dominate the import time

from typing import Any, Dict, Mapping, Optional

import numpy as np
import tensorflow as tf

from safetensors import numpy, safe_open

from ._frameworks import arrays_of, code_of, is_from_ml_dtypes, refuse
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]


def save(tensors: Dict[str, tf.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns a file with the tensors, as bytes.

    Args:
        tensors: eager tensors or variables by name, on any devices.
        metadata: strings to store in the file's header.

    Raises:
        SafetensorError: the format has no such dtype, or a name cannot be written.
    """
    return numpy.save(_tf2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, tf.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves tensors to a file, atomically: if it fails, an existing file is unchanged.

    `tensors` are as for `save`. `safetensors.numpy.save_file` describes the other arguments and the
    errors.
    """
    numpy.save_file(_tf2np(tensors), filename, metadata, fsync=fsync, progress=progress, sums=sums)


def load(data: Buffer) -> Dict[str, tf.Tensor]:
    """Returns the tensors of a file that is in memory, copied to TensorFlow's default device.

    Args:
        data: the file's bytes: any object with a contiguous buffer.

    Raises:
        SafetensorError: the file is damaged, or TensorFlow has no such dtype.
    """
    return _np2tf(numpy.load(data))


def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, tf.Tensor]:
    """Returns all tensors of a file, on TensorFlow's default device.

    Args:
        filename: the file to read: a path, a URL, or a `RangeReader`.
        backend: see `safe_open`. The tensors are copies with every backend.
        storage_options: settings for a URL.
        verify, expected_hashes: see `safetensors.numpy.load_file`.

    Raises:
        SafetensorError: as `load`.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        OSError: the file cannot be read.
    """
    with safe_open(
        filename,
        framework="tf",
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        return f.get_tensors()


def _np2tf(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, tf.Tensor]:
    return {name: _from_numpy(array, name) for name, array in numpy_dict.items()}


def _tf2np(tf_dict: Dict[str, tf.Tensor]) -> Dict[str, np.ndarray]:
    # asarray: numpy() of a tensor without dimensions returns a NumPy scalar.
    return arrays_of(tf_dict, lambda tensor: np.asarray(tensor.numpy()), "tensorflow.Tensor")


def _from_file(array: np.ndarray, _code: str, name: str, path: str) -> Any:
    return _from_numpy(array, name, path)


def _from_numpy(array: np.ndarray, name: str, path: Optional[str] = None) -> Any:
    try:
        return tf.convert_to_tensor(array)
    except (TypeError, ValueError):
        if is_from_ml_dtypes(array):
            refuse(code_of(array), "TensorFlow", name, path)
        raise
