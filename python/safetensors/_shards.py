"""Finds and opens the files of a sharded model.

Shared by all frameworks: imports none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._core import SafetensorError, safe_open
from ._typing import Paths

_INDEX = ".safetensors.index.json"
_SWITCH = ".switch"
_RANDOM_DIGITS = 16


class Shard(NamedTuple):
    """A file of a model, before it is opened."""

    path: str
    names: Optional[List[str]] = None
    """The tensors that an index assigns to the file; None without an index."""
    index_path: str = ""
    """The index; empty without one."""


def find_shards(filenames: Paths) -> List[Shard]:
    """Returns the files that `filenames` selects.

    Args:
        filenames: a file, an index (a name that ends with .json), a directory, or a list of these.
            For a directory: model.safetensors.index.json; else a single other
            *.safetensors.index.json; else all *.safetensors files.

    Raises:
        FileNotFoundError: a directory has none of these.
        SafetensorError: an index is damaged, or a save to the directory was interrupted.
        ValueError: the list is empty.
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
    """Opens the files that hold requested tensors.

    Args:
        shards: the files. A file of an index is opened only if a tensor in it is requested.
        wanted: the requested names; None requests all tensors.
        backend: see `safe_open`.
        stack: the files are closed when it exits.

    Returns:
        The open file of each requested tensor, ordered by file and byte offset; and the names of
        the other tensors.

    Raises:
        SafetensorError: two files hold the same name, a file lacks a tensor that its index assigns
            to it, or a file is damaged.
        OSError: a file cannot be opened.
    """
    handles: Dict[str, safe_open] = {}
    paths: Dict[str, str] = {}
    unwanted: List[str] = []
    for shard in shards:
        handle, names = _open_shard(shard, wanted, backend, stack)
        # load_files returns one dict, in which the second tensor would replace the first.
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


def refuse_interrupted(directory: str, names: Collection[str]) -> None:
    """Raises if a save of a model was interrupted while its files took their places.

    Args:
        directory: a directory that has no index of the model to be loaded.
        names: the names in it.
    """
    for name in names:
        # A switch file, ".NAME.RANDOM.switch", is empty until the old model's files are removed.
        if name.startswith(".") and name.endswith(_SWITCH):
            model, _, random = name[1 : -len(_SWITCH)].rpartition(".")
            if not model or len(random) != _RANDOM_DIGITS or model + _INDEX in names:
                continue
            status = os.lstat(os.path.join(directory, name))
            if stat.S_ISREG(status.st_mode) and status.st_size:
                raise SafetensorError(
                    f"{directory}: a save of `{model}` was interrupted while its files took their "
                    f"places, or is about to end. `safetensors recover` completes it (found {name})"
                )


def _shards_of(path: str) -> List[Shard]:
    if os.path.isdir(path):
        return _shards_in(path)
    return _read_index(path) if path.endswith(".json") else [Shard(path)]


def _shards_in(directory: str) -> List[Shard]:
    """Returns the files of a directory: those of its index, or all."""
    found = os.listdir(directory)
    # Other programs leave hidden files behind: "._model.safetensors" is a file manager's.
    names = sorted(name for name in found if not name.startswith("."))
    # Several indexes describe variants of the model, such as fp16: none of them is the default.
    indexes = [name for name in names if name.endswith(_INDEX)]
    if "model" + _INDEX in indexes:
        indexes = ["model" + _INDEX]
    else:
        try:
            refuse_interrupted(directory, found)
        except FileNotFoundError:  # a save has just ended
            return _shards_in(directory)
    if len(indexes) == 1:
        return _read_index(os.path.join(directory, indexes[0]))
    files = [os.path.join(directory, name) for name in names if name.endswith(".safetensors")]
    if not files:
        raise FileNotFoundError(errno.ENOENT, "No .safetensors files in the directory", directory)
    return [Shard(file) for file in files]


def _read_index(path: str) -> List[Shard]:
    """Returns the files that an index names, sorted by name."""
    by_file, _ = _core._read_index(path)
    directory = os.path.dirname(path)
    return [Shard(os.path.join(directory, file), names, path) for file, names in by_file.items()]


def _open_shard(
    shard: Shard, wanted: Optional[Collection[str]], backend: str, stack: contextlib.ExitStack
) -> Tuple[Optional[safe_open], List[str]]:
    """Returns the open file, or None if no tensor in it is requested, and its tensors' names."""
    names = shard.names
    if names is None:
        handle = stack.enter_context(_core._open_shard(shard.path, backend))
        return handle, handle.offset_keys()
    needed = [name for name in names if wanted is None or name in wanted]
    if not needed:
        return None, names
    try:
        handle = stack.enter_context(_core._open_shard(shard.path, backend))
    except FileNotFoundError as error:  # names the index, which the system's error does not
        text = f"The index {shard.index_path} puts tensor {needed[0]!r} into a file that is missing"
        raise FileNotFoundError(errno.ENOENT, text, shard.path) from error
    absent = next((name for name in names if name not in handle), None)
    if absent is not None:
        raise SafetensorError(
            f"The index {shard.index_path} puts tensor {absent!r} into {shard.path}, which has no "
            "such tensor"
        )
    # Built only now: an index may claim far more names than the file's header can hold.
    assigned = set(names)
    return handle, [name for name in handle.offset_keys() if name in assigned]
