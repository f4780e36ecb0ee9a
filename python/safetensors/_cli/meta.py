"""Print metadata, and set or remove keys.

A change appears completely or not at all: a file with a new header replaces the old one. The data
is not copied if the file system can share it.
"""

import argparse
import math
from typing import Any

from .._extra import _write_with_header
from .._model_folder import BY_RULE
from .._near_names import suggestions
from .._paths import is_url
from .._saving.arguments import SaveArguments
from .._weight_models import is_gguf
from . import text, weight_model
from .errors import NEGATIVE, CliError
from .model import add_choice
from .opening import STDIN
from .output import Column, Output
from .reader import File

EXAMPLES = """
safetensors meta model.safetensors
safetensors meta model.safetensors format
safetensors meta model.safetensors --set author=me --remove format
safetensors meta llama.gguf
"""

_MAX = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", help=f"to change metadata: a file; to read it: {weight_model.MODEL_OR_STDIN}"
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
    weight_model.add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if not arguments.set and not arguments.remove:
        return _read(arguments, out)
    if arguments.key is not None or arguments.json:
        raise CliError("meta: cannot print and change metadata in one command")
    for name in ("name", "variant", "model", "raw"):
        if getattr(arguments, name):
            raise CliError(f"meta: --set and --remove change one file: not with --{name}")
    if arguments.path == STDIN:
        raise CliError("meta: standard input cannot be changed: name a file")
    if is_gguf(arguments.path, BY_RULE):
        raise CliError(f"{arguments.path}: meta changes safetensors files, and this is GGUF")
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
    typed: dict[str, Any] = {}
    with weight_model.opened(arguments.path, arguments) as model:
        metadata = model.metadata()
        if isinstance(model, weight_model.WeightModel):
            typed = model.typed_metadata()
    if arguments.key is not None:
        if arguments.key not in metadata:
            out.note(f"{arguments.path}: no key {text.clipped(arguments.key)}")
            return NEGATIVE
        value = metadata[arguments.key]
        if arguments.json:
            out.json(_as_json(typed.get(arguments.key, value)))
        else:
            out.text(value)
    elif arguments.json:
        out.json({key: _as_json(typed.get(key, metadata[key])) for key in metadata})
    elif typed:
        columns = [Column("key", "cyan"), Column("type", "magenta"), Column("value")]
        out.table(columns, [[key, *_described(value)] for key, value in typed.items()])
    elif metadata:
        rows = [[key, metadata[key]] for key in sorted(metadata)]
        out.table([Column("key", "cyan"), Column("text")], rows)
    else:
        out.note(f"{arguments.path}: no metadata")
    return 0


def _described(value: Any) -> tuple[str, str]:
    """Returns the type and the text of a value of GGUF; of an array its length and first values."""
    kind = f"[{len(value):,}]" if isinstance(value, list) else type(value).__name__
    return kind, text.brief(value, _MAX)


def _as_json(value: Any) -> Any:
    """Returns a value with texts for what JSON lacks: bytes, NaN and infinities."""
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(text.number(value))
    return text.value(value) if isinstance(value, bytes | float) else value


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
        with file.handle() as handle, out.reported("rewriting") as report:
            _write_with_header(path, handle, new, SaveArguments(fsync=fsync, progress=report))
