"""Files of JAX arrays: loading and saving."""

from __future__ import annotations  # to evaluate them takes most of an import

from typing import Any, Dict, Optional

import jax.numpy as jnp
import numpy as np
from jax import Array

from safetensors import numpy, safe_open

from ._frameworks import code_of, is_from_ml_dtypes, refuse
from ._typing import Buffer, Path, Progress

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]


def save(tensors: Dict[str, Array], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """A file of the arrays, as bytes.

    Args:
        tensors: the arrays, on any device.
        metadata: text to go with them.

    Raises:
        SafetensorError: a type or a name that files cannot have.
    """
    return numpy.save(_jnp2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, Array],
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
    numpy.save_file(_jnp2np(tensors), filename, metadata=metadata, fsync=fsync, progress=progress)


def load(data: Buffer) -> Dict[str, Array]:
    """The arrays of a file held in memory, copied, on JAX's default device.

    Types of 64 bits become those of 32 unless the option jax_enable_x64 is set, as JAX has it
    with NumPy's arrays.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.

    Raises:
        SafetensorError: a damaged file, or a type that this JAX does not have.
    """
    return _np2jnp(numpy.load(data))


def load_file(filename: Path, *, backend: str = "mmap") -> Dict[str, Array]:
    """All arrays of a file, with the types and on the device that `load` gives them.

    Args:
        filename: the file to read.
        backend: as `safe_open` has it. The arrays are copies by both.
    """
    with safe_open(filename, framework="flax", backend=backend) as f:
        return f.get_tensors()


def _np2jnp(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, Array]:
    return {name: _from_numpy(array) for name, array in numpy_dict.items()}


def _jnp2np(jnp_dict: Dict[str, Array]) -> Dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in jnp_dict.items()}


def _from_file(array: np.ndarray, _code: str) -> Any:
    return _from_numpy(array)


def _from_numpy(array: np.ndarray) -> Any:
    try:
        return jnp.array(array)  # device_put may keep the file's pages
    except TypeError:
        if is_from_ml_dtypes(array):
            refuse(code_of(array), "JAX")
        raise
