"""Finds and opens the files of a sharded model.

Shared by all frameworks: imports none.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, _model_folder
from ._checking.absent import needed, refuse_absent
from ._core import SafetensorError, safe_open
from ._errors import failure
from ._model_folder import BY_RULE, Choice, FolderModel
from ._paths import is_url

if TYPE_CHECKING:
    from ._checking.verify import FileHashes, Verifier
    from ._range_reader import RangeReader
    from ._typing import Path, Sources, Verify

_HEADERS_AT_ONCE = 16


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


Opened = tuple[ShardFile, safe_open | None, list[str]]
"""A file; its handle, None if no tensor in it is requested; and the names of its tensors in the
order of their bytes, those that an index assigns to it if there is one."""


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
        raise _not_cached(str(error.filename)) from None
    return [shard._replace(cached_for=url) for shard in shards]


def _not_cached(path: str) -> SafetensorError:
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
        if isinstance(source, str) and is_url(source):
            found += _in_cache(source, storage_options, choice) or of_url(
                source, storage_options, choice
            )
        else:
            found += _shards_of(source, choice)
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
        _core._refuse_interrupted(directory)
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


def open_tensors(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> tuple[dict[str, safe_open], list[str]]:
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
        IntegrityError: a requested tensor is absent, see refuse_absent().
        OSError: a file cannot be opened.
    """
    handles: dict[str, safe_open] = {}
    unwanted: list[str] = []
    for _, handle, names in refuse_repeated(open_shards(shards, wanted, backend, stack)):
        if wanted is not None:
            unwanted += (name for name in names if name not in wanted)
            names = [name for name in names if name in wanted]
        if handle is not None:
            handles.update(dict.fromkeys(names, handle))
    return handles, unwanted


def refuse_repeated(opened: list[Opened]) -> list[Opened]:
    """Returns what open_shards() returned. Raises SafetensorError if two files hold the same name:
    load_files returns one dict, in which the second tensor would replace the first."""
    if len(opened) > 1:
        names = [names for _, _, names in opened]
        _core._refuse_repeated(names, [shard.path for shard, _, _ in opened])
    return opened


def open_shards(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> list[Opened]:
    """Returns the files that open_tensors() opens, and the others without a handle.

    Raises:
        IntegrityError: before anything is opened, as refuse_absent().
    """
    refuse_absent(shards, wanted)
    opened = _open_at_once(shards, wanted, backend, stack)
    return [
        (shard, *_open_shard(shard, wanted, backend, stack, opened.get(i)))
        for i, shard in enumerate(shards)
    ]


def backend_for(shards: Sequence[ShardFile], backend: str) -> str:
    """Returns the backend for all files: "pread" instead of one that maps, if one is not local or
    is compared with digests."""
    if backend in ("mmap", "auto") and any(
        shard.reader is not None or shard.verifier is not None for shard in shards
    ):
        return "pread"
    return backend


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
        return _shards_of_index(path, *_core._read_index(path))
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
    model: FolderModel | None = None,
) -> list[ShardFile]:
    """Returns the files that an index names, sorted by name."""
    directory = os.path.dirname(path)
    return [
        ShardFile(os.path.join(directory, file), names, path, None, total_size, model=model)
        for file, names in by_file.items()
    ]


def _open_at_once(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> dict[int, safe_open]:
    """Opens the files that are not local or are read whole, several at once.

    Returns:
        The open files by their positions.
    """
    readers = {
        i: shard.reader() if shard.reader is not None else None
        for i, shard in enumerate(shards)
        if (shard.reader is not None or (shard.verifier is not None and shard.verifier.reads_all))
        and (shard.names is None or needed(shard, wanted) is not None)
    }
    if not readers:
        return {}
    from concurrent.futures import FIRST_EXCEPTION, Future, wait

    from ._workers import Workers

    opening: dict[int, Future[safe_open]] = {}
    try:
        with Workers(min(_HEADERS_AT_ONCE, len(readers))) as pool:
            try:
                for i, reader in readers.items():
                    name = needed(shards[i], wanted)
                    opening[i] = pool.submit(_open_file, shards[i], reader, name, backend)
                wait(opening.values(), return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C
                for reader in readers.values():
                    getattr(reader, "cancel", lambda: None)()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        ended = [future for future in opening.values() if not future.cancelled()]
        errors = [future.exception() for future in ended]
        for future, error in zip(ended, errors, strict=True):
            if error is None:
                stack.enter_context(future.result())
    for error in errors:
        if error is not None:
            raise error
    return {i: future.result() for i, future in opening.items()}


def _open_file(
    shard: ShardFile, reader: RangeReader | None, name: str | None, backend: str
) -> safe_open:
    """Opens a file. `name` is a requested tensor that the index assigns to it, if any."""
    digests = None
    if shard.verifier is not None:
        digests = shard.verifier.digests(shard.path, shard.index_path, reader is None)
    try:
        # As bytes, because a str could be taken for a URL.
        file = os.fsencode(shard.path) if reader is None else reader
        return _core._open_shard(file, backend, None, digests)
    except FileNotFoundError as error:  # names the index, which the error itself does not
        if shard.cached_for:
            raise _not_cached(shard.path) from None
        if name is None:
            raise
        text = f"The index {shard.index_path} puts tensor {name!r} into a file that is missing"
        if reader is None:
            raise FileNotFoundError(errno.ENOENT, text, shard.path) from error
        raise failure(
            "io", f"{text}: {shard.path}", path=shard.path, subject=name, also=FileNotFoundError
        ) from error


def _open_shard(
    shard: ShardFile,
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
    opened: safe_open | None,
) -> tuple[safe_open | None, list[str]]:
    """Returns the open file, or None if no tensor in it is requested, and its tensors' names."""
    names = shard.names
    name = needed(shard, wanted)
    if names is not None and name is None:
        return None, names
    handle = opened or stack.enter_context(_open_file(shard, None, name, backend))
    if names is None:
        return handle, handle.offset_keys()
    return handle, _core._names_in_order(handle, names, shard.index_path)
