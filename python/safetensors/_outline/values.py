"""Values of one tensor of a model, sampled if it is large. Needs NumPy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

MAX_VALUES = 1 << 20
"""How many values are decoded for a picture."""
_STRETCHES = 64
_BINS = 60


class Sample(NamedTuple):
    """Counts and moments of values of a tensor."""

    values: int
    """How many values were decoded; `of` says how many there are."""
    of: int
    finite: int
    zeros: int
    low: float
    high: float
    mean: float
    deviation: float
    counts: list[int]
    """Of bins of equal width from `low` to `high`."""


def sampled(tensor: Any) -> Sample | None:
    """Returns what the values of a `WeightTensor` are like. None if the tensor is empty, is not
    decoded, or has rows that are too long to be sampled."""
    count = math.prod(tensor.shape)
    if count == 0 or not tensor.is_decoded:
        return None
    values = _decoded(tensor, count)
    if values is None:
        return None
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return Sample(values.size, count, 0, 0, 0.0, 0.0, 0.0, 0.0, [])
    low, high = float(finite.min()), float(finite.max())
    counts, _ = np.histogram(finite, _BINS, (low, high) if high > low else (low, low + 1))
    return Sample(
        values=values.size,
        of=count,
        finite=finite.size,
        zeros=int(np.count_nonzero(finite == 0)),
        low=low,
        high=high,
        mean=float(finite.mean()),
        deviation=float(finite.std()),
        counts=counts.tolist(),
    )


def _decoded(tensor: Any, count: int) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Returns all values, or those of stretches of rows that are spread evenly."""
    if count <= MAX_VALUES:
        return np.asarray(tensor.numpy("float32")).ravel()
    length = tensor.shape[-1]
    rows = count // length
    if length > MAX_VALUES:
        return None
    parts = [tensor.numpy("float32", rows=slice(*each)).ravel() for each in stretches(rows, length)]
    return np.concatenate(parts)


def stretches(rows: int, length: int) -> list[tuple[int, int]]:
    """Returns stretches of rows of this length, spread evenly, with up to MAX_VALUES values."""
    each = min(rows, max(1, MAX_VALUES // _STRETCHES // length))
    number = min(_STRETCHES, MAX_VALUES // (each * length), rows // each)
    starts = [(rows - each) * i // max(number - 1, 1) for i in range(number)]
    return [(start, start + each) for start in starts]
