"""Rename tensors: of a file, or of all files of a model.

Only headers change, unless --dtype or --layout is given: the data keeps its order. Without a
target, the source is replaced.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from typing import Any

from .. import _extra
from .._near_names import suggestions
from .._reading import LENGTH_NBYTES
from .._saving.arguments import SaveArguments
from .._saving.split import Split
from . import layer_names, writing
from .errors import CliError
from .model import Placed, add_choice, choice_of
from .opening import refuse_stdin
from .output import Output
from .reader import File
from .source_model import ModelSource
from .text import clipped

EXAMPLES = """
safetensors rename model.safetensors --map lm_head.weight=output.weight
safetensors rename model.safetensors new.safetensors --prefix model.=transformer. --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or an index")
    parser.add_argument("target", nargs="?", help="a file or a folder; default: the source")
    parser.add_argument(
        "--map",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="rename a tensor; may be given several times",
    )
    parser.add_argument(
        "--prefix",
        metavar="A=B",
        action="append",
        default=[],
        help="replace A at the beginning of names by B; may be given several times",
    )
    writing.add_dtype(parser)
    writing.add_options(parser, None)
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    refuse_stdin("rename", arguments.source, arguments.target)
    changes = [_pair("--map", each) for each in arguments.map]
    prefixes = [_pair("--prefix", each) for each in arguments.prefix]
    if not changes and not prefixes:
        raise CliError("rename: which tensors? --map or --prefix")
    with contextlib.closing(ModelSource(arguments.source, choice=choice_of(arguments))) as source:
        placed = _renamed(source, changes, prefixes)
        source.select(placed, arguments.dtype)
        new = {each.tensor.name: name for name, each in placed.items()}
        source.metadata = layer_names.renamed(arguments.source, source.metadata, new)
        content: writing.FileContent = _NewHeader(source, new)
        if arguments.dtype is not None or arguments.layout is not None:
            content = writing.FileContent(source, arguments.layout or "blocks")
        by_file: dict[File, list[str]] = {}
        for name, each in placed.items():
            by_file.setdefault(each.file, []).append(name)
        split = Split(list(by_file.values()), sum(entry.nbytes for entry in source.entries))
        if arguments.target is None:
            arguments.force = True
        target = _target(arguments, source, len(by_file))
        writing.write_split(content, target, split, arguments, out)
    return 0


def _pair(option: str, text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old:
        raise CliError(f"rename: {option} takes OLD=NEW, not {clipped(text)}")
    try:
        new.encode()
    except UnicodeEncodeError:
        raise CliError(f"rename: {option} {clipped(text)}: the name is not valid UTF-8") from None
    return old, new


def _renamed(
    source: ModelSource, changes: list[tuple[str, str]], prefixes: list[tuple[str, str]]
) -> dict[str, Placed]:
    """Returns the tensors by new name. Each change applies to the old names."""
    names = {name: name for name in source.placed}
    for old, new in prefixes:
        found = [name for name in names if name.startswith(old)]
        if not found:
            raise CliError(f"{source.files[0].path}: no tensor begins with {clipped(old)}")
        for name in found:
            names[name] = new + name.removeprefix(old)
    for old, new in changes:
        if old not in names:
            near = suggestions(old, names)
            raise CliError(f"{source.files[0].path}: no tensor `{clipped(old)}`{near}")
        names[old] = new
    renamed: dict[str, Placed] = {}
    for old, new in names.items():
        if new in renamed:
            raise CliError(
                f"`{clipped(renamed[new].tensor.name)}` and `{clipped(old)}` would both be "
                f"`{clipped(new)}`"
            )
        renamed[new] = source.placed[old]
    return renamed


def _target(arguments: argparse.Namespace, source: ModelSource, shards: int) -> writing.Target:
    if arguments.target is None:
        return _in_place(source, shards)
    target = writing.target_of(arguments.target, of_model=len(source.files) > 1)
    if len(source.files) > 1 and not target.is_folder:
        raise CliError(
            f"{arguments.source} has {len(source.files)} files: rename needs a folder as target"
        )
    return target


def _in_place(source: ModelSource, shards: int) -> writing.Target:
    """Returns the source as target. Raises CliError if the new files would have other names: then
    the old ones would be left, or an index that is not of the new ones."""
    index = source.models[0].index
    if len(source.paths) == 1 and index is None:
        return writing.Target(source.paths[0], False)
    old = [*source.paths, *([index.path] if index is not None else [])]
    parsed = _extra._parse_model_file_name(os.path.basename(old[-1]))
    folder = os.path.dirname(old[-1])
    target = writing.Target(folder or ".", True, None, parsed[1] if parsed else "", True)
    new = [*target.paths(shards), target.index_path()]
    for path, wanted in zip(old, new, strict=False):
        if os.path.split(path) != (folder, os.path.basename(wanted)):
            raise CliError(f"{path} would become {wanted}: rename needs a target")
    return target


class _NewHeader(writing.FileContent):
    """A file's data with a header of new names."""

    def __init__(self, source: ModelSource, new: dict[str, str]) -> None:
        """`new` has the new name of each tensor, by its old one."""
        super().__init__(source, "given")
        self._model = source
        self._new = new

    def write(
        self,
        names: Sequence[str],
        target: Any,
        options: SaveArguments,
    ) -> None:
        file, header = self._header(names)
        with file.handle() as handle:
            file.refuse_changed()  # while it is copied, the core tells
            _extra._write_with_header(target, handle, header, options.of_file(target))

    def planned(self, names: Sequence[str]) -> tuple[int, int]:
        file, header = self._header(names)
        begin = LENGTH_NBYTES + len(header)
        nbytes = file.nbytes - file.data_begin
        return begin + nbytes, _extra._shareable_nbytes(file.data_begin, nbytes, begin)

    def _header(self, names: Sequence[str]) -> tuple[File, bytes]:
        """Returns the file that has these tensors, and its header with their new names."""
        file = self._model.placed[names[0]].file
        new = {self._model.placed[name].tensor.name: name for name in names}
        metadata = file.metadata and layer_names.renamed(file.path, file.metadata, self._new)
        return file, file.new_header(metadata, new)
