"""What `ls`, `show` and `check` say about patches."""

import argparse
import contextlib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._near_names import suggestions
from . import text
from .errors import CliError
from .model import Model
from .output import Column, Output
from .reader import File

if TYPE_CHECKING:
    from ..delta import Entry, Patch

_FORMAT = "safetensors-patch"
_MAX = 8
"""The number of changes of a tensor that are shown."""


def is_patch(file: File) -> bool:
    return (file.metadata or {}).get("format") == _FORMAT


def only_patch(model: Model) -> "File | None":
    """Returns the file of a path if it is a patch."""
    return model.files[0] if len(model.files) == 1 and is_patch(model.files[0]) else None


@contextlib.contextmanager
def opened(file: File) -> "Iterator[Patch]":
    # Imported only for patches, so that commands on models start faster.
    from ..delta import Patch

    with Patch(file.handle(), file.path) as patch:
        yield patch


def summary(file: File) -> str:
    """Checks all of a patch, and describes it. Raises SafetensorError if it is not valid."""
    with opened(file) as patch:
        for name in patch.names:
            patch.entry(name)
        words = ["a patch", text.count(len(patch.names), "tensor"), text.size(file.nbytes)]
    return ", ".join(words)


def ls(file: File, arguments: argparse.Namespace, out: Output) -> int:
    """Lists the tensors of a patch. Returns how many."""
    if arguments.tree:
        raise CliError(f"{file.path} is a patch, of which ls draws no tree")
    with opened(file) as patch:
        found = [(name, patch.entry(name)) for name in _matching(patch, arguments.match)]
        if arguments.sort == "size":
            found.sort(key=lambda each: -each[1].nbytes)
        if arguments.json:
            tensors = [{"name": name, **entry._asdict()} for name, entry in found]
            out.json({**_described(patch), "tensors": tensors})
            return len(found)
        if not found and arguments.match is not None:
            return 0
        _show_states(patch, out)
    if found and not arguments.totals:
        out.line()
        _show_tensors(found, out)
    out.line()
    units, changed, nbytes = (
        sum(getattr(each, field) for _, each in found) for field in ("units", "changed", "nbytes")
    )
    out.line(
        (text.count(len(found), "tensor"), "bold"),
        f", {changed:,} of {units:,} units ({_share(changed, units)}), {text.size(nbytes)}",
    )
    return len(found)


def show(file: File, arguments: argparse.Namespace, out: Output) -> None:
    """Shows what a patch does to some tensors."""
    shown = []
    with opened(file) as patch:
        chosen: dict[str, None] = {}
        for name in arguments.names:
            found = [name] if name in patch.names else _matching(patch, name)
            if not found:
                near = suggestions(name, patch.names)
                raise CliError(f"{file.path}: the patch has no tensor `{text.clipped(name)}`{near}")
            chosen.update(dict.fromkeys(found))
        for i, name in enumerate(chosen):
            entry = patch.entry(name)
            if arguments.json:
                shown.append({"name": name, **entry._asdict()})
                continue
            if i > 0:
                out.line()
            _show_tensor(patch, name, entry, out)
    if arguments.json:
        out.json(shown)


def _matching(patch: "Patch", pattern: "str | None") -> list[str]:
    names = sorted(patch.names, key=text.natural_key)
    return names if pattern is None else [n for n in names if fnmatch.fnmatchcase(n, pattern)]


def _described(patch: "Patch") -> dict[str, Any]:
    fields = ("path", "base", "target", "base_label", "target_label", "metadata")
    return {field: getattr(patch, field) for field in fields}


def _show_states(patch: "Patch", out: Output) -> None:
    rows = [
        ["base", patch.base, patch.base_label or ""],
        ["target", patch.target, patch.target_label or ""],
    ]
    out.table([Column("patch", "cyan"), Column("digest", "dim"), Column("label")], rows)


def _show_tensors(found: "Sequence[tuple[str, Entry]]", out: Output) -> None:
    columns = [Column("name", "cyan"), Column("kind"), Column("dtype", "magenta"), Column("shape")]
    columns += [Column("changed", right=True), Column("share", right=True)]
    columns += [Column("size", "green", right=True), Column("codes", "dim")]
    rows = []
    for name, entry in found:
        shape = "" if entry.shape is None else text.shape(entry.shape)
        row = [name, entry.kind, entry.dtype or "", shape]
        row += [f"{entry.changed:,}", _share(entry.changed, entry.units)]
        rows.append([*row, text.size(entry.nbytes), _codes(entry)])
    out.table(columns, rows)


def _show_tensor(patch: "Patch", name: str, entry: "Entry", out: Output) -> None:
    shape = "" if entry.shape is None else f" {text.shape(entry.shape)}"
    out.line(
        (name, "bold cyan"),
        (f"  {entry.dtype or ''}{shape}", "magenta"),
        f"  {entry.kind}: {entry.changed:,} of {entry.units:,} units "
        f"({_share(entry.changed, entry.units)})",
        (f"  {text.size(entry.nbytes)}", "green"),
    )
    rows = [["base", entry.base or "no such tensor"], ["target", entry.target or "no such tensor"]]
    if entry.codes:
        rows.append(
            ["blocks", ", ".join(f"{count:,} {code}" for code, count in entry.codes.items())]
        )
    indices, values = patch.changed(name)
    if len(indices):
        rows.append(
            ["elements", _first([f"{index:,}" for index in indices[:_MAX].tolist()], indices)]
        )
    if values is not None and len(values):
        rows.append(["values", _first([f"{value}" for value in values[:_MAX]], values)])
    for label, found in rows:
        out.line((f"{label} ", "dim"), found)


def _first(shown: list[str], found: Any) -> str:
    return ", ".join(shown) + (", ..." if len(found) > len(shown) else "")


def _share(changed: int, units: int) -> str:
    return f"{changed / units:.2%}" if units else ""


def _codes(entry: "Entry") -> str:
    return " ".join(code for code in entry.codes if code != "same")
