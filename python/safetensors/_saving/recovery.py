"""Recovers models whose save was interrupted.

docs/format.md, "Switch", describes the files, the steps and the recovery. What is read here, the
switch and the old index, may come from anyone: it selects among fixed file names of one folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import NamedTuple, NoReturn

from .. import _core, _json
from .._core import SafetensorError
from .._errors import failure
from .._typing import Path
from . import split
from .folder import (
    Folder,
    Foreign,
    Left,
    is_used,
    left_in,
    lock,
    read_whole,
    refuse,
    user_name,
    warn_of,
)
from .journal import recover_files

CLEAN, BACK, FORWARD = "clean", "rolled back", "rolled forward"

KIND = "save"
_ENDINGS = split.file_names("", 1)[0], split.index_name("")
SWITCH, SUMS = "switch", "sums"
NAME = "name"
"""The key of a switch that has the name of the model, if the folder's name has a part of it."""
_PART = re.compile(r"[0-9]{5}")
_MAX_NBYTES = 64 << 20

Identity = list[int]
"""Size, time of the last change and inode: those of another file differ."""


class Content(NamedTuple):
    """What a complete switch says, besides the name of the model: see Switch._fill()."""

    shards: int
    old: dict[str, Identity]
    """The files that the new model replaces or removes."""
    inodes: list[int]
    """Those of the new files, in the order of `parts_of`."""
    companions: list[str]
    """Small files that are replaced with the model."""


def recover(path: Path) -> str:
    """Completes or undoes saves, and changes in place, that a kill or a power failure interrupted.

    Saving to a folder does this first, so a program needs it only before it loads.

    Args:
        path: a file of the model, or a folder, all of whose models are recovered. What other users
            have left in a folder, or made under such names, is left alone, with a warning.

    Returns:
        "rolled forward" if the new model, or the change, has taken its place, "rolled back" if
        temporary files were removed, and "clean" if there was nothing to do.

    Raises:
        SafetensorError: a process is saving; a file that the recovery would follow belongs to
            another user, is not a regular file, or names other files; or `path` is a file that
            does not open although there was nothing to recover.
        FileNotFoundError: neither `path` nor another file of its model exists.
        OSError: an operating system call failed.
    """
    typed, file = os.path.abspath(os.fsdecode(path)), ""
    if not os.path.isdir(typed):
        typed, file = os.path.split(typed)
    folder = Folder(typed)
    saves, foreign = left_in(
        folder, KIND, lambda stem: not file or stem in _stems_of(file), _is_part
    )
    if file:
        _refuse_foreign(folder, foreign)
    outcomes = [_recover_save(folder, each) for each in saves]
    changes = recover_files(folder, [file] if file else None)
    outcomes += [FORWARD if is_done else BACK for is_done in changes.outcomes]
    outcomes += [BACK] * folder.remove_stale(file or None)
    warn_of(folder, [*foreign, *changes.foreign])
    outcome = next((each for each in (FORWARD, BACK) if each in outcomes), CLEAN)
    if outcome == CLEAN and file:
        _refuse_absent_or_damaged(typed, file)
    return outcome


def _refuse_absent_or_damaged(folder: str, file: str) -> None:
    """Raises unless a file can be opened, or another one of its model exists."""
    path = os.path.join(folder, file)
    if not os.path.exists(path):
        name = split.model_name(file)
        if any(_is_file_of(name, each) for each in os.listdir(folder)):
            return
    elif not file.endswith(_ENDINGS):
        return
    try:
        if file.endswith(_ENDINGS[1]):
            _core._read_index(path)
        else:
            _core._open_shard(os.fsencode(path), "pread", None, None).close()
    except OSError:
        raise
    except SafetensorError as error:
        raise failure(
            "invalid_argument",
            f"{path}: there was nothing to recover, but the file does not open: {error}",
            path=path,
        ) from error


def recover_model(folder: Folder, name: str) -> None:
    """Recovers the model with this name, as `recover`."""
    for each in saves_of(folder, name):
        _recover_save(folder, each)


def saves_of(folder: Folder, name: str) -> list[Left]:
    """Returns the private folders of saves of a model.

    Raises:
        SafetensorError: another user is saving it, or has left such a folder.
    """
    wanted = _core._own_stem(name)
    saves, foreign = left_in(folder, KIND, lambda stem: stem == wanted, _is_part)
    _refuse_foreign(folder, foreign)
    return saves


def _refuse_foreign(folder: Folder, foreign: Collection[Foreign]) -> None:
    for each in foreign:
        if each.owner is not None:
            raise failure(
                "io",
                f"{os.path.join(folder.path, each.name)}: user {user_name(each.owner)} is saving "
                f"`{each.stem}`, or was interrupted: then `safetensors recover` of that user "
                "completes it",
                path=os.path.join(folder.path, each.name),
            )


def old_files(folder: Folder, name: str) -> dict[str, Identity]:
    """Returns the files of a model: its index, its single file, and the shards that the index
    names.

    Raises:
        SafetensorError: the index is damaged, another user's, or not a regular file.
    """
    index = split.index_name(name)
    files = [index, *split.file_names(name, 1)]
    data = read_whole(folder, index, _json.MAX_NBYTES)
    if data is not None:
        by_file, _ = _core._parse_index(data, os.path.join(folder.path, index))
        files += [file for file in by_file if split.is_shard_name(name, file)]
    return identities(folder, files)


def old_names(folder: str, name: str) -> list[str]:
    """Returns the names of the files of a model, as `old_files`; none without the folder."""
    return [*old_files(Folder(folder), name)] if os.path.isdir(folder) else []


def _recover_save(folder: Folder, left: Left) -> str:
    save = left.folder
    path = os.path.join(save.path, SWITCH)
    fd = save.open(SWITCH)
    if fd is None:  # killed before it was made, or after it was removed
        if folder.remove_empty(save):
            return BACK
        if is_used(save):  # its process makes the switch just now
            return CLEAN
        roll_back(folder, save)
        return BACK
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes > _MAX_NBYTES:
            refuse(path, f"it has {nbytes:,} bytes, more than {_MAX_NBYTES:,}")
        try:
            is_locked = lock(fd)
        except OSError as error:
            refuse(path, f"it cannot be locked: {error.strerror}")
        if not is_locked:
            refuse_busy(folder, left.stem)
        if os.fstat(fd).st_nlink == 0:
            return CLEAN  # its process has completed it
        name, content = _parse(_read(fd), left.stem, path)
        if content is None:
            roll_back(folder, save)
            return BACK
        roll_forward(folder, save, name, content, durable=True)
        return FORWARD
    finally:
        os.close(fd)


def _parse(data: bytes, stem: str, path: str) -> tuple[str, Content | None]:
    """Returns the model's name and the content of a switch, which is None if it is incomplete."""
    try:
        found = _json.loads(data, path, has_file_names=True)
    except ValueError:
        return stem, None
    name = found.pop(NAME, stem) if isinstance(found, dict) else stem
    if not isinstance(found, dict) or found.keys() != {*Content._fields}:
        refuse(path, "it is not a switch file")
    if not isinstance(name, str) or "\0" in name or _core._own_stem(name) != stem:
        refuse(path, f"it is about {str(name)[:100]!r}, and its folder about {stem!r}")
    shards, old = found["shards"], found["old"]
    if type(shards) is not int or not 1 <= shards <= split.MAX_SHARDS:
        refuse(path, f"it has a bad number of shards: {str(shards)[:100]}")
    if not isinstance(old, dict):
        refuse(path, "its list of old files is not an object")
    for file, identity in old.items():
        if not _is_file_of(name, file):
            refuse(path, f"it names {file[:100]!r}, which is no file of `{name}`")
        if not _are_numbers(identity, 3):
            refuse(path, f"it has a bad size, time or inode of {file}")
    inodes, companions = found["inodes"], found["companions"]
    if not _are_numbers(inodes, len(parts_of(shards))):
        refuse(path, f"its list of inodes is not one of {len(parts_of(shards))} numbers")
    if not isinstance(companions, list):
        refuse(path, "its list of companions is not a list")
    for file in companions:
        if not isinstance(file, str) or not split.is_companion_name(file):
            refuse(path, f"it names {str(file)[:100]!r}, which is no companion of a model")
    return name, Content(shards, old, inodes, companions)


def _are_numbers(found: object, count: int) -> bool:
    return isinstance(found, list) and [type(each) for each in found] == [int] * count


def roll_forward(folder: Folder, save: Folder, name: str, content: Content, durable: bool) -> None:
    """Does what of the switch has not been done, and removes the private folder."""
    here = {*save.names()}
    index = split.index_name(name)
    files = split.file_names(name, content.shards) + [index] * (content.shards > 1)
    parts = dict(zip(files, parts_of(content.shards), strict=True))
    waiting = {file: part for file, part in parts.items() if part in here}
    outdated = [file for file in content.old if file in waiting or file not in files]
    _check_places(folder, save, files, waiting, outdated, content)

    if waiting:  # before the first step, after which the sums would be of another model
        remove_sums(folder, name)
    # A reader that finds no index fails; it never combines the shards of two models. An old single
    # file stays until the end: transformers prefers it to an index, and it is whole. Readers of
    # this package see the switch (src/open/model_folder.cpp).
    if index in outdated:
        folder.remove(index)
        if durable:
            folder.flush()
    for file, part in waiting.items():
        save.move(part, folder, file)
    for file in outdated:
        if file not in waiting and file != index:
            folder.remove(file)
    for file in content.companions:
        if companion_part(file) in here:
            save.move(companion_part(file), folder, file)
    if SUMS in here:
        save.move(SUMS, folder, split.sums_name(name))
    if durable:
        folder.flush()
        save.flush()
    save.remove(SWITCH)
    folder.remove_private(save)


def _check_places(
    folder: Folder,
    save: Folder,
    files: Collection[str],
    waiting: dict[str, str],
    outdated: Collection[str],
    content: Content,
) -> None:
    """Raises if a file in the folder is neither the old one nor the new one.

    Only this user can take a part out of the private folder: one that is not there is in its place.
    """
    switch = os.path.join(save.path, SWITCH)
    new = dict(zip(files, content.inodes, strict=True))
    present = identities(folder, {*files, *outdated})
    found = {file: present.get(file) for file in files}
    found.update((file, save.identity(part)) for file, part in waiting.items())
    # A copy of the folder has other inodes, and so have some file systems when mounted again.
    has_inodes = any(each is not None and each[2] == new[file] for file, each in found.items())
    has_inodes |= any(present[file] == content.old.get(file) for file in present)
    for file in files:
        if file in waiting:
            continue
        if file not in present or (has_inodes and present[file] == content.old.get(file)):
            refuse(switch, f"the new {file} is missing")
        if has_inodes and present[file][2] != new[file]:
            refuse(switch, f"{file} was changed after the save was interrupted")
    count = 3 if has_inodes else 2
    for file in {*waiting, *outdated} & present.keys():
        if present[file][:count] != content.old.get(file, [])[:count]:
            refuse(switch, f"{file} was changed after the save was interrupted")


def roll_back(folder: Folder, save: Folder) -> None:
    """Removes the private folder of a save, whose switch is incomplete."""
    for part in save.names():
        if part != SWITCH:  # last: it says that the folder has been a save
            save.remove(part)
    save.remove(SWITCH)
    folder.remove_private(save)


def shard_part(number: int) -> str:
    """Returns the name that shard `number`, from 1 on, has in the private folder."""
    return f"{number:05}"


def companion_part(file: str) -> str:
    """Returns the name that a companion has in the private folder."""
    return f"+{file}"


def _is_part(file: str) -> bool:
    """Returns whether a private folder of a save may have a file of this name."""
    if file.startswith("+"):
        return split.is_companion_name(file[1:])
    return file in (SWITCH, SUMS, "index") or _PART.fullmatch(file) is not None


def parts_of(shards: int) -> list[str]:
    """Returns the names of the parts of a model's files, without sums and companions."""
    return [*map(shard_part, range(1, shards + 1)), *["index"] * (shards > 1)]


def _stems_of(file: str) -> list[str]:
    """Returns what the private folder may be called that a save of this file has."""
    names = [file.removesuffix(ending) for ending in _ENDINGS if file.endswith(ending)]
    names.append(split.model_name(file))
    return [_core._own_stem(name) for name in names if name and _is_file_of(name, file)]


def _is_file_of(name: str, file: str) -> bool:
    fixed = (f"{name}.safetensors", split.index_name(name))
    return file in fixed or split.is_shard_name(name, file)


def identities(folder: Folder, files: Collection[str]) -> dict[str, Identity]:
    """Returns the identities of those files that exist. Raises OSError if one is a directory."""
    found = {file: folder.identity(file) for file in files}
    return {file: each for file, each in found.items() if each is not None}


def _read(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(_MAX_NBYTES + 1)


def remove_sums(folder: Folder, name: str) -> None:
    """Removes the sums of a model that is about to change."""
    _core._remove_sums(os.path.join(folder.path, split.file_names(name, 1)[0]))


def refuse_busy(folder: Folder, name: str) -> NoReturn:
    raise failure("io", f"{folder.path}: another process is saving `{name}`", path=folder.path)
