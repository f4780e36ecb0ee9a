"""Recovers models whose save was interrupted.

docs/format.md, "Switch", describes the files, the steps and the recovery. What is read here, the
switch and the old index, may come from anyone: it selects among fixed file names of one folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from typing import Collection, Dict, List, NamedTuple, NoReturn, Optional

from . import _core, _split
from ._core import SafetensorError
from ._files import check_own, flush, lock, open_untrusted, refuse
from ._journal import JOURNAL, recover_files
from ._typing import Path

CLEAN, BACK, FORWARD = "clean", "rolled back", "rolled forward"

SWITCH = re.compile(r"\.([^./\\][^/\\]*)\.([0-9a-f]{16})\.switch")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)
"""The temporary file of a single save."""
_MOST_NBYTES = 64 << 20
_SECONDS_UNTIL_STALE = 60
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)

Identity = List[int]
"""Size and time of the last change: those of another file differ."""


class Content(NamedTuple):
    """What a complete switch file says."""

    shards: int
    old: Dict[str, Identity]
    """The files that the new model replaces or removes."""


def recover(path: Path) -> str:
    """Completes or undoes saves, and changes in place, that a kill or a power failure interrupted.

    Saving to a folder does this first, so a program needs it only before it loads.

    Args:
        path: a file of the model, or a folder, all of whose models are recovered.

    Returns:
        "rolled forward" if the new model, or the change, has taken its place, "rolled back" if
        temporary files were removed, and "clean" if there was nothing to do.

    Raises:
        SafetensorError: another process is saving; or a file that the recovery would follow was
            made by another user, is not a regular file, or names other files.
        OSError: an operating system call failed.
    """
    folder, file = os.path.abspath(os.fsdecode(path)), ""
    if not os.path.isdir(folder):
        folder, file = os.path.split(folder)
    outcomes = []
    for each in sorted(os.listdir(folder)):
        match = SWITCH.fullmatch(each)
        if match and (not file or _is_file_of(match[1], file)):
            outcomes.append(_recover_switch(folder, match[1], match[2]))
    outcomes += [
        FORWARD if is_done else BACK for is_done in recover_files(folder, [file] if file else None)
    ]
    outcomes += [_remove_stale(folder, each, file) for each in os.listdir(folder)]
    return next((each for each in (FORWARD, BACK) if each in outcomes), CLEAN)


def recover_model(folder: str, name: str) -> None:
    """Recovers the model with this name, as `recover`."""
    for file in switches(folder, name):
        match = SWITCH.fullmatch(file)
        assert match is not None
        _recover_switch(folder, name, match[2])


def old_files(folder: str, name: str) -> Dict[str, Identity]:
    """Returns the files of a model: its index, its single file, and the shards that the index
    names.

    Raises:
        SafetensorError: the index is damaged, another user's, or not a regular file.
    """
    index = _split.index_name(name)
    files = [index, *_split.file_names(name, 1)]
    path = os.path.join(folder, index)
    if os.path.lexists(path):
        check_own(os.lstat(path), path)
        by_file, _ = _core._read_index(path)
        files += [file for file in by_file if _split.is_shard_name(name, file)]
    return identities(folder, files)


def _recover_switch(folder: str, name: str, random: str) -> str:
    path = os.path.join(folder, f".{name}.{random}.switch")
    try:
        fd = open_untrusted(path)
    except FileNotFoundError:
        return CLEAN  # another process has completed it
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise
        refuse(path, "it is not a regular file")
    try:
        status = os.fstat(fd)
        check_own(status, path)
        if status.st_size > _MOST_NBYTES:
            refuse(path, f"it has {status.st_size:,} bytes, more than {_MOST_NBYTES:,}")
        try:
            is_locked = lock(fd)
        except OSError as error:
            refuse(path, f"it cannot be locked: {error.strerror}")
        if not is_locked:
            refuse_busy(folder, name)
        if os.fstat(fd).st_nlink == 0:
            return CLEAN
        content = _parse(_read(fd), name, path)
        if content is None:
            roll_back(folder, name, random)
            return BACK
        roll_forward(folder, name, random, content, durable=True)
        return FORWARD
    finally:
        os.close(fd)


def _parse(data: bytes, name: str, path: str) -> Optional[Content]:
    """Returns the content of a switch file, or None if it is incomplete."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    except RecursionError:
        refuse(path, "it is nested too deeply")
    if not isinstance(found, dict) or found.keys() != {*Content._fields}:
        refuse(path, "it is not a switch file")
    shards, old = found["shards"], found["old"]
    if type(shards) is not int or not 1 <= shards <= _split.MOST_SHARDS:
        refuse(path, f"it has a bad number of shards: {str(shards)[:100]}")
    if not isinstance(old, dict):
        refuse(path, "its list of old files is not an object")
    for file, identity in old.items():
        if not _is_file_of(name, file):
            refuse(path, f"it names {file[:100]!r}, which is no file of `{name}`")
        if not isinstance(identity, list) or [type(each) for each in identity] != [int, int]:
            refuse(path, f"it has a bad size or time of {file}")
    return Content(shards, old)


def roll_forward(folder: str, name: str, random: str, content: Content, durable: bool) -> None:
    """Does what of the switch has not been done, and removes the switch file."""
    switch = os.path.join(folder, f".{name}.{random}.switch")
    index = _split.index_name(name)
    files = _split.file_names(name, content.shards) + [index] * (content.shards > 1)
    parts = [temporary_name(name, random, part) for part in parts_of(content.shards)]
    waiting = {
        file: part
        for file, part in zip(files, parts, strict=True)
        if os.path.lexists(os.path.join(folder, part))
    }
    outdated = [file for file in content.old if file in waiting or file not in files]
    present = identities(folder, {*files, *outdated})
    for file in files:
        if file not in waiting and present.get(file) in (None, content.old.get(file)):
            refuse(switch, f"the new {file} is missing")
    for file in {*waiting, *outdated} & present.keys():
        if present[file] != content.old.get(file):
            refuse(switch, f"{file} was changed after the save was interrupted")

    if waiting:  # before the first step, after which the sums would be of another model
        remove_sums(folder, name)
    # A reader that finds no index fails; it never combines the shards of two models. An old single
    # file stays until the end: readers prefer it to an index, and it is whole.
    if index in outdated:
        _unlink(folder, index)
        if durable:
            flush(folder)
    for file, part in waiting.items():
        os.replace(os.path.join(folder, part), os.path.join(folder, file))
    for file in outdated:
        if file not in waiting and file != index:
            _unlink(folder, file)
    take_sums(folder, name, random)
    if durable:
        flush(folder)
    _unlink(folder, os.path.basename(switch))


def roll_back(folder: str, name: str, random: str) -> None:
    """Removes the temporary files of a save, and its switch file."""
    # A shard that is being written has a temporary name of its own.
    part = re.escape(temporary_name(name, random, "PART")).replace("PART", "([0-9]{5}|index|sums)")
    pattern = re.compile(rf"{part}|\.{part}\.[0-9a-f]{{16}}\.tmp")
    for file in os.listdir(folder):
        if pattern.fullmatch(file):
            _unlink(folder, file)
    _unlink(folder, f".{name}.{random}.switch")


def _remove_stale(folder: str, file: str, only: str) -> str:
    """Removes the temporary file of a save or of a journal that was killed; with `only`, of this
    name."""
    match = _TEMPORARY.fullmatch(file)
    if match is None:
        return CLEAN
    journal = JOURNAL.fullmatch(match[1])
    target = journal[1] if journal else match[1]
    if target.endswith(_split.SUMS):
        target = target.removesuffix(_split.SUMS) + ".safetensors"
    if not (target == only if only else journal or target.endswith(".safetensors")):
        return CLEAN
    path = os.path.join(folder, file)
    with contextlib.suppress(OSError):
        fd = open_untrusted(path)
        try:
            status = os.fstat(fd)
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            is_old = status.st_mtime < time.time() - _SECONDS_UNTIL_STALE
            if is_own and is_old and lock(fd):
                os.unlink(path)
                return BACK
        finally:
            os.close(fd)
    return CLEAN


def temporary_name(name: str, random: str, part: str) -> str:
    return f".{name}-{part}.{random}.part"


def parts_of(shards: int) -> List[str]:
    return [f"{number:05}" for number in range(1, shards + 1)] + ["index"] * (shards > 1)


def _is_file_of(name: str, file: str) -> bool:
    fixed = (f"{name}.safetensors", _split.index_name(name))
    return file in fixed or _split.is_shard_name(name, file)


def switches(folder: str, name: str) -> List[str]:
    found = [(file, SWITCH.fullmatch(file)) for file in os.listdir(folder)]
    return sorted(file for file, match in found if match and match[1] == name)


def identities(folder: str, files: Collection[str]) -> Dict[str, Identity]:
    """Returns the identities of those files that exist. Raises OSError if one is a directory."""
    found = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(folder, file)
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            found[file] = [status.st_size, status.st_mtime_ns]
    return found


def _read(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(_MOST_NBYTES + 1)


def _unlink(folder: str, file: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, file))


def remove_sums(folder: str, name: str) -> None:
    """Removes the sums of a model that is about to change."""
    _core._remove_sums(os.path.join(folder, _split.file_names(name, 1)[0]))


def take_sums(folder: str, name: str, random: str) -> None:
    """Gives the new sums their name, if the save has any that do not have it yet."""
    part = os.path.join(folder, temporary_name(name, random, "sums"))
    if os.path.lexists(part):
        os.replace(part, os.path.join(folder, _split.sums_name(name)))


def refuse_busy(folder: str, name: str) -> NoReturn:
    raise SafetensorError(f"{folder}: another process is saving `{name}`")
