"""Prints how far the values of two models are apart, by tensor: `diff --stats`."""

import argparse
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from . import text
from .errors import NEGATIVE, CliError, need_numpy
from .model import Model, Placed
from .output import Advance, Column, Output

if TYPE_CHECKING:
    from .difference import Difference

HEADS = ("max |a-b|", "mean", "rms", "relative", "cosine", "differ")
"""The titles of what cells() returns."""


class Row(NamedTuple):
    """A tensor of one or both models. `difference` is None if its values cannot be compared."""

    name: str
    first: str
    """The type; empty if the model has no such tensor."""
    second: str
    difference: "Difference | None"
    why: str
    """What keeps the values from being compared, or nothing."""

    def is_equal(self) -> bool:
        return self.difference is not None and self.difference.differ == 0

    def is_same(self) -> bool:
        """Returns whether values and types are equal."""
        return self.is_equal() and self.first == self.second


def tolerance_of(given: str) -> float:
    """Returns the number that a text such as "1%" or "0.01" means. Raises CliError."""
    try:
        found = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise CliError(f"--tolerance takes a share such as 1% or 0.01, not {text.clipped(given)}")
    return found


def run(a: Model, b: Model, arguments: argparse.Namespace, out: Output) -> int:
    need_numpy("diff --stats")
    tolerance = None if arguments.tolerance is None else tolerance_of(arguments.tolerance)
    rows = compared(a.by_name(), b.by_name(), out)
    equal = sum(row.is_equal() for row in rows)
    shown = [row for row in rows if not row.is_same()]
    if arguments.json:
        out.json({"equal": equal, "tensors": [_as_json(row) for row in shown]})
    else:
        _show(shown, out)
        said = f"{len(rows) - equal:,} changed, {equal:,} equal"
        if retyped := sum(row.is_equal() for row in shown):
            said += f", {retyped:,} of these in another type"
        out.line((said, "bold"))
    if tolerance is None:
        return NEGATIVE if shown else 0
    is_within = all(row.difference and row.difference.is_within(tolerance) for row in rows)
    return 0 if is_within else NEGATIVE


def compared(a: dict[str, Placed], b: dict[str, Placed], out: Output) -> list[Row]:
    """Compares the tensors of two models, and returns a row for each, the worst first."""
    both = sorted(a.keys() & b.keys(), key=text.natural_key)
    total = sum(models[name].tensor.nbytes for name in both for models in (a, b))
    with out.progress("comparing", total) as advance:
        rows = [_compared(name, a[name], b[name], advance) for name in both]
    rows += [Row(n, a[n].tensor.dtype, "", None, "only in A") for n in a.keys() - b.keys()]
    rows += [Row(n, "", b[n].tensor.dtype, None, "only in B") for n in b.keys() - a.keys()]
    return sorted(rows, key=_worst_first)


def _compared(name: str, a: Placed, b: Placed, advance: Advance) -> Row:
    from .difference import measure

    x, y = a.tensor, b.tensor
    whys = [file.why_no_values(tensor) for file, tensor in (a, b)]
    difference, why = None, next(filter(None, whys), "")
    if x.shape != y.shape:
        why = f"{text.shape(x.shape)} -> {text.shape(y.shape)}"
    if not why:
        difference = measure(a, b, advance)
    return Row(name, x.dtype, y.dtype, difference, why)


def _worst_first(row: Row) -> tuple[float, Any]:
    """Returns a key that places tensors without a relative difference before all others."""
    found = row.difference
    relative = math.inf if found is None or found.relative is None else found.relative
    return -(math.inf if math.isnan(relative) else relative), text.natural_key(row.name)


def _show(rows: list[Row], out: Output) -> None:
    for row in rows:
        if row.difference is None:
            sign, style = ("-", "red") if not row.second else ("+", "green")
            types = row.first or row.second
            if row.first and row.second:
                sign, style, types = "!", "yellow", f"{row.first} -> {row.second}"
            out.line((f"{sign} {row.name}  {types}: {row.why}", style))
    measured = [(row, row.difference) for row in rows if row.difference is not None]
    if measured:
        columns = [Column("name", "cyan"), Column("A", "magenta"), Column("B", "magenta")]
        columns += [Column(head, right=True) for head in HEADS]
        out.table(columns, [[*row[:3], *cells(found)] for row, found in measured])
    if rows:
        out.line()


def cells(found: "Difference") -> list[str]:
    relative = "-" if found.relative is None else f"{found.relative:.3%}"
    cosine = "-" if found.cosine is None else f"{found.cosine:.6f}"
    numbers = [f"{number:.3g}" for number in (found.largest, found.mean, found.rms)]
    share = found.differ / found.elements if found.elements else 0
    return [*numbers, relative, cosine, f"{share:.1%}"]


def _as_json(row: Row) -> dict[str, Any]:
    described: dict[str, Any] = {"name": row.name, "a": row.first, "b": row.second}
    if row.difference is None:
        return {**described, "why": row.why}
    numbers = row.difference._asdict().items()
    # JSON has neither NaN nor infinities.
    return described | {
        key: f"{value}" if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in numbers
    }
