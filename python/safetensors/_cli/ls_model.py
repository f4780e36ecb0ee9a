"""Lists a GGUF or safetensors model by its canonical names, with its configuration."""

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import text, tree, weight_model
from .dtypes import element_count
from .errors import CliError
from .output import Column, Output
from .reader import Tensor
from .weight_model import WeightModel, type_of

if TYPE_CHECKING:
    from ..weights import Weights, WeightTensor


_WITH_SOURCE = 70
"""From how many characters on a table has the names in the file, too."""


def run(
    arguments: argparse.Namespace,
    show_totals: Callable[[Sequence[Tensor], Output], None],
    out: Output,
) -> int:
    """Lists the model. Returns the number of tensors."""
    if arguments.sort == "file":
        said = "--sort file needs --raw, which lists safetensors files as stored"
        raise CliError(f"{arguments.path}: {said}")
    with weight_model.opened_as_asked(arguments.path, arguments) as opened:
        return _show(opened, arguments, show_totals, out)


def _show(
    opened: WeightModel,
    arguments: argparse.Namespace,
    show_totals: Callable[[Sequence[Tensor], Output], None],
    out: Output,
) -> int:
    model = opened.weights
    found = [model[name] for name in [*model, *model.unmapped]]
    parameters, bits = _size(found)
    if arguments.match is not None:
        found = [each for each in found if fnmatch.fnmatchcase(each.name, arguments.match)]
        if not found and not arguments.json:
            return 0
    if arguments.sort == "size":
        found.sort(key=lambda each: (-each.nbytes, text.natural_key(each.name)))
    if arguments.json:
        out.json(_as_json(model, arguments.path, found, (parameters, bits)))
        return len(found)
    said = dict(model.config._set_fields())
    config = {key: value for key, value in model.get_config().items() if key in said}
    out.table(
        [Column("model", "cyan"), Column("value")],
        [
            ["format", model.format],
            ["parameters", text.rounded(parameters)],
            ["bits per weight", f"{bits:.2f}"],
            *([key, _value(value)] for key, value in config.items()),
        ],
    )
    out.line()
    listed = [Tensor(each.name, each.type_name, each.shape, 0, each.nbytes) for each in found]
    if arguments.tree:
        tree.show(listed, arguments.depth, out)
        out.line()
    elif not arguments.totals:
        _show_tensors(found, out)
        out.line()
    show_totals(listed, out)
    unmapped = model.unmapped
    if unmapped:
        out.line()
        out.line((text.count(len(unmapped), "tensor") + " without a canonical name:", "bold"))
        for name in unmapped[:10]:
            out.line("  " + name)
        if len(unmapped) > 10:
            out.line(f"  and {len(unmapped) - 10:,} more")
    for warning in model.warnings:
        out.note(warning)
    return len(found)


def _size(weights: "Sequence[WeightTensor]") -> tuple[int, float]:
    """Returns how many parameters a model has, and how many bits each of them takes."""
    parameters = sum(element_count(each.shape) for each in weights)
    return parameters, 8 * sum(each.nbytes for each in weights) / max(parameters, 1)


def _show_tensors(found: "Sequence[WeightTensor]", out: Output) -> None:
    columns = [Column("name", "cyan"), Column("type", "magenta"), Column("shape")]
    columns += [Column("size", "green", right=True), Column("in the file", "dim")]
    rows = [
        [each.name, type_of(each), text.shape(each.shape), text.size(each.nbytes), each.source]
        for each in found
    ]
    if out.width < _WITH_SOURCE:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    out.table(columns, rows)


def _is_said(value: Any) -> bool:
    """Returns whether a value is shown: not None, empty or zero. False is shown."""
    return value is False or bool(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items() if _is_said(each))
    if isinstance(value, list):
        shown = ", ".join(str(each) for each in value[:16])
        return shown + (", ..." if len(value) > 16 else "")
    return text.number(value) if isinstance(value, float) else str(value)


def _as_json(
    model: "Weights", path: str, found: "Sequence[WeightTensor]", size: tuple[int, float]
) -> dict[str, Any]:
    totals: dict[str, dict[str, int]] = {}
    for each in found:
        sums = totals.setdefault(each.type_name, {"tensors": 0, "nbytes": 0})
        sums["tensors"] += 1
        sums["nbytes"] += each.nbytes
    return {
        "path": path,
        "format": model.format,
        "files": model.files,
        "parameters": size[0],
        "bits_per_weight": size[1],
        "config": model.get_config(),
        "tensors": [
            {
                "name": each.name,
                "source": each.source,
                "type": each.type_name,
                "code": each.code,
                "shape": each.shape,
                "group_size": None if each.quant is None else each.quant.group_size,
                "nbytes": each.nbytes,
            }
            for each in found
        ],
        "totals": totals,
        "unmapped": model.unmapped,
        "warnings": model.warnings,
    }
