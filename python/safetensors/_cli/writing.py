"""Writes the files of models, for all commands that do."""

import argparse
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _extra
from .._checking.sums import SHA256, XXH3
from .._dtypes import CASTABLE
from .._paths import absolute, is_folder_target
from .._saving import split as _split
from .._saving.arguments import SaveArguments
from .._saving.companions import Companions
from .._saving.model_files import refuse_other_models, save_files
from .._saving.specs import Spec, rows_of
from .._saving.split import Split
from .._saving.writer import open_writer
from . import text
from .dtypes import normalized
from .errors import CliError
from .output import Output
from .source import Source
from .source_model import ModelSource

_NAME = "model"


class Target(NamedTuple):
    """A file, or a folder for one model."""

    path: str
    is_folder: bool
    most: int | None = None
    """The limit of a shard's tensors in bytes; None: one file."""
    name: str = _NAME
    """What the names of a folder's files begin with."""
    is_source: bool = False
    """Whether the model is in the folder already, and is replaced."""

    def paths(self, shards: int) -> list[str]:
        """Returns the paths of the files, without the index."""
        if not self.is_folder:
            return [self.path]
        return [os.path.join(self.path, name) for name in _split.file_names(self.name, shards)]

    def index_path(self) -> str:
        """Returns the path of the index of several files."""
        return os.path.join(self.path, _split.index_name(self.name))


class Written(NamedTuple):
    """What was written, or would be."""

    path: str
    """The target: a file, or a folder."""
    files: list[str]
    small_files: list[str]
    """Names of the small files of the source that the folder gets, too."""


class FileContent:
    """What the tensors of a source become in a file."""

    def __init__(self, source: Source, layout: str, companions: Companions | None = None) -> None:
        self._source = source
        self._layout = layout
        self.companions = companions
        """The small files that a folder gets, too."""
        self.sizes = {entry.name: entry.nbytes for entry in source.entries}
        """The bytes of each tensor."""

    def write(
        self,
        names: Sequence[str],
        target: Any,
        options: SaveArguments,
    ) -> None:
        """Writes these tensors to a file, which is replaced completely or not at all.

        `target` is a path, or a new file of a model that is being saved.
        """
        specs = self._specs(names)
        options = options._replace(
            metadata=self._source.metadata or None,
            layout=self._layout,
            data_begin=self._data_begin(specs),
        )
        with open_writer(target, specs, options) as writer:
            try:
                self._source.write(writer, names)
            finally:  # a file that changes may also be an error of what reads it
                self._source.refuse_changed()

    def planned(self, names: Sequence[str]) -> tuple[int, int]:
        """Returns the size of the file, and how many of its bytes can be shared with the source."""
        specs = self._specs(names)
        metadata = self._source.metadata or None
        prologue, places = _extra._plan_layout(
            rows_of(specs), metadata, self._layout, self._data_begin(specs)
        )
        nbytes = len(prologue) + sum(place[1] for place in places)
        source = self._source
        if not isinstance(source, ModelSource):
            return nbytes, 0
        begins = {name: begin for name, (begin, _) in zip(specs, places, strict=True)}
        shared = 0
        for name, begin in begins.items():
            file, tensor = source.placed[name]
            if file.is_whole and tensor.dtype == specs[name][0]:
                shared += _extra._shareable_nbytes(tensor.begin, tensor.nbytes, begin)
        return nbytes, shared

    def _data_begin(self, specs: Mapping[str, Spec]) -> int:
        """Returns the least offset of the data; 0 leaves it to the layout.

        The layout `blocks` keeps tensors of whole blocks at one offset modulo the size of a block.
        Other programs let the data of a file begin at any multiple of 8, so most bytes decide.
        """
        source = self._source
        if self._layout != "blocks" or not isinstance(source, ModelSource):
            return 0
        nbytes: Counter[int] = Counter()
        block = _extra._DISK_BLOCK_SIZE
        for name, (dtype, _) in specs.items():
            tensor = source.placed[name].tensor
            if tensor.dtype == dtype and tensor.nbytes % block == tensor.begin % 8 == 0:
                nbytes[tensor.begin % block] += tensor.nbytes
        return max(nbytes, key=lambda begin: (nbytes[begin], -begin), default=0)

    def _specs(self, names: Sequence[str]) -> dict[str, Spec]:
        wanted = set(names)
        return {
            e.name: Spec(e.dtype, tuple(e.shape)) for e in self._source.entries if e.name in wanted
        }


def add_options(parser: argparse.ArgumentParser, layout: str | None) -> None:
    default = "" if layout is None else f" (default: {layout})"
    parser.add_argument(
        "--layout",
        choices=("blocks", "canonical"),
        default=layout,
        help="blocks: copies of the tensors can share disk space; canonical: the bytes of "
        f"save_file{default}",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--fsync", action="store_true", help="wait until all data is on the disk")
    add_sums(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, and write nothing"
    )


def add_sums(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sums",
        metavar="ALGORITHM",
        choices=(XXH3, SHA256),
        help=f"also write the digests of the tensors, beside the model: by {XXH3}, or by {SHA256} "
        "as well",
    )


def add_dtype(
    parser: argparse.ArgumentParser,
    choices: Sequence[str] = tuple(map(str.lower, CASTABLE)),
    what: str = "cast floating-point tensors to this type; others keep theirs",
) -> None:
    def chosen(name: str) -> str:
        code = normalized(name)
        if code not in choices:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(choices)}")
        return code

    parser.add_argument("--dtype", type=chosen, choices=choices, help=what)


def target_of(path: str, of_model: bool = False, shard_size: str | None = None) -> Target:
    """Returns what a path names: see is_folder_target()."""
    most = None
    if shard_size is not None:
        try:
            most = _split.parse_size(shard_size)
        except ValueError as error:
            raise CliError(str(error)) from None
        if path.endswith(".safetensors"):
            raise CliError("--max-shard-size needs a folder as target")
    try:
        return Target(path, is_folder_target(path, of_model, most is not None), most)
    except ValueError as error:
        raise CliError(str(error)) from None


def write_source(
    source: Source,
    target: Target,
    arguments: argparse.Namespace,
    out: Output,
    companions: Companions | None = None,
) -> Written:
    """Writes all tensors of a source, in a folder with small files, and prints what was written."""
    sizes = {entry.name: entry.nbytes for entry in source.entries}
    split = Split([list(sizes)], sum(sizes.values()))
    if target.most is not None:
        try:
            split = _split.split(sizes, target.most)
        except ValueError as error:
            raise CliError(str(error)) from None
    if not target.is_folder or (companions is not None and companions.are_in(target.path)):
        companions = None
    for note in [*source.notes, *(companions.notes if companions is not None else [])]:
        out.note(note)
    if companions is not None and not arguments.force:
        companions.refuse_to_replace(target.path, "--force")
    content = FileContent(source, arguments.layout, companions)
    return write_split(content, target, split, arguments, out)


def write_split(
    content: FileContent,
    target: Target,
    split: Split,
    arguments: argparse.Namespace,
    out: Output,
) -> Written:
    """Writes a model that is split into files, and prints what was written."""
    paths = target.paths(len(split.shards))
    if arguments.sums is not None and not paths[0].endswith(".safetensors"):
        raise CliError(f"--sums needs a file whose name ends with .safetensors, not {target.path}")
    _refuse_to_replace(target, paths, arguments.force)
    said = f"{text.count(sum(map(len, split.shards)), 'tensor')}, {text.size(split.total_size)}"
    if len(paths) > 1:
        said += f", {text.count(len(paths), 'shard')}"
    small_files = content.companions.names if content.companions is not None else []
    written = Written(target.path, paths, small_files)
    is_shown = not getattr(arguments, "json", False)
    if arguments.dry_run:
        if is_shown:
            _plan(content, paths, split, out)
            out.line(f"{target.path}: would have {said}; nothing was written")
        return written
    with out.reported("writing") as report:
        options = SaveArguments(fsync=arguments.fsync, progress=report, sums=arguments.sums)
        if target.is_folder:
            os.makedirs(os.path.dirname(absolute(target.path)), exist_ok=True)
            save_files(
                split,
                content.sizes,
                content.write,
                target.path,
                target.name,
                options,
                content.companions,
            )
        else:
            content.write(split.shards[0], target.path, options)
    if is_shown and not out.quiet:
        out.line(f"{target.path}: {said}")
    return written


def _plan(content: FileContent, paths: list[str], split: Split, out: Output) -> None:
    for path, names in zip(paths, split.shards, strict=True):
        nbytes, shared = content.planned(names)
        out.line(
            f"{path}: {text.count(len(names), 'tensor')}, {text.size(nbytes)}, of which up to "
            f"{text.size(shared)} can share disk space with the source"
        )


def _refuse_to_replace(target: Target, paths: list[str], force: bool) -> None:
    ours = list(paths)
    if len(paths) > 1:
        ours.append(target.index_path())
    if target.is_folder and not target.is_source:
        refuse_other_models(target.path, map(os.path.basename, ours))
    for path in sorted(ours):
        refuse_existing(path, force)


def refuse_sources(path: str, sources: Iterable[str]) -> None:
    """Raises CliError if an output is one of the files that are read, also by another name."""
    if not os.path.exists(path):
        return
    for source in sources:
        if os.path.exists(source) and os.path.samefile(path, source):
            raise CliError(f"{path}: the command reads this file: choose another output")


def refuse_existing(path: str, force: bool) -> None:
    """Raises CliError if there is something at the path, unless it is a file and `force` is set."""
    if not os.path.lexists(path):
        return
    if not force:
        raise CliError(f"{path} exists; --force replaces it")
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise CliError(f"{path}: not a regular file, so it cannot be replaced")
