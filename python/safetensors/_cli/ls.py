"""List names, types, shapes and sizes of the tensors of a file, folder, index or GGUF model.

Of a patch, list which tensors it changes, and how much of them.
"""

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from .._outline.contents import base_name, totals
from .._outline.tree import Outline, outline_of
from . import ls_model, patches, text, tree, weight_model
from .errors import NEGATIVE, CliError
from .model import Model, Placed, add_choice, choice_of
from .output import Column, Output
from .reader import Tensor

EXAMPLES = """
safetensors ls model.safetensors
safetensors ls --tree --depth 2 models/llama
safetensors ls --match '*.bias' --sort size model.safetensors
curl -s https://example.com/model.safetensors | safetensors ls -
"""

_SORT: dict[str, Callable[[Placed], Any]] = {
    "name": lambda each: text.natural_key(each.tensor.name),
    "size": lambda each: (-each.tensor.nbytes, text.natural_key(each.tensor.name)),
}


_MAX_OTHERS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="path",
        nargs="+",
        help=weight_model.MODEL_OR_STDIN,
    )
    parser.add_argument(
        "--sort",
        choices=("name", "size", "file"),
        default="name",
        help="the order; file: by position in the file",
    )
    parser.add_argument(
        "--match",
        metavar="GLOB",
        help="list only names that match, such as '*.bias'; status 1 if none does",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--tree", action="store_true", help="draw a tree by the dotted prefixes of the names"
    )
    shape.add_argument("--totals", action="store_true", help="print only the totals by type")
    shape.add_argument(
        "--json", action="store_true", help="print everything as JSON, a line for each path"
    )
    parser.add_argument(
        "--depth", type=int, help="maximum number of levels of the tree; implies --tree"
    )
    add_choice(parser)
    weight_model.add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if arguments.depth is None:
        arguments.depth = tree.MAX_DEPTH
    elif arguments.depth < 1:
        raise CliError("--depth must be at least 1")
    elif arguments.totals or arguments.json:
        raise CliError("--depth is for --tree")
    else:
        arguments.tree = True
    found = 0
    for number, path in enumerate(arguments.paths):
        arguments.path = path
        if len(arguments.paths) > 1 and not arguments.json:
            if number > 0:
                out.line()
            out.line((f"{path}:", "bold"))
        if weight_model.is_wanted(path, arguments):
            found += ls_model.run(arguments, _show_totals, out)
        else:
            found += _list(arguments, out)
    if found or arguments.match is None:
        return 0
    where = text.clipped(", ".join(arguments.paths))
    out.note(f"{where}: no tensor matches {text.clipped(arguments.match)}")
    return NEGATIVE


def _list(arguments: argparse.Namespace, out: Output) -> int:
    """Lists the tensors. Returns how many."""
    with Model(arguments.path, choice_of(arguments), any_files=True) as model:
        patch = patches.only_patch(model)
        if patch is not None:
            return patches.ls(patch, arguments, out)
        placed = model.all()
        if arguments.match is not None:
            placed = [p for p in placed if fnmatch.fnmatchcase(p.tensor.name, arguments.match)]
            if not placed and not arguments.json:
                return 0
        if arguments.sort in _SORT:
            placed.sort(key=_SORT[arguments.sort])
        if arguments.json:
            out.json(_as_json(model, placed))
            return len(placed)
        if arguments.tree:
            tree.show([each.tensor for each in placed], arguments.depth, out)
            out.line()
        elif not arguments.totals:
            _show_tensors(placed, len(model.files) > 1, out)
            out.line()
        _show_totals([each.tensor for each in placed], out)
        if not model.is_clear:
            out.note(f"{model.path}: which files are the model is not clear: all are listed")
        if model.others:
            out.note(f"{model.path}: {_others(model.others)}")
    return len(placed)


def _others(names: Sequence[str]) -> str:
    shown = ", ".join(text.clipped(name) for name in names[:_MAX_OTHERS])
    more = f" and {len(names) - _MAX_OTHERS:,} more" if len(names) > _MAX_OTHERS else ""
    said = "is" if len(names) == 1 else "are"
    return f"{text.count(len(names), 'other file')} {said} no part of the model: {shown}{more}"


def _show_tensors(placed: Sequence[Placed], with_file: bool, out: Output) -> None:
    columns = [Column("name", "cyan"), Column("dtype", "magenta"), Column("shape")]
    columns.append(Column("size", "green", right=True))
    if with_file:
        columns.append(Column("file", "dim"))
    rows = []
    for file, tensor in placed:
        row = [tensor.name, tensor.dtype, text.shape(tensor.shape)]
        row.append(text.size(tensor.nbytes))
        if with_file:
            row.append(base_name(file.path))
        rows.append(row)
    out.table(columns, rows)


def _outline(tensors: Sequence[Tensor]) -> Outline:
    """Returns the sums of tensors."""
    return outline_of([(t.name, t.dtype, t.shape, t.nbytes) for t in tensors], depth=1)


def _show_totals(listed: Sequence[Tensor], out: Output) -> None:
    titles, rows = totals(_outline(listed))
    columns = [Column(title, "green" if title == "size" else "", right=True) for title in titles]
    out.table([Column("dtype", "magenta"), *columns], rows)


def _as_json(model: Model, placed: Sequence[Placed]) -> dict[str, Any]:
    listed: dict[str, list[dict[str, Any]]] = {file.path: [] for file in model.files}
    for file, tensor in placed:
        listed[file.path].append(
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "offset": tensor.begin,
                "nbytes": tensor.nbytes,
            }
        )
    files = [
        {
            "path": file.path,
            "nbytes": file.nbytes,
            "data_offset": file.data_begin,
            "metadata": file.metadata,
            "tensors": listed[file.path],
        }
        for file in model.files
    ]
    sums = {
        each.type: {"tensors": each.tensors, "elements": each.elements, "nbytes": each.nbytes}
        for each in _outline([each.tensor for each in placed]).types
    }
    return {"path": model.path, "files": files, "totals": sums}
