"""Print metadata, and set or remove keys.

A change appears completely or not at all: a file with a new header replaces the old one. The data
is not copied if the file system can share it; docs/cli.md says how.
"""

import argparse

from .._core import _write_with_header
from .._near_names import suggestions
from .._paths import is_url
from .._saving.arguments import SaveArguments
from . import output, text
from .errors import NEGATIVE, CliError
from .model import Model, add_choice, choice_of
from .opening import STDIN
from .output import Column, Output
from .reader import File

EXAMPLES = """
safetensors meta model.safetensors
safetensors meta model.safetensors format
safetensors meta model.safetensors --set author=me --remove format
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", help="a file; for reading also a folder, an index, or - for standard input"
    )
    parser.add_argument(
        "key", nargs="?", help="print only the text of this key; status 1 if there is no such key"
    )
    parser.add_argument(
        "--set", metavar="KEY=TEXT", action="append", default=[], help="add or replace a key"
    )
    parser.add_argument("--remove", metavar="KEY", action="append", default=[], help="remove a key")
    parser.add_argument("--fsync", action="store_true", help="wait until the change is on the disk")
    parser.add_argument("--json", action="store_true", help="print the metadata as JSON")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if not arguments.set and not arguments.remove:
        return _read(arguments, out)
    if arguments.key is not None or arguments.json:
        raise CliError("meta: cannot print and change metadata in one command")
    if arguments.path == STDIN:
        raise CliError("meta: standard input cannot be changed: name a file")
    if is_url(arguments.path):
        raise CliError("meta: a file behind a URL cannot be changed: name a file")
    changes: dict[str, str | None] = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise CliError(f"meta: --set takes KEY=TEXT, not {text.clipped(pair)}")
        changes[key] = value
    for key in arguments.remove:
        if key in changes:
            raise CliError(f"meta: `{text.clipped(key)}` is both set and removed")
        changes[key] = None
    change(arguments.path, changes, arguments.fsync, out)
    return 0


def _read(arguments: argparse.Namespace, out: Output) -> int:
    with Model(arguments.path, choice_of(arguments)) as model:
        metadata = model.metadata()
    if arguments.key is not None:
        if arguments.key not in metadata:
            out.note(f"{arguments.path}: no key {text.clipped(arguments.key)}")
            return NEGATIVE
        value = metadata[arguments.key]
        if arguments.json:
            out.json(value)
        else:
            out.text(value)
    elif arguments.json:
        out.json(metadata)
    elif metadata:
        rows = [[key, metadata[key]] for key in sorted(metadata)]
        out.table([Column("key", "cyan"), Column("text")], rows)
    return 0


def change(path: str, changes: dict[str, str | None], fsync: bool, out: Output) -> None:
    """Sets keys to texts. A key with the value None is removed."""
    with File(path) as file:
        metadata = dict(file.metadata or {})
        for key, value in changes.items():
            if value is not None:
                metadata[key] = value
            elif metadata.pop(key, None) is None:
                near = suggestions(key, metadata)
                raise CliError(f"{path}: no key {text.clipped(key)} to remove{near}")
        if metadata == (file.metadata or {}):
            return
        new = file.new_header(metadata or None)
        with file.handle() as handle, out.progress("rewriting", file.nbytes) as advance:
            options = SaveArguments(fsync=fsync, progress=output.counted(advance))
            _write_with_header(path, handle, new, options)
