"""Show values, statistics and a histogram of tensors. Needs NumPy.

Of a patch, show the digests of tensors, and the first elements that change.
"""

import argparse
import fnmatch
from typing import TYPE_CHECKING, Any

from .._near_names import suggestions
from . import patches, text
from .dtypes import element_count
from .errors import CliError, need_numpy
from .model import Model, Placed, add_choice
from .output import Advance, Output
from .weight_model import MODEL_OR_STDIN, add_view, opened

if TYPE_CHECKING:
    from .statistics import Histogram, Statistics

EXAMPLES = """
safetensors show model.safetensors h.0.bias
safetensors show model.safetensors 'h.*.bias' --bins 0
safetensors show --json model.safetensors h.0.bias
safetensors show model.gguf layers.0.attention.q.weight
"""

_EDGE = 3
"""The number of values that are shown at each end of an axis."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help=MODEL_OR_STDIN)
    parser.add_argument(
        "names", metavar="name", nargs="+", help="names of tensors, or patterns such as '*.bias'"
    )
    parser.add_argument(
        "--bins", type=int, default=16, help="bars of the histogram (default 16); 0: none"
    )
    parser.add_argument(
        "--json", action="store_true", help="print statistics and histogram as JSON"
    )
    add_choice(parser)
    add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if not 0 <= arguments.bins <= 1000:
        raise CliError("--bins must be from 0 to 1000")
    need_numpy("show")
    shown = []
    with opened(arguments.path, arguments) as model:
        patch = patches.only_patch(model)
        if patch is not None:
            patches.show(patch, arguments, out)
            return 0
        placed = model.by_name()
        chosen = [placed[name] for name in _chosen(arguments, model, placed)]
        passes = 2 if arguments.bins else 1
        total = passes * sum(each.tensor.nbytes for each in chosen)
        what = text.clipped(chosen[0].tensor.name, 40)
        if len(chosen) > 1:
            what = text.count(len(chosen), "tensor")
        with out.progress(what, total) as advance:
            for i, each in enumerate(chosen):
                if arguments.json:
                    shown.append(_as_json(each, arguments.bins, advance))
                    continue
                if i > 0:
                    out.line()
                _show(each, arguments.bins, advance, out)
    if arguments.json:
        out.json(shown)
    return 0


def _chosen(arguments: argparse.Namespace, model: Model, placed: dict[str, Placed]) -> list[str]:
    """Returns the named tensors, each once. An exact name is not taken as a pattern."""
    chosen: dict[str, None] = {}
    aliases = model.aliases()
    for name in arguments.names:
        found = [name] if name in placed else aliases.get(name, [])
        if not found:
            found = [each for each in placed if fnmatch.fnmatchcase(each, name)]
            for alias, names in aliases.items():
                found += names if fnmatch.fnmatchcase(alias, name) else []
        if not found:
            near = suggestions(name, [*placed, *aliases])
            raise CliError(f"{arguments.path}: no tensor `{text.clipped(name)}`{near}")
        chosen.update(dict.fromkeys(sorted(found, key=text.natural_key)))
    return list(chosen)


def _measured(placed: Placed, bins: int, advance: Advance) -> "tuple[Statistics, Histogram | None]":
    from .statistics import histogram, statistics

    file, tensor = placed
    known = statistics(file, tensor, advance)
    counts = histogram(file, tensor, known, bins, advance) if bins and known.finite else None
    return known, counts


def _show(placed: Placed, bins: int, advance: Advance, out: Output) -> None:
    file, tensor = placed
    elements = element_count(tensor.shape)
    out.line(
        (tensor.name, "bold cyan"),
        (f"  {tensor.dtype} {text.shape(tensor.shape)}", "magenta"),
        f"  {text.count(elements, 'element')}",
        (f"  {text.size(tensor.nbytes)}", "green"),
    )
    for line in file.about(tensor):
        out.line((f"  {line}", "dim"))
    if why := file.why_no_values(tensor):
        out.line(f"{why}: no values")
        return
    if elements == 0:
        return
    _show_values(placed, out)
    known, counts = _measured(placed, bins, advance)
    _show_statistics(known, tensor.dtype, out)
    if counts is not None and tensor.dtype != "BOOL":
        _show_histogram(counts, out)


def _show_values(placed: Placed, out: Output) -> None:
    """Shows the corners of the last two axes, at index 0 of all other axes."""
    file, tensor = placed
    shape = tensor.shape
    row_length = shape[-1] if shape else 1
    rows = shape[-2] if len(shape) > 1 else 1
    if 2 < len(shape) <= 12:
        out.line((f"[{'0, ' * (len(shape) - 2)}:, :]", "dim"))
    table: list[list[str]] = []
    for row in _ends(rows):
        if row is None:
            table.append(["..."])
            continue
        cells = []
        for column in _ends(row_length):
            at = None if column is None else row * row_length + column
            cells.append(
                "..." if at is None else _number(file.values_between(tensor, at, at + 1)[0].item())
            )
        table.append(cells)
    widths = [max(len(line[i]) for line in table if i < len(line)) for i in range(len(table[0]))]
    for line in table:
        out.line("  " + "  ".join(map(str.rjust, line, widths)))


def _ends(count: int) -> "list[int | None]":
    """Returns the indices at both ends, and None for those between."""
    if count <= 2 * _EDGE + 1:
        return list(range(count))
    return [*range(_EDGE), None, *range(count - _EDGE, count)]


def _number(value: Any) -> str:
    if value is None:
        return "overflows"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, complex):
        return f"{value.real:.4g}{value.imag:+.4g}j"
    return f"{value:.5g}"


def _show_statistics(known: "Statistics", dtype: str, out: Output) -> None:
    if dtype == "BOOL":
        true = known.elements - known.zero
        out.line(f"true {true:,}  false {known.zero:,}  ({true / known.elements:.2%} true)")
        return
    what = "absolute values: " if dtype == "C64" else ""
    if known.finite:
        out.line(
            what,
            *_labelled("min", _number(known.least)),
            *_labelled("max", _number(known.most)),
            *_labelled("mean", _number(known.mean)),
            *_labelled("std", _number(known.deviation)),
        )
    pieces = [*_labelled("zeros", f"{known.zero:,} ({known.zero / known.elements:.2%})")]
    for label, number in (("nan", known.nan), ("inf", known.infinite)):
        if number:
            pieces += [(f"{label} {number:,}  ", "bold red")]
    out.line(*pieces)


def _labelled(label: str, number: str) -> list[Any]:
    return [(f"{label} ", "dim"), f"{number}  "]


def _show_histogram(counts: "Histogram", out: Output) -> None:
    labels = [_number(edge) for edge in counts.edges[:-1]]
    label_width = max(map(len, labels))
    number_width = max(len(f"{count:,}") for count in counts.counts)
    bar_width = max(10, min(out.width, 100) - label_width - number_width - 4)
    most = max(counts.counts)
    unicode = out.can_show(_EIGHTHS)
    for label, count in zip(labels, counts.counts, strict=True):
        bar = _bar(count, most, bar_width, unicode)
        out.line(
            (label.rjust(label_width), "dim"),
            "  ",
            (bar.ljust(bar_width), "blue"),
            f"  {count:>{number_width},}",
        )


def _bar(count: int, most: int, width: int, unicode: bool) -> str:
    if not unicode:
        return "#" * -(-count * width // most)
    # Rounded up, so that one value among millions is still visible.
    eighths = -(-count * width * 8 // most)
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * full + (_EIGHTHS[rest] if rest else "")


def _as_json(placed: Placed, bins: int, advance: Advance) -> dict[str, Any]:
    file, tensor = placed
    described: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "nbytes": tensor.nbytes,
    }
    if lines := file.about(tensor):
        described["about"] = lines
    if not file.why_no_values(tensor):
        known, counts = _measured(placed, bins, advance)
        described["statistics"] = known._asdict()
        described["histogram"] = counts._asdict() if counts is not None else None
    return described
