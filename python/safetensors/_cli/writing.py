"""Writes the files of models, for all commands that do."""

import argparse
import os
import stat
from typing import NamedTuple, Sequence

from .. import _split
from .._model_files import ModelFiles
from .._split import Split
from .._writer import safe_create
from . import text
from .errors import CliError
from .output import Advance, Output, counted
from .source import Source

_NAME = "model"


class Target(NamedTuple):
    """A file, or a folder for one model."""

    path: str
    is_folder: bool
    most: int | None
    """The limit of a shard's tensors in bytes; None: one file."""

    def names(self, shards: int) -> list[str]:
        if self.is_folder:
            return _split.file_names(_NAME, shards)
        return [os.path.basename(self.path)]

    def folder(self) -> str:
        return self.path if self.is_folder else os.path.dirname(self.path)


def target_of(path: str, shard_size: str | None = None) -> Target:
    """Returns what a path names: a folder if there is one, it ends with a slash, or there is a
    limit for shards."""
    most = None
    if shard_size is not None:
        try:
            most = _split.parse_size(shard_size)
        except ValueError as error:
            raise CliError(str(error)) from None
        if path.endswith(".safetensors"):
            raise CliError("--max-shard-size needs a folder as target")
    is_folder = most is not None or os.path.isdir(path) or path.endswith(("/", os.sep))
    return Target(path, is_folder, most)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--fsync", action="store_true", help="wait until all data is on the disk")


def write_model(
    source: Source, target: Target, arguments: argparse.Namespace, layout: str, out: Output
) -> None:
    """Writes all tensors of a source, and prints what was written."""
    for note in source.notes:
        out.note(note)
    sizes = {entry.name: entry.nbytes for entry in source.entries}
    split = _split_of(sizes, target.most)
    _refuse_to_replace(target, target.names(len(split.shards)), arguments.force)
    with out.progress("writing", split.total_size) as advance:
        if target.is_folder:
            _write_shards(source, target.path, split, layout, arguments.fsync, advance)
        else:
            write_file(source, target.path, list(sizes), layout, arguments.fsync, advance)
    if not out.quiet:
        out.line(f"{target.path}: {described(split)}")


def described(split: Split) -> str:
    said = f"{text.count(sum(map(len, split.shards)), 'tensor')}, {text.size(split.total_size)}"
    if len(split.shards) > 1:
        said += f", {text.count(len(split.shards), 'shard')}"
    return said


def write_file(
    source: Source,
    path: str,
    names: Sequence[str],
    layout: str,
    fsync: bool,
    advance: Advance,
    rights_of: str | None = None,
) -> None:
    """Writes tensors of a source to a file, which is replaced completely or not at all."""
    wanted = set(names)
    specs = {e.name: (e.dtype, e.shape) for e in source.entries if e.name in wanted}
    with safe_create(
        path,
        specs,
        metadata=source.metadata or None,
        layout=layout,
        fsync=fsync,
        progress=counted(advance),
        _rights_of=rights_of,
    ) as writer:
        source.write(writer, names)


def _write_shards(
    source: Source, folder: str, split: Split, layout: str, fsync: bool, advance: Advance
) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    with ModelFiles(folder, _NAME, fsync) as files:
        for number, names in enumerate(split.shards, 1):
            path = files.temporary(number)
            write_file(source, path, names, layout, False, advance, files.rights_of)
        files.commit(split)


def _split_of(sizes: dict[str, int], most: int | None) -> Split:
    if most is None:
        return Split([list(sizes)], sum(sizes.values()))
    try:
        return _split.split(sizes, most)
    except ValueError as error:
        raise CliError(str(error)) from None


def _refuse_to_replace(target: Target, names: list[str], force: bool) -> None:
    ours = {*names, _split.index_name(_NAME)} if len(names) > 1 else set(names)
    folder = target.folder()
    if target.is_folder and os.path.isdir(folder):
        found = sorted(name for name in os.listdir(folder) if ".safetensors" in name)
    else:
        found = sorted(name for name in ours if os.path.lexists(os.path.join(folder, name)))
    others = [name for name in found if name not in ours]
    if others:
        path = os.path.join(folder, others[0])
        raise CliError(
            f"{path} exists: two models in one folder get mixed up, choose another folder"
        )
    for path in (os.path.join(folder, name) for name in found):
        if not force:
            raise CliError(f"{path} exists; --force replaces it")
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise CliError(f"{path}: not a regular file, so it cannot be replaced")
