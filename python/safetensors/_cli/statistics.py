"""Computes statistics and a histogram of a tensor, a chunk at a time. Needs NumPy."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from .decode import Array
from .output import Advance
from .reader import File, Tensor


class Statistics(NamedTuple):
    """Statistics of the finite values; for complex values, of their absolute values."""

    elements: int
    finite: int
    nan: int
    infinite: int
    zero: int
    least: float | int
    most: float | int
    mean: float | None
    """None if it overflows, as it may for the largest floats."""
    deviation: float | None


class Histogram(NamedTuple):
    """Counts of finite values in bins of equal width. There is one more edge than bins."""

    counts: list[int]
    edges: list[float]


def statistics(file: File, tensor: Tensor, advance: Advance) -> Statistics:
    """Computes the statistics. Reads the tensor once."""
    count = finite = nan = zero = 0
    least: Any = None
    most: Any = None
    # Chan, Golub and LeVeque's pairwise update: for parts A and B with sizes a and b, means m and
    # sums S of squared deviations, with d = mB - mA:
    #   mean = mA + d * b / (a + b),  S = SA + SB + d^2 * a * b / (a + b).
    # It stays accurate for large means. The mean of integers is exact, and rounded at the end.
    mean: float | Fraction = 0.0
    squares = 0.0
    with np.errstate(all="ignore"):
        for values in _chunks(file, tensor, advance):
            count += values.size
            zero += values.size - int(np.count_nonzero(values))
            if values.dtype.kind == "f":
                nan += int(np.isnan(values).sum())
                values = values[np.isfinite(values)]
            if values.size == 0:
                continue
            low, high = values.min().item(), values.max().item()
            least = low if least is None else min(least, low)
            most = high if most is None else max(most, high)
            chunk_mean, chunk_squares = _moments(values, low)
            if finite == 0:
                mean, squares, finite = chunk_mean, chunk_squares, values.size
                continue
            difference = chunk_mean - mean
            together = finite + values.size
            delta = float(difference)
            squares += chunk_squares + delta * delta * finite * values.size / together
            mean += difference * values.size / together
            finite = together
        deviation = float(np.sqrt(squares / finite)) if finite else 0.0
    infinite = count - finite - nan
    return Statistics(
        count,
        finite,
        nan,
        infinite,
        zero,
        least or 0,
        most or 0,
        float(mean) if np.isfinite(float(mean)) else None,
        deviation if np.isfinite(deviation) else None,
    )


def _moments(values: Array, low: Any) -> "tuple[float | Fraction, float]":
    """Returns the mean, and the sum of the squared deviations from it."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        mean = float(wide.mean())
        return mean, float(np.square(wide - mean).sum())
    exact = Fraction(_exact_sum(values), values.size)
    if values.dtype.itemsize == 8:
        # Computed modulo 2**64, so that no difference overflows.
        wide = (values.view("<u8") - np.uint64(low % (1 << 64))).astype(np.float64)
    else:
        wide = values.astype(np.float64) - low
    return exact, float(np.square(wide - float(exact - low)).sum())


def _exact_sum(values: Array) -> int:
    """Sums a chunk of integers. 64-bit values are summed as two halves, which do not overflow."""
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def histogram(
    file: File, tensor: Tensor, known: Statistics, bins: int, advance: Advance
) -> Histogram:
    """Computes the histogram. Reads the tensor once more."""
    low, high = float(known.least), float(known.most)
    # If high - low overflows, both are scaled by a quarter, so that it does not.
    scale = 1.0 if np.isfinite(high - low) else 0.25
    width = high * scale - low * scale
    if width == 0:
        bins = 1
    counts = np.zeros(bins, np.int64)
    with np.errstate(all="ignore"):
        for values in _chunks(file, tensor, advance):
            wide = values.astype(np.float64)
            wide = wide[np.isfinite(wide)]
            if width > 0:
                places = ((wide * scale - low * scale) / width * bins).astype(np.int64)
            else:
                places = np.zeros(wide.size, np.int64)
            counts += np.bincount(np.clip(places, 0, bins - 1), minlength=bins)
    edges = [low * (1 - i / bins) + high * (i / bins) for i in range(bins + 1)]
    return Histogram([int(count) for count in counts], edges)


def _chunks(file: File, tensor: Tensor, advance: Advance) -> Iterator[Array]:
    for values, nbytes in file.values(tensor):
        yield np.abs(values) if values.dtype.kind == "c" else values
        advance(nbytes)
