"""Brings any tensor into the layout of files."""

from __future__ import annotations

import importlib
import sys
from typing import Any, List, NamedTuple, Tuple

from ._core import SafetensorError
from ._errors import failure


class Prepared(NamedTuple):
    """A tensor in the layout of files."""

    dtype: str
    shape: Tuple[int, ...]
    array: Any
    """Its bytes, an object with a buffer."""
    spec: Any
    """A TensorSpec of the array."""


def prepared(name: str, tensor: Any) -> Any:
    """Returns a Prepared, or the tensor itself if it is an object with a buffer.

    Raises:
        SafetensorError: the framework of the tensor does not hand out its bytes.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _prepared_torch(name, tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return _prepared_numpy(name, tensor)
    if not hasattr(tensor, "__dlpack__"):
        return tensor
    array = _array_of(name, tensor)
    if torch is not None and isinstance(array, torch.Tensor):
        return _prepared_torch(name, array)
    return _prepared_numpy(name, array)


def array_of(name: str, tensor: Any) -> Any:
    """Returns an array of NumPy for a tensor of another framework that NumPy can read.

    Tensors of torch are returned as they are.

    Raises:
        SafetensorError: there is no such array.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor
    array = _array_of(name, tensor)
    if torch is not None and isinstance(array, torch.Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise failure(
            "unsupported_dtype",
            f"Error while serializing: tensor `{name}`, a {kind} of type {tensor.dtype}, has no "
            "array of NumPy without ml_dtypes: safe_create saves tensors of any framework",
            subject=name,
        )
    return array


def _array_of(name: str, tensor: Any) -> Any:
    """Returns an object with `__dlpack__` as an array of NumPy or a tensor of torch."""
    try:
        return _read_by_framework(tensor)
    except SafetensorError as error:
        raise failure(
            "invalid_argument", f"Error while serializing: tensor `{name}`: {error}", subject=name
        ) from error
    # What JAX, MLX and others raise: BufferError is what DLPack asks for.
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise failure(
            "invalid_argument",
            f"Error while serializing: tensor `{name}`, a {kind} of type "
            f"{getattr(tensor, 'dtype', None)}, cannot be read by NumPy or torch: {error}",
            subject=name,
        ) from error


def _read_by_framework(tensor: Any) -> Any:
    """Returns a tensor of another framework as an array of NumPy, or as a tensor of torch."""
    # DLPack has bfloat16, but NumPy reads no such arrays; ml_dtypes gives it the types.
    mlx = sys.modules.get("mlx.core")
    if mlx is not None and isinstance(tensor, mlx.array):
        return importlib.import_module(f"{__package__}.mlx")._to_numpy(tensor)
    import numpy as np

    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return np.asarray(tensor)
    torch = sys.modules.get("torch")
    return np.from_dlpack(tensor) if torch is None else torch.from_dlpack(tensor)


def _prepared_torch(name: str, tensor: Any) -> Prepared:
    from ._torch.arrays import _to_ndarray
    from ._torch.checks import _evaluate_tensors_for_save
    from ._torch.dtypes import tensor_spec

    _evaluate_tensors_for_save({name: tensor})
    array, dense = _to_ndarray(tensor)
    spec = tensor_spec(dense, array.ctypes.data, array.nbytes)
    return Prepared(spec.dtype, tuple(spec.shape), array, spec)


def _prepared_numpy(name: str, array: Any) -> Prepared:
    from . import numpy

    kept: List[Any] = []
    spec = numpy._flatten({name: array}, kept)[name]
    stored = kept[0].reshape(-1).view("u1")
    return Prepared(spec.dtype, tuple(spec.shape), stored, spec)
