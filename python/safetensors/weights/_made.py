"""Tensors of a checkpoint that are made of those of a GGUF file, and how their rows are made."""

import bisect
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from safetensors._errors import failure_of
from safetensors._weights import WeightsError

from ._hf_names import HfNames
from ._model import Weights

Fill = Callable[[Any, int, int, Any, str], None]
"""`fill(model, begin, rows, values, kind)` writes decoded rows as bytes."""
Rows = tuple[str, int, int]
"""The name of a tensor, its first row, and a number of rows."""
MAX_EXPERTS = 1 << 16
"""Experts of a stack that become tensors of their own."""


class Made(NamedTuple):
    """A tensor of the checkpoint that is made of tensors of the file."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    """None if it is made of metadata."""
    fill: Fill
    unit_values: int = 0
    """Values that can be made alone; 0: whole rows."""


def gathered(pieces: Sequence[Rows]) -> Fill:
    """Returns a function that puts rows of several tensors one after the other."""
    ends: list[int] = []
    for _, _, rows in pieces:
        ends.append(rows + (ends[-1] if ends else 0))

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        size, end = len(values) // rows, begin + rows
        at = begin
        for index in range(bisect.bisect_right(ends, begin), len(pieces)):
            source, first, count = pieces[index]
            start = ends[index] - count
            upto = min(ends[index], end)
            out = values[(at - begin) * size : (upto - begin) * size]
            model.dequantize(source, out, kind, first + at - start, upto - at)
            at = upto
            if at == end:
                break

    return fill


def with_columns(source: str, order: Sequence[int]) -> Fill:
    """Returns a function that reorders the columns of a tensor: `order[i]` becomes column i."""

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        model.dequantize(source, values, kind, begin, rows)
        matrix = values.view(BITS[kind]).reshape(rows, -1)
        matrix[:] = matrix.take(order, axis=1)

    return fill


def changed(source: str, change: Callable[[Any], Any], count: int = 0) -> Fill:
    """Returns a function that computes a vector in F32, and rounds once. `count` is how many values
    the source has; 0: as many as the vector."""

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        import numpy

        size = count or len(values) // numpy.dtype(BITS[kind]).itemsize
        decoded = numpy.empty(size, numpy.float32)
        model.dequantize(source, decoded.view("u1"), "float32", 0, -1)
        values.view(BITS[kind])[:] = rounded(change(decoded), kind)

    return fill


BITS = {"float32": "u4", "float16": "u2", "bfloat16": "u2"}


def rounded(values: Any, kind: str) -> Any:
    """Returns the bits of F32 values, rounded to nearest even."""
    import numpy

    if kind != "bfloat16":
        with numpy.errstate(over="ignore"):
            return values.astype(kind).view(BITS[kind])
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)


def whole(source: str) -> Fill:
    """Returns a function that gives all values of a tensor another shape."""

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        model.dequantize(source, values, kind, 0, -1)

    return fill


def reordered(
    weights: Weights,
    names: HfNames,
    name: str,
    pieces: Sequence[tuple[int, int]],
    target: str | None = None,
) -> Made:
    """Returns a weight or bias of the rows of another, in another order: each piece is a first row
    and a number of rows. Without a target, it has the name of the other."""
    shape = (sum(rows for _, rows in pieces), *weights[name].shape[1:])
    if len(shape) == 2:
        fill = gathered([(name, first, rows) for first, rows in pieces])
    else:
        order = [first + i for first, rows in pieces for i in range(rows)]
        fill = changed(name, operator.itemgetter(order), weights[name].shape[0])
    return Made(name_of(names, target or name), shape, (name,), fill)


def made_conv1d(weights: Weights, names: HfNames, name: str) -> Made:
    """A convolution has one channel for each group."""
    shape = weights[name].shape
    if len(shape) != 2:
        raise bad_shape(weights, name, "a convolution of two axes")
    fill = gathered([(name, 0, shape[0])])
    return Made(name_of(names, name), (shape[0], 1, shape[1]), (name,), fill)


def logarithms(weights: Weights, name: str, order: Any = ...) -> Callable[[Any], Any]:
    """Returns a function that computes A_log: the converter stores A = -exp(A_log)."""

    def change(values: Any) -> Any:
        import numpy

        if not (values < 0).all():
            raise bad_shape(weights, name, "numbers below 0")
        return numpy.log(-values[order])

    return change


def joined(weights: Weights, sources: Sequence[str]) -> Fill:
    """Returns a function that puts all values of several tensors one after the other."""
    sizes = {name: math.prod(weights[name].shape) for name in sources}

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        at, width = 0, len(values) // sum(sizes.values())
        for name, size in sizes.items():
            model.dequantize(name, values[at : at + size * width], kind, 0, -1)
            at += size * width

    return fill


def layers_with(
    weights: Weights, names: HfNames, module: str, layers: str = "layers"
) -> Iterator[str]:
    """Yields `layers.N.` of the layers that have a tensor and names."""
    layer = re.compile(re.escape(layers) + r"\.[0-9]+\.")
    for name in weights:
        start = name.removesuffix(module)
        if start != name and layer.fullmatch(start) and start not in names.left:
            yield start


def name_of(names: HfNames, canonical: str) -> str:
    found = names.of(canonical)
    assert found is not None, canonical
    return found.name


def shape_of(weights: Weights, names: Sequence[str], axes: int) -> tuple[int, ...]:
    """Returns the shape that all of these tensors have. Raises WeightsError if it has not so many
    axes, or they differ."""
    for name in names:
        shape = weights[name].shape
        if len(shape) != axes or shape != weights[names[0]].shape:
            raise bad_shape(weights, name, f"{axes} axes, and the shape of `{names[0]}`")
    return weights[names[0]].shape


def bad_shape(weights: Weights, name: str, what: str) -> WeightsError:
    text = f"`{name}` does not fit {what}"
    return failure_of(WeightsError, "bad_shape", text, path=weights.files[0], subject=name)
