"""The experts of gpt-oss, which transformers keeps in another layout than the weight layer.

    weight layer    gate and up [E, F, K]    down [E, K, F]    biases of gate and up [E, F]
    transformers    gate_up_proj [E, K, 2F]  down_proj [E, F, K]  gate_up_proj_bias [E, 2F]

The columns 0, 2, 4 ... of gate_up_proj are the rows of gate, and 1, 3, 5 ... those of up.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from safetensors import _weights

_GATE, _UP = "gate_proj.", "up_proj."


class Joined(NamedTuple):
    """A tensor of transformers."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    """Names of the weight layer: gate and up, or one."""


def joined(model: _weights.Model, names: Iterable[str]) -> list[Joined]:
    """Returns the tensors that experts in MXFP4 become."""
    found = []
    for name in names:
        described, parts = model.describe(name), model.parts(name)
        source, shape = described[1], described[2]
        stored = parts[0][1]
        if stored.endswith("_blocks"):
            new, shape = stored.removesuffix("_blocks"), (shape[0], shape[2], shape[1])
        elif stored.endswith("gate_up_proj_bias") and stored != source:
            new = stored
        else:
            continue
        if not new.endswith(("gate_up_proj", "gate_up_proj_bias")):
            found.append(Joined(new, shape, (name,)))
        elif _GATE in source:
            other = _other(model, name)
            found.append(Joined(new, (*shape[:-1], 2 * shape[-1]), (name, other)))
    return found


def _other(model: _weights.Model, gate: str) -> str:
    """Returns the name of up beside that of gate."""
    for old, new in ((".gate.", ".up."), (_GATE, _UP)):
        name = new.join(gate.rsplit(old, 1))
        if name != gate and model.has_tensor(name):
            return name
    raise AssertionError(gate)  # the weight layer makes both of one tensor


def parts_of(found: Iterable[Joined]) -> set[str]:
    return {part for each in found for part in each.parts}


def fill_joined(
    parts: Sequence[str], shape: tuple[int, ...], alternating: bool = True
) -> Callable[[Any, int, int, Any, str], None]:
    """Returns a function that decodes rows of a joined tensor: of biases, or all of one expert.
    Columns of the parts alternate, or follow each other. The rows of one tensor that is both parts
    are those of the first part, then those of the second."""
    columns = shape[-1] // len(parts)
    inner: int | None = shape[1] if len(shape) == 3 else None
    shared = len(parts) // len(set(parts))

    def fill(model: Any, first: int, count: int, values: Any, kind: str) -> None:
        import numpy

        size = 4 if kind == "float32" else 2
        out = values.view(f"u{size}")
        target = out.reshape(count, columns, len(parts))
        if not alternating:
            target = out.reshape(count, len(parts), columns).swapaxes(1, 2)
        rows, width = (count, columns * shared) if inner is None else (columns, inner)
        part = numpy.empty((rows, width), out.dtype)
        for i, name in enumerate(parts):
            skipped = i % shared * columns
            begin = first if inner is None else first // inner * columns * shared + skipped
            model.dequantize(name, part.reshape(-1).view("u1"), kind, begin, rows)
            target[:, :, i] = part[:, skipped:][:, :columns] if inner is None else part.T

    return fill
