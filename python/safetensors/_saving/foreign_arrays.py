"""Reads tensors of frameworks that NumPy does not know."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .._core import SafetensorError
from .._errors import failure

__all__ = ["array_of", "handed_out"]


def array_of(name: str, tensor: Any) -> Any:
    """Returns an array of NumPy for a tensor of another framework that NumPy can read.

    Tensors of torch are returned as they are.

    Raises:
        SafetensorError: there is no such array.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor
    array = handed_out(name, tensor)
    if torch is not None and isinstance(array, torch.Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise failure(
            "unsupported_dtype",
            f"Error while serializing: tensor `{name}`, a {kind} of type {tensor.dtype}, has no "
            "array of NumPy without ml_dtypes: safe_create saves tensors of any framework",
            subject=name,
        )
    return array


def handed_out(name: str, tensor: Any) -> Any:
    """Returns an object with `__dlpack__` as an array of NumPy or a tensor of torch.

    Raises:
        SafetensorError: the framework of the tensor does not hand out its bytes.
    """
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
        return importlib.import_module("safetensors.mlx")._to_numpy(tensor)
    import numpy as np

    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return np.asarray(tensor)
    torch = sys.modules.get("torch")
    return np.from_dlpack(tensor) if torch is None else torch.from_dlpack(tensor)
