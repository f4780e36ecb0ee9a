"""The files of a model: those of a list or directory, or of an index that says which tensor is
where."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._core import SafetensorError, safe_open
from ._typing import Paths

_INDEX = ".safetensors.index.json"


class Shard(NamedTuple):
    """A file, and what is known of it before it is opened."""

    path: str
    names: Optional[List[str]] = None
    """Its tensors, by what an index says; None: all that it has."""
    told_by: str = ""
    """That index."""


def find_shards(filenames: Paths) -> List[Shard]:
    """The files that are meant.

    Args:
        filenames: a file, an index (a name that ends with .json) or a directory, or several. In a
            directory that is model.safetensors.index.json, or the index if there is one only, or
            all files whose names end with .safetensors.

    Raises:
        FileNotFoundError: a directory has no such file.
        SafetensorError: a damaged index.
        ValueError: an empty list.
    """
    if isinstance(filenames, (str, bytes, os.PathLike)):
        return _shards_of(os.fsdecode(filenames))
    found = [shard for filename in filenames for shard in _shards_of(os.fsdecode(filename))]
    if not found:
        raise ValueError("no files to load: the list of filenames is empty")
    return found


def open_tensors(
    shards: Sequence[Shard],
    wanted: Optional[Collection[str]],
    backend: str,
    stack: contextlib.ExitStack,
) -> Tuple[Dict[str, safe_open], List[str]]:
    """Opens the files that have wanted tensors.

    Args:
        shards: the files. One whose tensors an index tells is opened if one of them is wanted.
        wanted: names; None: all tensors.
        backend: as `safe_open` has it.
        stack: closes the files.

    Returns:
        For each wanted tensor its file, in the order of files and bytes; and the names of those
        that are not wanted.

    Raises:
        SafetensorError: the same name in two files, a name that a file lacks though its index says
            otherwise, a damaged file.
        OSError: what cannot be read.
    """
    handles: Dict[str, safe_open] = {}
    paths: Dict[str, str] = {}
    unwanted: List[str] = []
    for shard in shards:
        handle, names = _open_shard(shard, wanted, backend, stack)
        repeated = paths.keys() & names
        if repeated:
            name = min(repeated)
            raise SafetensorError(
                f"Tensor {name!r} is in two files: {paths[name]} and {shard.path}"
            )
        paths.update(dict.fromkeys(names, shard.path))
        if wanted is not None:
            unwanted += (name for name in names if name not in wanted)
            names = [name for name in names if name in wanted]
        if handle is not None:
            handles.update(dict.fromkeys(names, handle))
    return handles, unwanted


def _shards_of(path: str) -> List[Shard]:
    if os.path.isdir(path):
        return _shards_in(path)
    return _read_index(path) if path.endswith(".json") else [Shard(path)]


def _shards_in(directory: str) -> List[Shard]:
    # Names that begin with a dot are leavings of other programs.
    names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    indexes = [name for name in names if name.endswith(_INDEX)]
    if "model" + _INDEX in indexes:
        indexes = ["model" + _INDEX]
    if len(indexes) == 1:
        return _read_index(os.path.join(directory, indexes[0]))
    files = [os.path.join(directory, name) for name in names if name.endswith(".safetensors")]
    if not files:
        raise FileNotFoundError(errno.ENOENT, "No .safetensors files in the directory", directory)
    return [Shard(file) for file in files]


def _read_index(path: str) -> List[Shard]:
    """The shards of an index, by name."""
    by_file, _ = _core._read_index(path)
    directory = os.path.dirname(path)
    return [Shard(os.path.join(directory, file), names, path) for file, names in by_file.items()]


def _open_shard(
    shard: Shard, wanted: Optional[Collection[str]], backend: str, stack: contextlib.ExitStack
) -> Tuple[Optional[safe_open], List[str]]:
    """The file, if it is needed, and the names of its tensors."""
    names = shard.names
    if names is None:
        handle = stack.enter_context(_core._open_shard(shard.path, backend))
        return handle, handle.offset_keys()
    needed = [name for name in names if wanted is None or name in wanted]
    if not needed:
        return None, names
    try:
        handle = stack.enter_context(_core._open_shard(shard.path, backend))
    except FileNotFoundError as error:
        text = f"The index {shard.told_by} puts tensor {needed[0]!r} into a file that is missing"
        raise FileNotFoundError(errno.ENOENT, text, shard.path) from error
    absent = next((name for name in names if name not in handle), None)
    if absent is not None:
        raise SafetensorError(
            f"The index {shard.told_by} puts tensor {absent!r} into {shard.path}, which has no "
            "such tensor"
        )
    told = set(names)  # not before: names that no file has may be many more than a file can have
    return handle, [name for name in handle.offset_keys() if name in told]
