"""What a path names: one file, the files of a folder, or the shards of an index."""

import os
from typing import NamedTuple

from .. import SafetensorError, _core
from .errors import CliError
from .opening import STDIN
from .reader import File, Tensor
from .text import clipped, count, shown_path

INDEX_SUFFIX = ".safetensors.index.json"
_DESCRIPTORS_TO_SPARE = 50


class Placed(NamedTuple):
    """A tensor and the file it lies in."""

    file: File
    tensor: Tensor


class Index(NamedTuple):
    """A sharded model's table of contents."""

    path: str
    weight_map: dict[str, str]
    """From a tensor's name to the file it lies in."""
    total_size: int | None
    """Of all tensors, in bytes, as it says."""

    def folder(self) -> str:
        return os.path.dirname(self.path)

    def file_names(self) -> list[str]:
        return sorted(set(self.weight_map.values()))


class Model:
    """Open files. `index` when they are the shards of one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.index: Index | None = None
        self.files: list[File] = []
        paths, self.index = files_of(path)
        _allow_descriptors(len(paths))
        try:
            for name in paths:
                self.files.append(File(name))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def all(self) -> list[Placed]:
        """Every tensor of every file, in the files' order."""
        return [Placed(file, tensor) for file in self.files for tensor in file.tensors]

    def by_name(self) -> dict[str, Placed]:
        """The same by name. Raises CliError when the files are not one model."""
        placed: dict[str, Placed] = {}
        for each in self.all():
            other = placed.setdefault(each.tensor.name, each)
            if other is not each:
                raise CliError(
                    f"{shown_path(self.path)}: tensor `{clipped(each.tensor.name)}` is in both "
                    f"{shown_path(other.file.path)} and {shown_path(each.file.path)}"
                )
        if self.index is not None:
            for problem in index_problems(self.index, self.files):
                raise CliError(f"{shown_path(self.index.path)}: {problem}")
        return placed

    def metadata(self) -> dict[str, str]:
        """That of all files together; of a key that they have different values for, the first."""
        together: dict[str, str] = {}
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                together.setdefault(key, value)
        return together


def files_of(path: str) -> tuple[list[str], Index | None]:
    """The files to open for a path, and the index that names them."""
    if path == STDIN:
        return [path], None
    if not os.path.isdir(path):
        if not path.endswith(".json"):
            return [path], None
        index = read_index(path)
        return [os.path.join(index.folder(), name) for name in index.file_names()], index
    names = sorted(os.listdir(path))
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if len(indexes) > 1:
        raise CliError(f"{shown_path(path)} has several models: name one of {', '.join(indexes)}")
    if indexes:
        return files_of(os.path.join(path, indexes[0]))
    found = [os.path.join(path, name) for name in names if name.endswith(".safetensors")]
    if not found:
        raise CliError(f"{shown_path(path)}: a folder without .safetensors files")
    return found, None


def read_index(path: str) -> Index:
    """An index, whose files all lie in its folder or below."""
    try:
        by_file, total_size = _core._read_index(path)
    except SafetensorError as error:
        if isinstance(error, OSError):
            raise
        raise CliError(str(error)) from None
    weight_map = {name: file for file, names in by_file.items() for name in names}
    if not weight_map:
        raise CliError(f"{shown_path(path)}: not an index of shards: it names no tensor")
    return Index(path, weight_map, total_size)


def index_problems(index: Index, files: list[File]) -> list[str]:
    """Where an index and the shards that it names disagree."""
    problems = []
    found: dict[str, set[str]] = {}
    for file in files:
        where = os.path.relpath(file.path, index.folder() or ".").replace(os.sep, "/")
        for tensor in file.tensors:
            found.setdefault(tensor.name, set()).add(where)
    for name, where in index.weight_map.items():
        if where not in found.get(name, ()):
            problems.append(f"tensor `{clipped(name)}` is not in {clipped(where)}")
    for name, places in found.items():
        for where in sorted(places - {index.weight_map.get(name, "")}):
            problems.append(f"tensor `{clipped(name)}` of {clipped(where)} is not in the index")
    total = index.total_size
    nbytes = sum(tensor.nbytes for file in files for tensor in file.tensors)
    if total is not None and total != nbytes:
        problems.append(f"`total_size` is {total:,}, the tensors have {count(nbytes, 'byte')}")
    return problems


def _allow_descriptors(count: int) -> None:
    """Models have hundreds of shards, and the usual limit is 1,024 descriptors."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is 8,192
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _DESCRIPTORS_TO_SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
