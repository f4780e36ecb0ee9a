"""Finds the files of a sharded model, which _open_shards.py opens.

Shared by all frameworks: imports none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _extra, _model_folder
from ._core import SafetensorError
from ._errors import failure
from ._model_folder import BY_RULE, Choice, FolderModel
from ._paths import is_url
from ._redact import redact

if TYPE_CHECKING:
    from ._checking.verify import FileHashes, Verifier
    from ._range_reader import RangeReader
    from ._reading import Version
    from ._typing import Path, Sources, Verify


class ShardFile(NamedTuple):
    """A file of a model, before it is opened."""

    path: str
    """The path of a local file, the name of another."""
    names: list[str] | None = None
    """The tensors that an index assigns to the file; None without an index."""
    index_path: str = ""
    """The index; empty without one."""
    reader: Callable[[], RangeReader] | None = None
    """Makes the reader of a file that is not local; None for a local file."""
    total_size: int | None = None
    """The bytes of all tensors of the model, if the index says so."""
    url: str = ""
    """Where another process finds the file, if it has a URL. May have secrets in it."""
    folder: str = ""
    """The folder in which the file was found, without an index; empty if the caller named it."""
    verifier: Verifier | FileHashes | None = None
    """Finds the digests that the file is compared with, if it is."""
    model: FolderModel | None = None
    """The model of the local folder in which the file was found; None if the caller named it."""
    absent_from: str = ""
    """The sums that name these tensors, if no file has them; then the path is that of the folder or
    index that should lead to them. Empty for a file."""
    cached_for: str = ""
    """The URL that led to a file in the Hub's cache; empty for others."""
    index_version: Version | None = None
    """Which local index was read; None for another one."""


def sources_of(filenames: Sources) -> list[Path | RangeReader]:
    """Returns the entries of `filenames`, which may be a single one."""
    if isinstance(filenames, (str, bytes, os.PathLike)) or _is_reader(filenames):
        return [filenames]  # type: ignore[list-item]
    return list(filenames)  # type: ignore[arg-type]


OfUrl = Callable[[str, Mapping[str, Any] | None, Choice], list[ShardFile]]


def shards_of_url(
    url: str, storage_options: Mapping[str, Any] | None, choice: Choice
) -> list[ShardFile]:
    """Returns the files that a URL selects."""
    from ._remote.open import find_shards

    return [
        ShardFile(s.name, s.names, s.index_name, s.open, s.total_size, s.url, s.folder)
        for s in find_shards(url, storage_options, choice)
    ]


def _in_cache(
    url: str, storage_options: Mapping[str, Any] | None, choice: Choice
) -> list[ShardFile]:
    """Returns the files of the Hub's cache that a URL selects; none if it is not the cache that is
    read."""
    from ._remote.open import find_cached

    cached = find_cached(url, storage_options)
    if cached is None:
        return []
    try:
        shards = _shards_of(cached.path, choice, cached.names)
    except FileNotFoundError as error:
        if not str(error.filename).endswith(".json"):
            raise
        raise not_cached(str(error.filename)) from None
    return [shard._replace(cached_for=url) for shard in shards]


def not_cached(path: str) -> SafetensorError:
    """Returns the error for a file that the Hub's cache lacks."""
    from ._remote.hub_cache import lacks

    return lacks(path)


def find_shards(
    filenames: Sources,
    storage_options: Mapping[str, Any] | None = None,
    of_url: OfUrl = shards_of_url,
    verify: Verify | FileHashes = None,
    choice: Choice = BY_RULE,
) -> list[ShardFile]:
    """Returns the files that `filenames` selects.

    With `verify`, what sums name and no file has comes first, as shards of tensors that are
    absent. open_shards() raises if one of these is requested.

    Args:
        filenames: a file, an index (a name that ends with .json), a directory, or a list of these.
            Of a directory, the files of its model are taken, by the rule of docs/loading.md. Each
            may be a URL (a str that begins with a scheme and "://"), or a RangeReader, which is a
            single file.
        storage_options: settings for URLs.
        of_url: returns the files that a URL selects.
        verify: what the files are compared with while they are read.
        choice: which model of a directory to take.

    Raises:
        FileNotFoundError: a directory has no such model, or there are no sums.
        SafetensorError: more than one set of files of a directory may be the model, or one is not
            complete; an index is damaged, or a save to the directory was interrupted; or what
            `verify` raises for sums that are not valid.
        TypeError: `storage_options` without a URL.
        ValueError: the list is empty, or `choice` is for what is no directory.
    """
    sources = sources_of(filenames)
    if not sources:
        raise ValueError("no files to load: the list of filenames is empty")
    if storage_options is not None and not any(map(is_url, sources)):
        raise TypeError("storage_options are settings for URLs, and filenames has none")
    found: list[ShardFile] = []
    for source in sources:
        url = source if isinstance(source, str) and is_url(source) else ""
        if url:
            shards = _in_cache(url, storage_options, choice)
            shards = shards or of_url(url, storage_options, choice)
        else:
            shards = _shards_of(source, choice)
        if not shards:
            path = redact(url) or os.fsdecode(source)  # type: ignore[arg-type]
            text = f"{path}: not an index of shards: it names no tensor"
            raise failure("invalid_header_json", text, path=path)
        found += shards
    if verify is not None and verify is not False:
        from ._checking.verify import verifier_of

        verifier = verifier_of(verify)
        assert verifier is not None
        found = [shard._replace(verifier=verifier) for shard in found]
        found[:0] = [
            ShardFile(each.source, each.names, absent_from=each.sums)
            for each in verifier.absent(found)
        ]
    return found


def find_files(path: Path, choice: Choice = BY_RULE, *, any_files: bool = False) -> list[ShardFile]:
    """Returns the files that a path or URL selects, for what is about files more than a model.

    As find_shards(), but if a local directory has files of several models and no index, all its
    files are taken. Their `model` is None, and their `folder` the directory.

    Args:
        path: a file, an index, a directory, or a URL.
        choice: which model of a directory to take.
        any_files: do so for any directory whose model is not clear.

    Raises:
        SafetensorError, FileNotFoundError, ValueError: as find_shards().
    """
    try:
        return find_shards(path, choice=choice)
    except SafetensorError as error:
        unclear = error.code == "several_models" or (any_files and error.code == "incomplete_model")
        if not unclear or choice != BY_RULE or is_url(path):
            raise
        directory = os.fsdecode(path)
        _extra._refuse_interrupted(directory)
        if not any_files and _model_folder.all_indexes(directory):
            raise
        files = _model_folder.all_files(directory)
        if not files:
            raise
        return [ShardFile(os.path.join(directory, file), folder=directory) for file in files]


def with_hashes(verify: Verify, expected_hashes: Mapping[str, str] | None) -> Any:
    """Returns `verify`; or what compares whole files with their SHA-256, if these are given.

    Raises:
        ValueError: both are given.
    """
    if expected_hashes is None:
        return verify
    from ._checking.verify import verifier_of

    return verifier_of(verify, expected_hashes)


def _is_reader(filename: object) -> bool:
    return hasattr(filename, "open") and hasattr(filename, "read")


def _shards_of(
    filename: Path | RangeReader, choice: Choice, names: Collection[str] | None = None
) -> list[ShardFile]:
    if not isinstance(filename, (str, bytes, os.PathLike)) and _is_reader(filename):
        choice.refuse_for(f"the reader of {filename.name}")
        return [ShardFile(filename.name, reader=lambda: filename)]
    path = os.fsdecode(filename)  # type: ignore[arg-type]
    if os.path.isdir(path):
        return _shards_in(path, choice, names)
    choice.refuse_for(path)
    if path.endswith(".json"):
        return _shards_of_index(path, *_extra._read_index(path))
    return [ShardFile(path)]


def _shards_in(directory: str, choice: Choice, names: Collection[str] | None) -> list[ShardFile]:
    """Returns the files of the model of a directory; `names`: see of_directory()."""
    model, index = _model_folder.of_directory(directory, choice, names)
    _model_folder.warn_of(directory, model)
    if index is not None:
        return _shards_of_index(os.path.join(directory, model.index_file), *index, model)
    return [
        ShardFile(os.path.join(directory, file), folder=directory, model=model)
        for file in model.files
    ]


def _shards_of_index(
    path: str,
    by_file: Mapping[str, list[str]],
    total_size: int | None,
    version: Version,
    model: FolderModel | None = None,
) -> list[ShardFile]:
    """Returns the files that an index names, sorted by name."""
    found = ShardFile("", None, path, None, total_size, model=model, index_version=version)
    directory = os.path.dirname(path)
    return [
        found._replace(path=os.path.join(directory, file), names=names)
        for file, names in by_file.items()
    ]


@contextlib.contextmanager
def of_one_model(shards: Iterable[ShardFile]) -> Iterator[None]:
    """In its block the files are opened, so that they are those of the model that was found.

    A save removes the old index before it changes any file, and puts the new one into its place
    last. So if the index is the same after the last file was opened, the files are of one model.

    Raises:
        SafetensorError: "file_changed" if an index is not the one that was read any more. Instead
            of other errors, too: a newer model may lack a file, or tensors in it.
    """
    try:
        yield
    except (SafetensorError, OSError):
        _check_indexes(shards)
        raise
    _check_indexes(shards)


def _check_indexes(shards: Iterable[ShardFile]) -> None:
    versions = {
        each.index_path: each.index_version for each in shards if each.index_version is not None
    }
    for path, version in versions.items():
        _extra._check_index(path, version)
