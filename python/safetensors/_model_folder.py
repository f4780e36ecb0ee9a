"""Finds the files of a folder that are the model.

The rule is the core's (include/safetensors/model_files.hpp), for folders of all kinds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from . import _extra
from ._warn import warn

if TYPE_CHECKING:
    from ._reading import Version

SUFFIX = ".safetensors"

Index = tuple[dict[str, list[str]], int | None]
"""The names of the tensors of each file, and the bytes of all tensors, if the index says so."""
LocalIndex = tuple[dict[str, list[str]], int | None, "Version"]
"""The same, and the version of the index."""


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
        _extra._choose_model_files(folder, names, name, variant, files_of_index, exists)
    )


def of_directory(
    directory: str, choice: Choice, names: Collection[str] | None = None
) -> tuple[FolderModel, LocalIndex | None]:
    """Returns the model of a local directory, and the content of its index, if it has one.

    Args:
        directory: a local directory.
        choice: what the caller chooses.
        names: those of which the model is chosen, if the directory has not all of them.

    Raises:
        SafetensorError: as choose(); or an index is damaged, or a save was interrupted.
        OSError: the directory or the index cannot be read.
    """
    model, index = _extra._find_in_folder(directory, *choice, names)
    return FolderModel._make(model), index


def all_files(directory: str) -> list[str]:
    """Returns the names of all .safetensors files that are not hidden, sorted: for what is about
    files and not about a model."""
    return sorted(name for name in _files(directory) if name.endswith(SUFFIX) and name[0] != ".")


def all_indexes(directory: str) -> list[str]:
    """Returns the names of all indexes that are not hidden, sorted."""
    parsed = {
        name: _extra._parse_model_file_name(name)
        for name in _files(directory)
        if name.endswith(".json") and name[0] != "."
    }
    return sorted(name for name, each in parsed.items() if each is not None and each[0] == "index")


def warn_of(folder: str, model: FolderModel) -> None:
    """Warns of the remarks, once for all of them."""
    if model.remarks:
        warn(f"{folder}: {'; '.join(model.remarks)}")


def _files(directory: str) -> list[str]:
    """Returns the names of the files and links in a directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
