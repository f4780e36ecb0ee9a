"""Finds the files of a folder that are the model.

The rule is the core's (include/safetensors/model_files.hpp), for folders of all kinds. Here are the
folders of the local file system, where a save may be under way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from . import _core
from ._core import SafetensorError, _own_stem, _own_stem_in
from ._errors import failure
from ._paths import visible
from ._warn import warn

_MAX_SHOWN = 8
_MAX_SUBFOLDERS = 1000
INDEX_SUFFIX = ".safetensors.index.json"
SUFFIX = ".safetensors"

Index = tuple[dict[str, list[str]], int | None]
"""The names of the tensors of each file, and the bytes of all tensors, if the index says so."""


class Choice(NamedTuple):
    """What the caller chooses in a folder. The rule chooses what is empty."""

    name: str = ""
    """What the names of the files begin with, such as "consolidated"."""
    variant: str = ""
    """Such as "fp16", of model.fp16.safetensors."""

    def refuse_for(self, what: str) -> None:
        """Raises ValueError if something is chosen in what is no folder."""
        if self != BY_RULE:
            raise ValueError(f"name and variant choose a model of a folder, and {what} is none")


BY_RULE = Choice()
"""Chooses nothing."""


def choice_of(name: str | None, variant: str | None) -> Choice:
    """Returns the choice of a public function's arguments."""
    for argument, value in (("name", name), ("variant", variant)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{argument} is a str, not {type(value).__name__}")
    return Choice(name or "", variant or "")


class FolderModel(NamedTuple):
    """The files of a model, relative to its folder."""

    name: str
    variant: str
    form: str
    """How the files belong together: "file", "index", "shards", "ranks" or "parts"."""
    index_file: str
    """The name of the index; empty for the other forms."""
    files: list[str]
    remarks: list[str]
    """Sentences about files that have the model's name and are left out."""
    others: list[str]
    """The other .safetensors files of the folder, sorted."""


def choose(
    folder: str,
    names: Iterable[str],
    choice: Choice,
    files_of_index: Callable[[str], Iterable[str]],
    exists: Callable[[str], bool],
) -> FolderModel:
    """Returns the files of the model of a folder.

    Args:
        folder: names the folder in errors.
        names: those in the folder, without folders.
        choice: what the caller chooses.
        files_of_index: returns the files that an index names. Called at most once.
        exists: returns whether a file of the index, or a single file beside it, exists.

    Raises:
        SafetensorError: more than one set of files may be the model, or one is not complete. If
            there is none, the error is a FileNotFoundError, too.
    """
    name, variant = choice
    return FolderModel._make(
        _core._choose_model_files(folder, names, name, variant, files_of_index, exists)
    )


def of_directory(
    directory: str, choice: Choice, names: Collection[str] | None = None
) -> tuple[FolderModel, Index | None]:
    """Returns the model of a local directory, and the content of its index, if it has one.

    Args:
        directory: a local directory.
        choice: what the caller chooses.
        names: those of which the model is chosen, if the directory has not all of them.

    Raises:
        SafetensorError: as choose(); or an index is damaged, or a save was interrupted.
        OSError: the directory or the index cannot be read.
    """
    while True:
        found, files = _listing(directory)
        indexes: dict[str, Index] = {}

        def files_of_index(name: str, indexes: dict[str, Index] = indexes) -> list[str]:
            indexes[name] = _core._read_index(os.path.join(directory, name))
            return [*indexes[name][0]]

        def exists(name: str) -> bool:
            if names is not None and name in names:
                return True
            return os.path.exists(os.path.join(directory, name))

        model, error = None, None
        try:
            model = choose(
                directory, files if names is None else names, choice, files_of_index, exists
            )
        except (SafetensorError, OSError) as raised:
            error = raised
        if model is not None and model.index_file == "model" + INDEX_SUFFIX:
            return model, indexes[model.index_file]
        try:
            _refuse_interrupted(directory, found, choice, model)
        except FileNotFoundError:  # a save has just ended
            continue
        if error is not None:
            raise _with_models_below(directory, error)
        assert model is not None
        return model, indexes.get(model.index_file)


def all_files(directory: str) -> list[str]:
    """Returns the names of all .safetensors files that are not hidden, sorted: for what is about
    files and not about a model."""
    return sorted(
        name for name in _listing(directory)[1] if name.endswith(SUFFIX) and name[0] != "."
    )


def all_indexes(directory: str) -> list[str]:
    """Returns the names of all indexes that are not hidden, sorted."""
    parsed = {
        name: _core._parse_model_file_name(name)
        for name in _listing(directory)[1]
        if name.endswith(".json") and name[0] != "."
    }
    return sorted(name for name, each in parsed.items() if each is not None and each[0] == "index")


def has_files(directory: str) -> bool:
    """Returns whether a directory has files of a model, other than a LoRA adapter: if not, its
    model may be one of GGUF or PyTorch files."""
    for name in _listing(directory)[1]:
        parsed = None if name.startswith(".") else _core._parse_model_file_name(name)
        if parsed is not None and parsed[1] != "adapter_model":
            return True
    return False


def models_below(directory: str) -> str:
    """Returns a sentence about the subfolders that have models, as those of a pipeline of
    diffusers; empty if none has."""
    if not os.path.isdir(directory):
        return ""
    paths = [os.path.join(directory, name) for name in visible(os.listdir(directory))]
    found = [path for path in paths[:_MAX_SUBFOLDERS] if os.path.isdir(path) and has_files(path)]
    shown = ", ".join(found[:_MAX_SHOWN]) + (", ..." if len(found) > _MAX_SHOWN else "")
    return f"these folders have some: {shown}" if found else ""


def _with_models_below(directory: str, error: Exception) -> Exception:
    """Returns the error, which names the subfolders with models if the directory has no file."""
    if getattr(error, "code", None) != "no_model" or getattr(error, "subject", None) is not None:
        return error
    try:
        below = models_below(directory)
    except OSError:  # a subfolder that cannot be read changes nothing
        return error
    if not below:
        return error
    return failure("no_model", f"{error}; {below}", path=directory, also=FileNotFoundError)


def refuse_interrupted(directory: str) -> None:
    """Raises SafetensorError if files of a model are just taking their places, or a save was
    interrupted while they did."""
    while True:
        found, _ = _listing(directory)
        try:
            return _refuse_interrupted(directory, found, BY_RULE, None)
        except FileNotFoundError:  # a save has just ended
            continue


def warn_of(folder: str, model: FolderModel) -> None:
    """Warns of the remarks, once for all of them."""
    if model.remarks:
        warn(f"{folder}: {'; '.join(model.remarks)}")


def _listing(directory: str) -> tuple[list[str], list[str]]:
    """Returns all names in a directory, and those of files and links."""
    found: list[str] = []
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            found.append(entry.name)
            if not entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return found, names


def _refuse_interrupted(
    directory: str, names: Collection[str], choice: Choice, model: FolderModel | None
) -> None:
    """Raises if the directory shows a save of a model while its files take their places.

    An index takes its place after the files that it names, so what it leads to is whole. Without
    one, and where the old single file still lies beside a new index, it may not be.

    Args:
        directory: a directory.
        names: all names in it.
        choice: what the caller chooses.
        model: what was found; None if this was an error.
    """
    for name in names:
        if not (name.startswith(".") and name.endswith(".save")):
            continue
        stem = _own_stem_in(name, "save")
        if stem is None or (choice.name and stem != _own_stem(choice.name)):
            continue
        if model is not None and _has_index(stem, names):
            continue
        if _is_switching(directory, name, names):
            raise failure(
                "incomplete_model",
                f"{directory}: a save of `{stem}` was interrupted while its files took their "
                f"places, or is about to end. `safetensors recover` completes it (found {name})",
                path=directory,
            )


def _has_index(stem: str, names: Collection[str]) -> bool:
    if stem + INDEX_SUFFIX in names:
        return True
    return "~" in stem and any(
        _own_stem(name.removesuffix(INDEX_SUFFIX)) == stem
        for name in names
        if name.endswith(INDEX_SUFFIX)
    )


def _is_switching(directory: str, name: str, names: Collection[str]) -> bool:
    """Returns whether the switch of a save is complete.

    Raises:
        FileNotFoundError: the names in the directory have changed.
    """
    path = os.path.join(directory, name)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        return False  # it is no save
    try:
        return os.lstat(os.path.join(path, "switch")).st_size > 0
    except PermissionError:  # another user's: see Switch._show
        return bool(status.st_mode & stat.S_ISVTX)
    except FileNotFoundError:  # it begins, ends, or was killed then
        if {*os.listdir(directory)} != {*names}:
            raise
        return False
