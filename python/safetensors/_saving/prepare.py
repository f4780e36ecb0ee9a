"""Brings any tensor into the layout of files."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .._errors import failure


class Prepared(NamedTuple):
    """A tensor in the layout of files."""

    dtype: str
    shape: tuple[int, ...]
    array: Any
    """Its bytes, an object with a buffer."""
    spec: Any
    """A TensorSpec of the array."""


def prepared(name: str, tensor: Any) -> Any:
    """Returns a Prepared, or the tensor itself if it is an object with a buffer.

    Raises:
        SafetensorError: the framework of the tensor does not hand out its bytes; or it is neither
            a tensor nor an object with a buffer (a TypeError, too).
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _prepared_torch(name, tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return _prepared_numpy(name, tensor)
    if not hasattr(tensor, "__dlpack__"):
        _refuse_without_buffer(name, tensor)
        return tensor
    from .._numpy_arrays import handed_out

    array = handed_out(name, tensor)
    if torch is not None and isinstance(array, torch.Tensor):
        return _prepared_torch(name, array)
    return _prepared_numpy(name, array)


def _refuse_without_buffer(name: str, value: Any) -> None:
    try:
        memoryview(value).release()
    except TypeError:
        raise failure(
            "invalid_argument",
            f"Error while serializing: tensor `{name}` is a {type(value).__name__}, which is no "
            "tensor, no array and no object with a buffer",
            subject=name,
            also=TypeError,
        ) from None


def _prepared_torch(name: str, tensor: Any) -> Prepared:
    from .._torch.arrays import _to_ndarray
    from .._torch.checks import _evaluate_tensors_for_save
    from .._torch.dtypes import tensor_spec

    _evaluate_tensors_for_save({name: tensor})
    array, dense = _to_ndarray(tensor)
    spec = tensor_spec(dense, array.ctypes.data, array.nbytes)
    return Prepared(spec.dtype, tuple(spec.shape), array, spec)


def _prepared_numpy(name: str, array: Any) -> Prepared:
    from .._numpy_arrays import _flatten

    kept: list[Any] = []
    spec = _flatten({name: array}, kept)[name]
    stored = kept[0].reshape(-1).view("u1")
    return Prepared(spec.dtype, tuple(spec.shape), stored, spec)
