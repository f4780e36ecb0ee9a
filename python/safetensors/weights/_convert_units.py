"""The tensors of a conversion's result, and the units in which they are decoded."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from ._made import Fill

NBYTES = {"F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "F32": 4, "F16": 2, "BF16": 2}
UNIT_VALUES = 1 << 19


class Output(NamedTuple):
    """A tensor of the result."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str
    """The name by which the weight layer has it; empty if it is made of metadata."""
    row0: int
    """Its first row in the source."""
    how: str
    """ "decode", "copy" (a safetensors tensor, unchanged) or "stored" (a GGUF one)."""
    fill: Fill | None = None
    """Decodes rows of a tensor that is made of others; `source` is one of them."""
    unit_values: int = UNIT_VALUES
    """Values of a unit, if rows are not longer."""

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * NBYTES[self.dtype]


class Unit(NamedTuple):
    """Rows of an output."""

    output: Output
    begin: int
    rows: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.output.columns * NBYTES[self.output.dtype]

    @property
    def offset(self) -> int:
        """Its first byte in the output."""
        return self.begin * self.output.columns * NBYTES[self.output.dtype]


def most_values(output: Output) -> int:
    """Returns the values of the largest unit."""
    return max(output.unit_values, output.columns)


def units_of(output: Output) -> Iterator[Unit]:
    """Yields units that cover the output. They depend on nothing but the output."""
    rows = math.prod(output.shape[:-1])
    if output.columns == 0:
        return
    step = max(1, most_values(output) // output.columns)
    for begin in range(0, rows, step):
        yield Unit(output, begin, min(step, rows - begin))
