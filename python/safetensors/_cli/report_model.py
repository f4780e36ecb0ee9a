"""Opens the models that a report describes, and reads their values. Needs NumPy."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .._model_folder import BY_RULE, Choice
from .._outline.contents import Contents, base_name, of_weights
from .._outline.summary import by_weight_layer, opened_weights
from .._outline.values import MOST_VALUES, stretches
from . import text
from .decode import Array, decoded
from .dtypes import BITS, element_count
from .model import Model, Placed
from .output import Advance
from .reader import File, Tensor

_PIECE = 1 << 20
"""The number of values that are decoded at a time, unless a row is longer."""


class Subject(NamedTuple):
    """An open model."""

    contents: Contents
    placed: dict[str, Placed]
    """What has the values of each tensor."""
    types: dict[str, str]
    """The types by which the tensors are listed."""


class Difference(NamedTuple):
    """How far the values of two tensors of one shape are apart, computed in float64."""

    largest: float
    rms: float
    relative: float | None
    """sqrt(sum |a-b|^2 / sum |a|^2); None if all values of the first are 0."""


class _Decoded(File):
    """A model of the weight layer: the values are those that it decodes."""

    is_whole = False

    def __init__(self, model: Any, is_quick: bool) -> None:
        self.path = model.files[0]
        self._model, self._is_quick = model, is_quick
        self.tensors = [
            Tensor(name, "F32", model[name].shape, 0, 4 * element_count(model[name].shape))
            for name in (*model, *model.unmapped)
        ]

    def close(self) -> None:
        self._model.close()

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        count = element_count(tensor.shape)
        length = tensor.shape[-1] if tensor.shape else 1
        if self._is_quick and count > MOST_VALUES and length <= MOST_VALUES:
            parts = stretches(count // length, length)
        else:
            rows, step = count // max(length, 1), max(1, _PIECE // max(length, 1))
            parts = [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
        for begin, end in parts:
            yield self._model[tensor.name].numpy("float32", rows=slice(begin, end)).tobytes()


class _Sampled(File):
    """Some of the values of a file."""

    is_whole = False

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._whole = file

    def close(self) -> None:
        self._whole.close()

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        count = element_count(tensor.shape)
        if count <= MOST_VALUES:
            yield from self._whole.chunks(tensor)
            return
        # Whole bytes also of types of 4 bits.
        for begin, end in stretches(count // 16, 16):
            first, last = (BITS[tensor.dtype] * 2 * each for each in (begin, end))
            yield self._whole.read(tensor.begin + first, last - first)


@contextlib.contextmanager
def opened(paths: list[str], choice: Choice, is_quick: bool) -> "Iterator[list[Subject]]":
    """Opens models: all by the weight layer if one is quantised or a GGUF file, so that they have
    the same names. `choice` is for the first one."""
    choices = [choice, *[BY_RULE] * (len(paths) - 1)]
    with contextlib.ExitStack() as stack:
        models = [opened_weights(*each) for each in zip(paths, choices, strict=True)]
        for model in models:
            if model is not None:
                stack.enter_context(model)
        if all(model is None for model in models):  # one without tensors is false
            yield [
                _of_files(stack.enter_context(Model(*each)), is_quick)
                for each in zip(paths, choices, strict=True)
            ]
            return
        found = []
        for path, given, model in zip(paths, choices, models, strict=True):
            if model is None:
                model = stack.enter_context(by_weight_layer(path, given))
            found.append(_of_weights(path, model, is_quick))
        yield found


def _of_weights(path: str, model: Any, is_quick: bool) -> Subject:
    contents = of_weights(model, base_name(path))
    file = _Decoded(model, is_quick)
    placed = {each.name: Placed(file, each) for each in file.tensors if model[each.name].is_decoded}
    types = {name: model[name].type_name for name in (*model, *model.unmapped)}
    return Subject(contents, placed, types)


def _of_files(model: Model, is_quick: bool) -> Subject:
    placed = model.by_name()
    sizes = [(base_name(f.path), sum(t.nbytes for t in f.tensors)) for f in model.files]
    kind = "safetensors"
    if len(sizes) > 1:
        kind += f", {text.count(len(sizes), 'file')}"
    contents = Contents(
        base_name(model.path),
        kind,
        [(t.name, t.dtype, t.shape, t.nbytes) for _, t in placed.values()],
        files=sizes if len(sizes) > 1 else (),
        metadata=list(model.metadata().items()),
    )
    types = {name: each.tensor.dtype for name, each in placed.items()}
    if is_quick:
        files = {file.path: _Sampled(file) for file in model.files}
        placed = {n: Placed(files[each.file.path], each.tensor) for n, each in placed.items()}
    return Subject(contents, placed, types)


def measure(a: Placed, b: Placed, advance: Advance) -> Difference:
    """Compares two tensors of equal shapes. NaN is equal to NaN."""
    largest = squares = of_a = 0.0
    count = 0
    with np.errstate(all="ignore"):
        for left, right in _in_step(_values(a, advance), _values(b, advance)):
            unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
            apart = np.where(unequal, np.abs(left - right), 0.0)
            largest = float(np.maximum(largest, apart.max(initial=0.0)))  # NaN stays
            squares += float(np.square(apart).sum())
            of_a += float(np.square(np.abs(left)).sum())
            count += left.size
    rms = math.sqrt(squares / max(count, 1))
    relative = None
    if squares == 0:
        relative = 0.0
    elif of_a > 0:
        relative = math.sqrt(squares / of_a)
    return Difference(largest, rms, relative)


def _values(placed: Placed, advance: Advance) -> "Iterator[Array]":
    for data in placed.file.chunks(placed.tensor):
        values = decoded(data, placed.tensor.dtype)
        yield values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
        advance(len(data))


def _in_step(a: "Iterator[Array]", b: "Iterator[Array]") -> "Iterator[tuple[Array, Array]]":
    """Yields pairs of equal length of the values of both, which have equally many in all."""
    left: Any = np.empty(0)
    right: Any = np.empty(0)
    while True:
        left = left if left.size else next(a, left)
        right = right if right.size else next(b, right)
        size = min(left.size, right.size)
        if size == 0:
            return
        yield left[:size], right[:size]
        left, right = left[size:], right[size:]
