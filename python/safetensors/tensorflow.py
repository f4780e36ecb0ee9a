"""Files of TensorFlow tensors: loading and saving."""

from __future__ import annotations  # to evaluate them takes most of an import

from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf

from safetensors import numpy, safe_open

from ._frameworks import code_of, is_from_ml_dtypes, refuse
from ._typing import Buffer, Path, Progress

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]


def save(tensors: Dict[str, tf.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """A file of the tensors, as bytes.

    Args:
        tensors: eager tensors or variables, on any device.
        metadata: text to go with them.

    Raises:
        SafetensorError: a type or a name that files cannot have.
    """
    return numpy.save(_tf2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, tf.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Writes a file of the tensors: whole, or not at all, leaving an old file as it was.

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
    numpy.save_file(_tf2np(tensors), filename, metadata=metadata, fsync=fsync, progress=progress)


def load(data: Buffer) -> Dict[str, tf.Tensor]:
    """The tensors of a file held in memory, copied, on TensorFlow's default device.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.

    Raises:
        SafetensorError: a damaged file, or a type that TensorFlow does not have.
    """
    return _np2tf(numpy.load(data))


def load_file(filename: Path, *, backend: str = "mmap") -> Dict[str, tf.Tensor]:
    """All tensors of a file, on the device that `load` puts them on.

    Args:
        filename: the file to read.
        backend: as `safe_open` has it. The tensors are copies by both.
    """
    with safe_open(filename, framework="tf", backend=backend) as f:
        return f.get_tensors()


def _np2tf(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, tf.Tensor]:
    return {name: _from_numpy(array) for name, array in numpy_dict.items()}


def _tf2np(tf_dict: Dict[str, tf.Tensor]) -> Dict[str, np.ndarray]:
    # asarray: a tensor of no dimensions gives a NumPy scalar.
    return {name: np.asarray(tensor.numpy()) for name, tensor in tf_dict.items()}


def _from_file(array: np.ndarray, _code: str) -> Any:
    return _from_numpy(array)


def _from_numpy(array: np.ndarray) -> Any:
    try:
        return tf.convert_to_tensor(array)
    except (TypeError, ValueError):
        if is_from_ml_dtypes(array):
            refuse(code_of(array), "TensorFlow")
        raise
