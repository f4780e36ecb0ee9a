"""What `convert` says at its end."""

import argparse
import os
import shlex
import textwrap
from collections import Counter
from typing import Any

from . import text
from .output import Output
from .source import Source
from .writing import Written

_INDENT = 12
_MAX_SMALL_FILES = 12
_MAX_NAMED = 2
_NAMES = {
    "hf": "Hugging Face's",
    "canonical": "canonical",
    "own": "as in the source",
}


def show(source: Source, written: Written, arguments: argparse.Namespace, out: Output) -> None:
    """Says what a conversion read, wrote and left out, and what to run next."""
    if arguments.json:
        out.json(_report(source, written, arguments))
        return
    if out.quiet or arguments.dry_run:
        return
    found = _report(source, written, arguments)
    for label, value in _lines(found):
        lines = textwrap.wrap(
            value, max(out.width - _INDENT, 20), break_long_words=False, break_on_hyphens=False
        )
        for at, line in enumerate(lines):
            out.line("  ", ((label if at == 0 else "").ljust(_INDENT - 2), "dim"), line)


def _report(source: Source, written: Written, arguments: argparse.Namespace) -> dict[str, Any]:
    entries = source.entries
    is_written = not arguments.dry_run
    is_verified = is_written and arguments.verify
    return {
        "source": {
            "path": arguments.source,
            "tensors": source.count,
            "nbytes": _size_of(source.paths),
        },
        "target": {
            "path": written.path,
            "tensors": len(entries),
            "nbytes": _size_of(written.files) if is_written else None,
            "files": written.files,
        },
        "decoded": dict(source.decoded),
        "dtypes": dict(Counter(entry.dtype for entry in entries)),
        "names": source.names or {"own": len(entries)},
        "left_out": {why: list(names) for why, names in source.left_out.items()},
        "small_files": written.small_files,
        "notes": source.notes,
        "written": is_written,
        "verified": is_verified,
        "next": _next(written, is_verified) if is_written else [],
    }


def _size_of(paths: list[str]) -> int:
    return sum(os.path.getsize(path) for path in paths)


def _next(written: Written, is_verified: bool) -> list[str]:
    target = shlex.quote(written.path)
    commands = [] if is_verified else [f"safetensors check {target}"]
    return [*commands, f"safetensors ls {target}"]


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    source = found["source"]
    read = f"{text.count(source['tensors'], 'tensor')} in {text.size(source['nbytes'])} of files"
    lines = [("source", f"{read}: {source['path']}")]
    if found["verified"]:
        lines.append(("verified", "all tensors are as in the source"))
    if found["decoded"]:
        lines.append(("decoded", _counts(found["decoded"])))
    lines.append(("types", _counts(found["dtypes"])))
    names = found["names"]
    said = [f"{count:,} {_NAMES[kind]}" for kind, count in names.items()]
    lines.append(("names", ", ".join(said) if len(said) > 1 else _NAMES[next(iter(names))]))
    for why, left in found["left_out"].items():
        named = ", ".join(f"`{text.clipped(name)}`" for name in left[:_MAX_NAMED])
        more = f" and {len(left) - _MAX_NAMED:,} more" if len(left) > _MAX_NAMED else ""
        lines.append(("left out", f"{named}{more}: {why}"))
    small = found["small_files"]
    if small:
        more = ", ..." if len(small) > _MAX_SMALL_FILES else ""
        lines.append(("copied", ", ".join(small[:_MAX_SMALL_FILES]) + more))
    lines += [("next" if at == 0 else "", line) for at, line in enumerate(found["next"])]
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
