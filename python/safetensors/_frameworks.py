"""Converts NumPy arrays to tensors of the frameworks that the compiled module does not know."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from ._core import TensorSpec
from ._errors import failure, not_a_tensor

_Convert = Callable[[np.ndarray, str, str], Any]


def converter(framework: str, path: str) -> _Convert:
    """Returns the function that converts an array of a file to a tensor of a framework.

    The function takes the array, the format's dtype name and the tensor's name, and returns a copy.
    For a dtype that NumPy has only through ml_dtypes, MLX and Paddle get the bits. Paddle is
    imported here, any other framework at the first call of the function.

    Args:
        framework: "tensorflow", "flax", "mlx" or "paddle".
        path: the file, for errors.
    """
    function = _function_of(framework) if framework == "paddle" else None

    def convert(array: np.ndarray, code: str, name: str) -> Any:
        nonlocal function
        if function is None:
            function = _function_of(framework)
        return function(array, code, name, path)

    return convert


def arrays_of(
    tensors: Mapping[str, Any], convert: Callable[[Any], np.ndarray], expected: str
) -> dict[str, np.ndarray]:
    """Converts tensors to arrays.

    Args:
        tensors: by name.
        convert: returns a tensor's array. What is no tensor makes it raise, or becomes an array of
            objects.
        expected: the type that tensors should have, for errors.

    Raises:
        SafetensorError: a value is no tensor. The text names it. The error is also what the
            framework raised, an AttributeError or TypeError, or else a ValueError.
    """
    arrays = {}
    for name, tensor in tensors.items():
        try:
            array = convert(tensor)
        except (AttributeError, TypeError, ValueError) as error:
            raise not_a_tensor(name, tensor, expected, error) from error
        if array.dtype.hasobject and not isinstance(tensor, np.ndarray):
            raise not_a_tensor(name, tensor, expected)
        arrays[name] = array
    return arrays


def is_from_ml_dtypes(array: np.ndarray) -> bool:
    """Returns whether the array's dtype comes from ml_dtypes."""
    return array.dtype.isbuiltin == 2  # 2: a dtype that another package registered


def code_of(array: np.ndarray) -> str:
    """Returns the format's name of the array's dtype."""
    return TensorSpec(dtype=array.dtype.name, shape=(), data_ptr=0, data_len=0).dtype


def refuse(code: str, framework: str, name: str, path: str | None) -> NoReturn:
    """Raises the error for a dtype that the framework does not have.

    Args:
        code: the format's name of the dtype.
        framework: its name.
        name: the tensor.
        path: its file; None if it is in memory.
    """
    text = f"Dtype not understood: {code}: {framework} has no such type: tensor `{name}`"
    raise failure("unsupported_dtype", text, path=path, subject=name)


def _function_of(framework: str) -> Callable[[np.ndarray, str, str, str], Any]:
    module = importlib.import_module(f"{__package__}.{framework}")
    function: Callable[[np.ndarray, str, str, str], Any] = module._from_file
    return function
