"""What a file will hold: the dtypes and shapes of its tensors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import _extra
from .._core import safe_open
from .._dtypes import code_of_name
from .._errors import failure
from .._typing import Path


class Spec(NamedTuple):
    """What a file will hold of a tensor."""

    dtype: str
    """The format's name, such as "BF16"."""
    shape: tuple[int, ...]


Row = tuple[str, str, Sequence[int]]
"""The name, dtype and shape of a tensor, as the compiled module takes them."""


def specs_of(source: Any) -> dict[str, Spec]:
    """Returns the dtypes and shapes of tensors, for `safe_create`.

    Args:
        source: a dict of tensors (of torch, also on the meta device, or of NumPy) or of
            `(dtype, shape)`; a module of torch; an open file (`safe_open`); or the path of a file,
            an index or a directory. A dtype is a name of the format ("BF16"), of torch
            ("bfloat16"), or a dtype object.

    Raises:
        SafetensorError: the format has no such dtype.
        TypeError: a value is neither a tensor nor a pair.
        RuntimeError: tensors of a dict share memory, as in `save_file`.
    """
    if isinstance(source, safe_open):
        return _specs_of_file(source)
    if isinstance(source, (str, bytes, os.PathLike)):
        return _specs_of_path(source)
    if not isinstance(source, Mapping):
        if not hasattr(source, "state_dict"):
            raise TypeError(
                f"expected a dict, a module, an open file or a path, found {type(source).__name__}"
            )
        source = source.state_dict()
    if isinstance(source, dict) and _begins_with_torch(source):
        specs = _extra._specs_of_torch(source, Spec)
        if specs is not None:
            return specs
    specs = {name: spec_of(name, value) for name, value in source.items()}
    _refuse_shared(source)
    return specs


def _dtype_code(name: str, dtype: Any) -> str:
    """Returns the format's name of a dtype."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    code = code_of_name(text.rpartition(".")[2])
    if code is None:
        raise failure(
            "unsupported_dtype",
            f"Error while serializing: tensor `{name}`: the format has no dtype {text}",
            subject=name,
            also=KeyError,
        )
    return code


def spec_of(name: str, value: Any) -> Spec:
    """Returns the spec of a tensor, or of a pair (dtype, shape)."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise _no_spec(name, value)
        dtype, shape = value
        return Spec(_dtype_code(name, dtype), tuple(shape))
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(value, torch.Tensor)
    if is_torch:
        from .._torch.checks import refuse_shapeless

        refuse_shapeless(value, name)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise _no_spec(name, value)
    code = _dtype_code(name, value.dtype)
    shape = tuple(value.shape)
    if code == "F4" and shape and is_torch:
        shape = (*shape[:-1], shape[-1] * 2)  # torch's element is a byte, which holds two
    return Spec(code, shape)


def _no_spec(name: str, value: object) -> TypeError:
    kind = type(value).__name__
    return TypeError(f"tensor `{name}`: expected a tensor or (dtype, shape), found {kind}")


def spec_in(file: safe_open, name: str) -> Spec:
    meta = file.get_tensor_meta(name)
    return Spec(meta.dtype, tuple(meta.shape))


def rows_of(specs: Mapping[str, Spec]) -> list[Row]:
    """Returns the specs as the compiled module takes them."""
    return [(name, spec.dtype, spec.shape) for name, spec in specs.items()]


def nbytes_of(rows: Sequence[Row]) -> dict[str, int]:
    """Returns the bytes of each tensor.

    Raises:
        SafetensorError: a file cannot hold these tensors.
    """
    places = _extra._plan_layout(rows, None, "given")[1]
    return {row[0]: nbytes for row, (_, nbytes) in zip(rows, places, strict=True)}


def _specs_of_file(file: safe_open) -> dict[str, Spec]:
    return {name: spec_in(file, name) for name in file.offset_keys()}


def _specs_of_path(path: Path) -> dict[str, Spec]:
    from .._open_shards import open_tensors
    from .._shards import find_shards

    with contextlib.ExitStack() as stack:
        handles, _ = open_tensors(find_shards(path), None, "pread", stack)
        return {name: spec_in(handle, name) for name, handle in handles.items()}


def _begins_with_torch(source: dict[str, Any]) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(next(iter(source.values()), None), torch.Tensor)


def _refuse_shared(source: Mapping[str, Any]) -> None:
    """Raises RuntimeError if tensors of torch share memory."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    real = {
        name: value
        for name, value in source.items()
        if isinstance(value, torch.Tensor) and value.device.type != "meta"
    }
    if real:
        from .._torch.checks import _refuse_shared_tensors

        _refuse_shared_tensors(real)
