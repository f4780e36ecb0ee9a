"""Opens what a path names: a file, the files of a folder, or the shards of an index."""

import os
from typing import NamedTuple

from .. import SafetensorError, _core
from .._paths import is_url
from .._shards import refuse_interrupted
from .errors import CliError
from .opening import STDIN
from .reader import File, Tensor
from .text import clipped, count

INDEX_SUFFIX = ".safetensors.index.json"
_DESCRIPTORS_TO_SPARE = 50


class Placed(NamedTuple):
    """A tensor and its file."""

    file: File
    tensor: Tensor


class Index(NamedTuple):
    """The index of a sharded model."""

    path: str
    weight_map: dict[str, str]
    """Maps each tensor name to the name of its file."""
    total_size: int | None
    """The bytes of all tensors, as the index says."""
    is_remote: bool = False
    """Whether it is at a URL. Then `weight_map` has the names of whole files."""

    def folder(self) -> str:
        return os.path.dirname(self.path)

    def file_names(self) -> list[str]:
        return sorted(set(self.weight_map.values()))


class Model:
    """Open files. `index` is set if they are the shards of an index."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.index: Index | None = None
        self.files: list[File] = []
        if is_url(path):
            from . import remote

            shards, self.index = remote.files_of(path)
            self.files = remote.open_all(shards)
            return
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
        """Returns every tensor of every file, in the order of the files."""
        return [Placed(file, tensor) for file in self.files for tensor in file.tensors]

    def by_name(self) -> dict[str, Placed]:
        """Returns the tensors by name. Raises CliError if the files are not one model."""
        placed: dict[str, Placed] = {}
        for each in self.all():
            other = placed.setdefault(each.tensor.name, each)
            if other is not each:
                raise CliError(
                    f"{self.path}: tensor `{clipped(each.tensor.name)}` is in both "
                    f"{other.file.path} and {each.file.path}"
                )
        if self.index is not None:
            for problem in index_problems(self.index, self.files):
                raise CliError(f"{self.index.path}: {problem}")
        return placed

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of all files. If files differ in a key, the first value wins."""
        together: dict[str, str] = {}
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                together.setdefault(key, value)
        return together


def files_of(path: str) -> tuple[list[str], Index | None]:
    """Returns the files to open for a path, and the index that names them, if any."""
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
        raise CliError(f"{path} has several models: name one of {', '.join(indexes)}")
    if indexes:
        return files_of(os.path.join(path, indexes[0]))
    refuse_interrupted(path, names)
    found = [os.path.join(path, name) for name in names if name.endswith(".safetensors")]
    if not found:
        raise CliError(f"{path}: a folder without .safetensors files")
    return found, None


def read_index(path: str) -> Index:
    """Reads an index. All its files are in its folder or below."""
    try:
        by_file, total_size = _core._read_index(path)
    except SafetensorError as error:
        if isinstance(error, OSError):
            raise
        raise CliError(str(error)) from None
    weight_map = {name: file for file, names in by_file.items() for name in names}
    if not weight_map:
        raise CliError(f"{path}: not an index of shards: it names no tensor")
    return Index(path, weight_map, total_size)


def index_problems(index: Index, files: list[File]) -> list[str]:
    """Returns one line for each disagreement between an index and its shards."""
    problems = []
    found: dict[str, set[str]] = {}
    for file in files:
        where = file.path
        if not index.is_remote:
            where = os.path.relpath(where, index.folder() or ".").replace(os.sep, "/")
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
        problems.append(f"`total_size` is {total:,}, but the tensors have {count(nbytes, 'byte')}")
    return problems


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
