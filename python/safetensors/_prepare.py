"""Brings any tensor into the layout of files."""

from __future__ import annotations

import sys
from typing import Any, List, NamedTuple, Tuple


class Prepared(NamedTuple):
    """A tensor in the layout of files."""

    dtype: str
    shape: Tuple[int, ...]
    array: Any
    """Its bytes, an object with a buffer."""
    spec: Any
    """A TensorSpec of the array."""


def prepared(name: str, tensor: Any) -> Any:
    """Returns a Prepared, or the tensor itself if it is an object with a buffer."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _prepared_torch(name, tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return _prepared_numpy(tensor)
    if hasattr(tensor, "__dlpack__"):
        if torch is not None:
            return _prepared_torch(name, torch.from_dlpack(tensor))
        import numpy as np

        return _prepared_numpy(np.from_dlpack(tensor))
    return tensor


def _prepared_torch(name: str, tensor: Any) -> Prepared:
    from . import torch
    from ._torch.checks import _evaluate_tensors_for_save
    from ._torch.dtypes import tensor_spec

    _evaluate_tensors_for_save({name: tensor})
    array, dense = torch._to_ndarray(tensor)
    spec = tensor_spec(dense, array.ctypes.data, array.nbytes)
    return Prepared(spec.dtype, tuple(spec.shape), array, spec)


def _prepared_numpy(array: Any) -> Prepared:
    from . import numpy

    kept: List[Any] = []
    spec = numpy._flatten({"": array}, kept)[""]
    stored = kept[0].reshape(-1).view("u1")
    return Prepared(spec.dtype, tuple(spec.shape), stored, spec)
