"""Loads and saves JAX arrays."""

from __future__ import annotations  # evaluating them would dominate the import time

from typing import Any, Dict, Mapping, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from safetensors import numpy, safe_open

from ._frameworks import arrays_of, code_of, is_from_ml_dtypes, refuse
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify
from ._warn import warn

__all__ = ["load", "load_file", "numpy", "safe_open", "save", "save_file"]


def save(tensors: Dict[str, Array], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns a file with the arrays, as bytes.

    Args:
        tensors: arrays by name, on any devices.
        metadata: strings to store in the file's header.

    Raises:
        SafetensorError: the format has no such dtype, or a name cannot be written.
    """
    return numpy.save(_jnp2np(tensors), metadata=metadata)


def save_file(
    tensors: Dict[str, Array],
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
    numpy.save_file(_jnp2np(tensors), filename, metadata, fsync=fsync, progress=progress, sums=sums)


def load(data: Buffer) -> Dict[str, Array]:
    """Returns the arrays of a file that is in memory, copied to JAX's default device.

    As in `jax.numpy.array`, 64-bit dtypes become 32-bit ones unless jax_enable_x64 is set. If that
    changes integers, a UserWarning says so.

    Args:
        data: the file's bytes: any object with a contiguous buffer.

    Raises:
        SafetensorError: the file is damaged, or this JAX has no such dtype.
    """
    return _np2jnp(numpy.load(data))


def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, Array]:
    """Returns all arrays of a file, with the dtypes and on the device that `load` selects.

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
        framework="flax",
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        return f.get_tensors()


def _np2jnp(numpy_dict: Dict[str, np.ndarray]) -> Dict[str, Array]:
    return {name: _from_numpy(array, name) for name, array in numpy_dict.items()}


def _jnp2np(jnp_dict: Dict[str, Array]) -> Dict[str, np.ndarray]:
    return arrays_of(jnp_dict, np.asarray, "jax.Array")


def _from_file(array: np.ndarray, _code: str, name: str, path: str) -> Any:
    return _from_numpy(array, name, path)


def _from_numpy(array: np.ndarray, name: str, path: Optional[str] = None) -> Any:
    _warn_of_wrapped(array)
    try:
        return jnp.array(array)  # copies, where device_put may keep a view of the file's pages
    except TypeError:
        if is_from_ml_dtypes(array):
            refuse(code_of(array), "JAX", name, path)
        raise


def _warn_of_wrapped(array: np.ndarray) -> None:
    """Warns if JAX, which has no 64-bit types unless it is told to, changes integers."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 8 or array.size == 0:
        return
    if jax.config.jax_enable_x64:
        return
    limits = np.iinfo(f"{array.dtype.kind}4")
    if array.min() < limits.min or array.max() > limits.max:
        warn(
            f"a tensor of {array.dtype} has values that do not fit into 32 bits, and JAX keeps "
            "only their low 32 bits; with jax_enable_x64, it keeps the values"
        )
