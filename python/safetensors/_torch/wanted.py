"""The tensors that a load wants."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core, _extra
from .._core import SafetensorError, safe_open
from .._errors import failure, while_loading
from .._regions import SelectedPart
from . import torch
from .dtypes import _TYPES, Form, form_in, form_of, nbytes_of

if TYPE_CHECKING:
    from .._core import TensorMeta
    from .transfer import Request


class Wanted(NamedTuple):
    """A tensor to load, or a part of one, and the bytes that it takes."""

    name: str
    handle: safe_open
    part: Any
    """An index, see `SelectedPart.resolved`; None for all."""
    nbytes: int
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Makes the result from the loaded part."""

    def request(self, tensor: torch.Tensor | None = None) -> Request:
        """Returns what the compiled module loads, to `tensor` or a new one."""
        if tensor is None or tensor.is_contiguous():
            return self.handle, self.name, self.part, tensor
        strides = [stride * tensor.element_size() for stride in tensor.stride()]
        return self.handle, self.name, self.part, tensor, strides

    def finished(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the result for a loaded tensor."""
        if self.finish is None:
            return tensor
        return self.finish(tensor)

    def form(self) -> Form:
        """Returns the dtype and shape that torch gives it."""
        return form_in(self.handle, self.name, self.part)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Turns off the cyclic garbage collector, which new objects would trigger again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@gc_paused()  # makes an object for each tensor, none of them garbage
def wanted_of(handles: dict[str, safe_open], parts: dict[str, Any] | None) -> list[Wanted]:
    """Returns the requested tensors in the order of `handles`.

    What tensors with one shape, dtype and part have in common is found once.

    Raises:
        SafetensorError: torch cannot represent a tensor or a part.
        IndexError, TypeError, ValueError: a part is no index of its tensor.
    """
    wanted: list[Wanted] = []
    for handle, pairs in itertools.groupby(handles.items(), operator.itemgetter(1)):
        names = [name for name, _ in pairs]
        _, places = _extra._forms(handle, names)
        own = [None if parts is None else parts[name] for name in names]
        known: dict[tuple[int, int], tuple[Any, int, Any]] = {}
        for name, place, part in zip(names, places, own, strict=True):
            key = (place, id(part))
            found = known.get(key)
            if found is None:
                found = known[key] = _taken(name, handle, part)
            wanted.append(Wanted(name, handle, *found))
    return wanted


def _taken(
    name: str, handle: safe_open, part: Any
) -> tuple[Any, int, Callable[[torch.Tensor], torch.Tensor] | None]:
    """Returns the index of a part, its bytes, and what makes the result from it."""
    meta = handle.get_tensor_meta(name)
    index = None
    try:
        if part is None:
            nbytes = _nbytes(meta)
        else:
            selected = SelectedPart(part, meta.shape)
            index, nbytes = selected.resolved, nbytes_of(form_of(meta, selected))
    except (SafetensorError, IndexError, TypeError, ValueError) as error:
        raise while_loading(error, name, _core._file_of(handle)) from error
    finish = getattr(part, "finish", None)
    if finish is not None:
        finish = functools.partial(finish, shape=form_of(meta)[1])
    return index, nbytes, finish


def refuse_excess(nbytes: int, device: object, budget_bytes: int | None) -> None:
    """Raises if the tensors for a device take more than the caller allows."""
    if budget_bytes is not None and nbytes > budget_bytes:
        raise failure(
            "invalid_argument",
            f"The tensors need {nbytes} bytes on {device}, but budget_bytes allows {budget_bytes}",
        )


def _nbytes(meta: TensorMeta) -> int:
    """Returns the bytes of a tensor. Raises if torch cannot represent it."""
    if meta.dtype not in _TYPES:
        return nbytes_of(form_of(meta))
    begin, end = meta.data_offsets
    return end - begin


class IndexPart:
    """An index as a part of `prefetch`, which takes slices of rows in upstream's strict sense."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def part(self, _: Sequence[int]) -> Any:
        return self.index
