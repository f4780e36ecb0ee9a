"""Opens what a path names: a file, the files of a folder, or the shards of an index."""

import argparse
import os
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, TypeVar

from .._extra import _refuse_repeated
from .._model_folder import BY_RULE, Choice
from .._shards import ShardFile, find_files, of_one_model
from .errors import CliError
from .opening import STDIN
from .reader import File, SafetensorError, Tensor, complaint
from .text import clipped, count

_DESCRIPTORS_TO_SPARE = 50
_Self = TypeVar("_Self", bound="Model")


class Placed(NamedTuple):
    """A tensor and its file."""

    file: File
    tensor: Tensor


class Index(NamedTuple):
    """The index of a sharded model."""

    path: str
    weight_map: dict[str, str]
    """Maps each tensor name to the path or URL of its file."""
    total_size: int | None
    """The bytes of all tensors, as the index says."""


class Model:
    """Open files. `index` is set if they are the shards of an index."""

    def __init__(
        self,
        path: str,
        choice: Choice = BY_RULE,
        *,
        any_files: bool = False,
        lenient: bool = False,
    ) -> None:
        """Opens the files that find_files() finds. If `lenient`, repairs those that the core
        refuses, where that is possible."""
        self.path = path
        self.index: Index | None = None
        self.files: list[File] = []
        shards, self.index = files_of(path, choice, any_files=any_files)
        model = shards[0].model
        self.others = [] if model is None else model.others
        """The names of the files of the folder that are no part of the model."""
        self.is_clear = model is not None or not shards[0].folder
        """Whether the files are one model. If not, they are all files of a folder."""
        self.repairs: list[str] = []
        """What was repaired, with the path of each file."""
        if shards[0].reader is not None:
            from . import remote

            self.files = remote.open_all(shards)
            return
        _allow_descriptors(len(shards))
        try:
            with of_one_model(shards):
                for shard in shards:
                    self.files.append(self._opened(shard.path, lenient))
        except BaseException:
            self.close()
            raise

    def _opened(self, path: str, lenient: bool) -> File:
        if not lenient:
            return File(path)
        from .repair import open_lenient

        file, remarks = open_lenient(path)
        self.repairs += [f"{path}: {remark}" for remark in remarks]
        return file

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def all(self) -> list[Placed]:
        """Returns every tensor of every file, in the order of the files."""
        return [Placed(file, tensor) for file in self.files for tensor in file.tensors]

    def by_name(self) -> dict[str, Placed]:
        """Returns the tensors by name. Raises CliError if the files are not one model."""
        refuse_repeated(self.files)
        placed = {each.tensor.name: each for each in self.all()}
        if self.index is not None:
            refuse_misplaced(self.index, _paths_of(self.files))
        return placed

    def aliases(self) -> dict[str, list[str]]:
        """Returns further names by which a user may know tensors, and the tensors' names."""
        return {}

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of all files. If files differ in a key, the first value wins."""
        together: dict[str, str] = {}
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                together.setdefault(key, value)
        return together


def refuse_repeated(files: Sequence[File]) -> None:
    """Raises CliError if a tensor is in two files."""
    if len(files) == 1:
        return
    names = [[tensor.name for tensor in file.tensors] for file in files]
    try:
        _refuse_repeated(names, [file.path for file in files])
    except SafetensorError as error:
        raise CliError(complaint(error, str(error.path))) from None


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options for which choice_of() looks."""
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="which model of a folder: what the names of its files begin with, such as "
        "consolidated (default: the one that transformers or diffusers would load)",
    )
    parser.add_argument(
        "--variant",
        metavar="VARIANT",
        help="which variant of a model of a folder, such as fp16 (default: the plain one)",
    )


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Returns which model of a folder the user chooses."""
    if not hasattr(arguments, "variant"):
        return BY_RULE  # a command without these options
    return Choice(arguments.name or "", arguments.variant or "")


def files_of(
    path: str, choice: Choice = BY_RULE, *, any_files: bool = False
) -> tuple[list[ShardFile], Index | None]:
    """Returns the files to open for a path or URL, and the index that names them, if any."""
    if path == STDIN:
        return [ShardFile(path)], None
    try:
        shards = find_files(path, choice, any_files=any_files)
    except ValueError as error:
        if isinstance(error, SafetensorError):
            raise
        raise CliError(str(error)) from None  # a choice without a folder
    if not shards[0].index_path:
        return shards, None
    weight_map = {name: shard.path for shard in shards for name in shard.names or ()}
    return shards, Index(shards[0].index_path, weight_map, shards[0].total_size)


def index_problems(index: Index, files: list[File]) -> list[str]:
    """Returns one line for each disagreement between an index and its shards."""
    problems = misplaced(index, _paths_of(files))
    total = index.total_size
    nbytes = sum(tensor.nbytes for file in files for tensor in file.tensors)
    if total is not None and total != nbytes:
        problems.append(f"`total_size` is {total:,}, but the tensors have {count(nbytes, 'byte')}")
    return problems


def refuse_misplaced(index: Index, found: Mapping[str, Set[str]]) -> None:
    """Raises CliError if a tensor is not where an index puts it: see misplaced()."""
    for problem in misplaced(index, found):
        raise CliError(f"{index.path}: {problem}")


def misplaced(index: Index, found: Mapping[str, Set[str]]) -> list[str]:
    """Returns one line for each tensor that is not where an index puts it. No loader needs
    `total_size`, and some programs count shared tensors twice in it.

    `found` has the paths of the files of each tensor.
    """
    problems = []
    folder = os.path.join(os.path.dirname(index.path), "")
    for name, path in index.weight_map.items():
        if path not in found.get(name, ()):
            where = clipped(path.removeprefix(folder))
            problems.append(f"tensor `{clipped(name)}` is not in {where}")
    for name, paths in found.items():
        for path in sorted(paths - {index.weight_map.get(name, "")}):
            where = clipped(path.removeprefix(folder))
            problems.append(f"tensor `{clipped(name)}` of {where} is not in the index")
    return problems


def _paths_of(files: Sequence[File]) -> dict[str, set[str]]:
    """Returns the paths of the files of each tensor."""
    found: dict[str, set[str]] = {}
    for file in files:
        for tensor in file.tensors:
            found.setdefault(tensor.name, set()).add(file.path)
    return found


def _allow_descriptors(count: int) -> None:
    """Raises the limit of open files: models may have hundreds of shards, and the usual limit
    is 1,024 descriptors."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is 8,192
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _DESCRIPTORS_TO_SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
