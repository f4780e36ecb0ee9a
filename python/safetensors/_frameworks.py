"""How `safe_open` hands out tensors of the frameworks that its core does not make itself."""

import importlib
from typing import Any, Callable, NoReturn, Optional

import numpy as np

from ._core import SafetensorError, TensorSpec, _dtypes

_Convert = Callable[[np.ndarray, str], Any]


def converter(name: str) -> _Convert:
    """The function from an array of a file to a tensor of "tensorflow", "flax", "mlx", "paddle".

    It takes the array and what the file calls its type: MLX and Paddle get the bits of a type that
    NumPy has through ml_dtypes only. What it returns stays valid when the array is gone.
    Paddle is imported here, any other framework at the first tensor.
    """
    if name == "paddle":
        return _function_of(name)
    function: Optional[_Convert] = None

    def convert(array: np.ndarray, code: str) -> Any:
        nonlocal function
        if function is None:
            function = _function_of(name)
        return function(array, code)

    return convert


def is_from_ml_dtypes(array: np.ndarray) -> bool:
    """Whether the array's type is one that NumPy has through ml_dtypes."""
    return array.dtype.isbuiltin == 2


def code_of(array: np.ndarray) -> str:
    """What files call the array's type."""
    name = array.dtype.name
    if name == _dtypes()["F4"]["ml_dtypes"]:
        return "F4"
    return TensorSpec(dtype=name, shape=(), data_ptr=0, data_len=0).dtype


def refuse(code: str, framework: str) -> NoReturn:
    """Raises for a type of files that the framework does not have."""
    raise SafetensorError(f"Dtype not understood: {code}: {framework} has no such type")


def _function_of(name: str) -> _Convert:
    module = importlib.import_module(f"{__package__}.{name}")
    function: _Convert = module._from_file
    return function
