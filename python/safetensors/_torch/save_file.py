"""Saves tensors to a file."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._core import TensorSpec
from .._saving.arguments import SaveArguments
from . import torch
from .arrays import _to_ndarray
from .checks import _check_dense, _evaluate_tensors_for_save
from .dtypes import tensor_spec

__all__ = ["to_file"]


def to_file(
    tensors: dict[str, torch.Tensor],
    filename: Any,
    options: SaveArguments,
    advice: str = "",
) -> None:
    """Does what `safetensors.torch.save_file` does.

    The text of a ValueError about a tensor ends with the advice.
    """
    how = options.of_file(filename)
    if isinstance(tensors, dict) and _core._save_torch_file(tensors, filename, how):
        return
    keep_alive: list[Any] = []
    try:
        specs = _flatten_as_ptr(tensors, keep_alive)
    except ValueError as error:
        if not advice:
            raise
        raise ValueError(f"{error}{advice}") from error
    _core._save_specs_file(specs, filename, how)


def _flatten_as_ptr(
    tensors: dict[str, torch.Tensor], keep_alive_buffer: list[Any]
) -> dict[str, TensorSpec]:
    """Returns the argument of `serialize`.

    The specs point to memory that `keep_alive_buffer` owns once this function returns.
    """
    _evaluate_tensors_for_save(tensors)
    specs = {}
    for name, tensor in tensors.items():
        _check_dense(tensor, name)
        array, dense = _to_ndarray(tensor)
        keep_alive_buffer.append((array, dense))
        specs[name] = tensor_spec(tensor, array.ctypes.data, array.nbytes)
    return specs
