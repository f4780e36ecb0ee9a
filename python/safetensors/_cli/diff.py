"""Compare two files, folders or indexes: names, types, shapes, values and metadata.

The status is 0 if they are equal, 1 if they differ. --patch writes the differences to a file, from
which `patch` makes B of A.
"""

import argparse
from typing import Any

from .._dtypes import BITS
from .._model_folder import Choice
from . import diff_stats, text
from .compare import count_of_differences, first_difference, index_at
from .errors import NEGATIVE, CliError
from .model import Placed, add_choice, choice_of
from .opening import refuse_stdin
from .output import Advance, Output
from .weight_model import MODEL_OR_STDIN, WeightModel, add_view, opened_together

EXAMPLES = """
safetensors diff old.safetensors new.safetensors
safetensors diff --no-data old.safetensors new.safetensors
safetensors diff --stats --tolerance 1% model.safetensors model-q8_0.gguf
safetensors diff old.safetensors new.safetensors --patch new.safetensors-patch
"""

_PLUS = "green"
_MINUS = "red"
_CHANGED = "yellow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help=MODEL_OR_STDIN)
    parser.add_argument("b", help="what to compare it with, of the same kinds")
    parser.add_argument("--no-data", action="store_true", help="compare headers only")
    parser.add_argument("--no-metadata", action="store_true", help="compare tensors only")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    values = parser.add_argument_group("values")
    values.add_argument(
        "--stats",
        action="store_true",
        help="print how far the values of each tensor are apart, the worst first, also between "
        "types and formats. Needs NumPy",
    )
    values.add_argument(
        "--tolerance",
        metavar="SHARE",
        help="with --stats: the status is 0 if no tensor has a larger relative difference, "
        "such as 1%% or 0.01",
    )
    patch = parser.add_argument_group("patches")
    patch.add_argument("--patch", metavar="OUT", help="write a patch that makes B of A")
    patch.add_argument(
        "--values",
        choices=("auto", "set"),
        help="set: without differences, for receivers that do not have A",
    )
    patch.add_argument(
        "--digest",
        choices=("xxh3-128", "sha256"),
        help="the algorithm of the patch's digests (default: xxh3-128)",
    )
    patch.add_argument("--force", action="store_true", help="replace an existing patch")
    add_choice(parser)
    add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if arguments.tolerance is not None and not arguments.stats:
        raise CliError("--tolerance needs --stats")
    for name in ("values", "digest", "force"):
        if getattr(arguments, name) and arguments.patch is None:
            raise CliError(f"--{name} needs --patch")
    if arguments.stats and (arguments.patch is not None or arguments.no_data):
        raise CliError("--stats goes with neither --patch nor --no-data")
    if arguments.patch is not None:
        _check_patch(arguments)
    choice = choice_of(arguments)
    a, b = opened_together([arguments.a, arguments.b], arguments)
    with a, b:
        if arguments.patch is not None and isinstance(a, WeightModel):
            raise CliError("--patch is for safetensors files as they are stored: add --raw")
        if arguments.stats:
            return diff_stats.run(a, b, arguments, out)
        found = _compare_tensors(a.by_name(), b.by_name(), not arguments.no_data, out)
        if not arguments.no_metadata:
            found["metadata"] = _compare_metadata(a.metadata(), b.metadata())
    if arguments.patch is not None:
        _write_patch(arguments, choice, out)
    if arguments.json:
        out.json(found)
    else:
        _show(found, out)
    differ = any(found[key] for key in found if key != "same")
    return NEGATIVE if differ else 0


def _check_patch(arguments: argparse.Namespace) -> None:
    refuse_stdin("diff --patch", arguments.a, arguments.b, arguments.patch)
    if arguments.no_data:
        raise CliError("--patch needs the data, which --no-data leaves out")
    from .._delta.diff import check_path
    from .writing import refuse_existing

    refuse_existing(arguments.patch, arguments.force)
    try:
        check_path(arguments.patch)
    except ValueError as error:
        raise CliError(str(error)) from None


def _write_patch(arguments: argparse.Namespace, choice: Choice, out: Output) -> None:
    from .. import delta

    with out.reported("writing") as report:
        delta.diff(
            arguments.a,
            arguments.b,
            arguments.patch,
            digest=arguments.digest or "xxh3-128",
            values=arguments.values or "auto",
            name=choice.name,
            variant=choice.variant,
            progress=report,
        ).close()


def _compare_tensors(
    a: dict[str, Placed], b: dict[str, Placed], with_data: bool, out: Output
) -> dict[str, Any]:
    changed = {}
    both = sorted(a.keys() & b.keys(), key=text.natural_key)
    total = sum(a[name].tensor.nbytes for name in both) if with_data else 0
    with out.progress("comparing", total) as advance:
        for name in both:
            change = _compare(a[name], b[name], with_data, advance)
            if change:
                changed[name] = change
    return {
        "same": len(both) - len(changed),
        "only_a": {n: _described(a[n]) for n in sorted(a.keys() - b.keys(), key=text.natural_key)},
        "only_b": {n: _described(b[n]) for n in sorted(b.keys() - a.keys(), key=text.natural_key)},
        "changed": changed,
    }


def _compare(a: Placed, b: Placed, with_data: bool, advance: Advance) -> dict[str, Any]:
    x, y = a.tensor, b.tensor
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        advance(x.nbytes)
        return {"a": _described(a), "b": _described(b)}
    if x.nbytes != y.nbytes:  # of weights whose scales have other types
        advance(x.nbytes)
        return {"a": _with_size(a), "b": _with_size(b)}
    if not with_data:
        return {}
    # 0 for types of less than a byte, and for what is not in a type of the format.
    size, odd = divmod(BITS.get(x.dtype, 1), 8)
    size = 0 if odd else size
    differ, first, done = 0, None, 0
    for left, right in zip(a.file.chunks(x), b.file.chunks(y), strict=True):
        if left != right:
            if first is None:
                first = done + first_difference(left, right)
            differ += count_of_differences(left, right, size or 1)
        done += len(left)
        advance(len(left))
    if first is None:
        return {}
    if x.dtype not in BITS:
        return {"first_byte": first, "bytes_that_differ": differ}
    index = index_at(first * 8 // BITS[x.dtype], x.shape)
    if not size:
        return {"first": index, "bytes_that_differ": differ}
    return {"first": index, "differ": differ, "elements": x.nbytes // size}


def _compare_metadata(a: dict[str, str], b: dict[str, str]) -> dict[str, dict[str, str | None]]:
    return {
        key: {"a": a.get(key), "b": b.get(key)}
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    }


def _described(placed: Placed) -> dict[str, Any]:
    return {"dtype": placed.tensor.dtype, "shape": placed.tensor.shape}


def _with_size(placed: Placed) -> dict[str, Any]:
    return {**_described(placed), "nbytes": placed.tensor.nbytes}


def _show(found: dict[str, Any], out: Output) -> None:
    for sign, style, key in (("-", _MINUS, "only_a"), ("+", _PLUS, "only_b")):
        for name, what in found[key].items():
            out.line((f"{sign} {name}  {_kind(what)}", style))
    for name, change in found["changed"].items():
        if "a" in change:
            difference = f"{_kind(change['a'])} -> {_kind(change['b'])}"
        else:
            difference = _counted(change)
        out.line((f"! {name}  {difference}", _CHANGED))
    for key, values in found.get("metadata", {}).items():
        for sign, style, side in (("-", _MINUS, "a"), ("+", _PLUS, "b")):
            if values[side] is not None:
                pair = f"{text.clipped(key)}={text.clipped(values[side])}"
                out.line((f"{sign} metadata {pair}", style))
    counts = [f"{found['same']:,} same", f"{len(found['changed']):,} changed"]
    counts += [f"{len(found['only_a']):,} only in A", f"{len(found['only_b']):,} only in B"]
    if "metadata" in found:
        counts.append(text.count(len(found["metadata"]), "change") + " of metadata")
    out.line((", ".join(counts), "bold"))


def _counted(change: dict[str, Any]) -> str:
    if "differ" in change:
        said = f"{change['differ']:,} of {text.count(change['elements'], 'value')} changed"
    else:
        said = text.count(change["bytes_that_differ"], "stored byte") + " changed"
    if "first_byte" in change:
        return f"{said}, the first at {change['first_byte']:,}"
    return said + (f", the first at {text.shape(change['first'])}" if change["first"] else "")


def _kind(what: dict[str, Any]) -> str:
    nbytes = f", {text.count(what['nbytes'], 'byte')}" if "nbytes" in what else ""
    return f"{what['dtype']} {text.shape(what['shape'])}{nbytes}"
