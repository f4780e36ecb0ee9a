"""Lists a GGUF or safetensors model by its canonical names, with its configuration."""

import argparse
import fnmatch
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._model_folder import BY_RULE, Choice
from . import text, tree
from .errors import CliError
from .opening import STDIN
from .output import Column, Output
from .reader import Tensor

if TYPE_CHECKING:
    from ..weights import Weights, WeightTensor


_WITH_SOURCE = 70
"""From how many characters on a table has the names in the file, too."""


def is_gguf(path: str, choice: Choice = BY_RULE) -> bool:
    """Returns whether `ls` lists this path as a GGUF model: by the rule of `open_weights`. One that
    does not open is none, and neither is a folder in which something is chosen."""
    if path == STDIN or choice != BY_RULE or not os.path.exists(path):
        return False
    try:
        from ..weights import WeightsError, detect_format
    except ImportError:
        return False  # a build without the weight layer
    try:
        return detect_format(path) == "gguf"
    except (WeightsError, OSError, ValueError):
        return False


def run(
    arguments: argparse.Namespace,
    show_totals: Callable[[Sequence[Tensor], Output], None],
    out: Output,
) -> int:
    """Lists the model. Returns the number of tensors."""
    if arguments.path == STDIN:
        raise CliError("ls --model reads files, not standard input")
    try:
        from ..weights import WeightsError, open_weights
    except ImportError as error:
        raise CliError(f"this build has no weight layer: {error}") from None
    try:
        choice = {"name": arguments.name, "variant": arguments.variant}
        with open_weights(arguments.path, **choice) as model:
            return _show(model, arguments, show_totals, out)
    except WeightsError as error:
        raise CliError(str(error)) from None


def _show(
    model: "Weights",
    arguments: argparse.Namespace,
    show_totals: Callable[[Sequence[Tensor], Output], None],
    out: Output,
) -> int:
    found = [model[name] for name in [*model, *model.unmapped]]
    if arguments.match is not None:
        found = [each for each in found if fnmatch.fnmatchcase(each.name, arguments.match)]
        if not found and not arguments.json:
            return 0
    if arguments.sort == "size":
        found.sort(key=lambda each: (-each.nbytes, text.natural_key(each.name)))
    if arguments.json:
        out.json(_as_json(model, arguments.path, found))
        return len(found)
    config = {key: value for key, value in model.get_config().items() if _is_said(value)}
    out.table(
        [Column("model", "cyan"), Column("value")],
        [["format", model.format], *([key, _value(value)] for key, value in config.items())],
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


def type_of(tensor: "WeightTensor") -> str:
    """Returns the type by which tensors are listed: "q4_k", "u4 g64"."""
    name = tensor.type_name
    return name if tensor.quant is None else f"{name} g{tensor.quant.group_size}"


def _is_said(value: Any) -> bool:
    """Returns whether a value is shown: not None, empty or zero. False is shown."""
    return value is False or bool(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items() if _is_said(each))
    if isinstance(value, list):
        shown = ", ".join(str(each) for each in value[:16])
        return shown + (", ..." if len(value) > 16 else "")
    return str(value)


def _as_json(model: "Weights", path: str, found: "Sequence[WeightTensor]") -> dict[str, Any]:
    totals: dict[str, dict[str, int]] = {}
    for each in found:
        sums = totals.setdefault(each.type_name, {"tensors": 0, "nbytes": 0})
        sums["tensors"] += 1
        sums["nbytes"] += each.nbytes
    return {
        "path": path,
        "format": model.format,
        "files": model.files,
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
