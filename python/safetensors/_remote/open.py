"""Chooses the engine for a URL, and finds the files of a model behind one."""

from __future__ import annotations

import functools
import importlib
import re
import urllib.parse
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, cast

from .. import _core
from .._core import SafetensorError
from .._paths import visible
from .._range_reader import RangeReader
from . import errors, https_ranges
from .connections import Pool
from .http import HttpReader
from .https_ranges import HttpsReader
from .hub import Repo
from .settings import Settings
from .urls import HTTP, STORES, Url, join

Options = Optional[Mapping[str, Any]]

_INDEX = ".safetensors.index.json"
_MODEL = "model.safetensors"
# An index of up to this size is one request.
_FIRST_OF_INDEX = 16 << 20
_MOST_OF_INDEX = 100_000_000
_FIRST_OF_FILE = 512 << 10
# Not the ".1-8B" of a folder's name.
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_]*$")


class RemoteShard(NamedTuple):
    """A file of a model, before it is opened."""

    name: str
    """The file, for errors."""
    open: Callable[[], RangeReader]
    """Returns a reader, whose open() was not called yet."""
    names: Optional[List[str]] = None
    """The tensors that an index assigns to the file; None without an index."""
    index_name: str = ""
    """The index, for errors; empty without one."""
    total_size: Optional[int] = None
    """The bytes of all tensors of the model, if the index says so."""
    url: str = ""
    """The file, for `reopen`. May have secrets in it."""
    folder: str = ""
    """The folder in which the file was found, without an index; empty if the URL names it."""


def open_reader(url: str, storage_options: Options = None) -> RangeReader:
    """Returns a reader of one file. Its open() sends the first request.

    Raises:
        SafetensorError: the URL or an option is not accepted.
        ImportError: the scheme needs a package that is not installed.
    """
    parsed = Url.parse(url)
    site = _site(parsed, storage_options)
    if site.is_folder(parsed):
        raise errors.refused(parsed.name, "is a folder: load_files reads it, or name a file in it")
    return site.reader(parsed)


def find_shards(url: str, storage_options: Options = None) -> List[RemoteShard]:
    """Returns the files behind a URL: of a file, an index, or a folder.

    A folder, which ends with "/" (or, in object stores and on the Hub, has no suffix), has
    model.safetensors.index.json; else model.safetensors; else, in object stores, a single other
    index or all *.safetensors files.

    Raises:
        FileNotFoundError: a folder has none of these.
        SafetensorError: the URL or an option is not accepted, or an index is damaged.
        ImportError: the scheme needs a package that is not installed.
    """
    parsed = Url.parse(url)
    site = _site(parsed, storage_options)
    if site.is_folder(parsed):
        if parsed.query:
            text = "is a folder with a query, which would not be sent for the files in it"
            raise errors.refused(parsed.name, text)
        return _shards_in(site, Url(parsed.scheme, parsed.host, _with_slash(parsed)))
    if parsed.path.endswith(".json"):
        return _shards_of_index(site, parsed)
    return [_shard(site, parsed)]


def reopen(
    url: str, found: Sequence[str], storage_options: Options
) -> List[Callable[[], RangeReader]]:
    """Returns what makes the readers of files that find_shards() found in another process.

    That process is not trusted to choose hosts: settings of this one, such as tokens, are sent to
    them.

    Args:
        url: what this process was asked to load.
        found: the files of the model, from their `url`.
        storage_options: as for find_shards().

    Raises:
        SafetensorError: a file is not one that `url` may lead to.
    """
    asked = Url.parse(url)
    files = [Url.parse(each) for each in found]
    site = _site(asked, storage_options)
    for file in files:
        if not site.leads_to(asked, file):
            raise errors.refused(
                file.name, f"was named by another process, and is not part of {asked.name}"
            )
    if files:
        site = _site(files[0], storage_options)
    return [functools.partial(site.reader, file) for file in files]


class _Site:
    """Where readers of the files of one model come from. This one is a web server."""

    def __init__(self, url: Url, options: Options) -> None:
        self._settings = Settings.of(options)
        self._pool = Pool(self._settings)
        self._reader_class = HttpsReader if https_ranges.is_wanted() else HttpReader

    def is_folder(self, url: Url) -> bool:
        return url.path.endswith("/") or not url.path

    def reader(self, url: Url, hint: str = "") -> RangeReader:
        return self._reader_class(url, self._settings, pool=self._pool, hint=hint)

    def address(self, url: Url) -> str:
        """Returns the URL by which other processes find the same file."""
        return url.text

    def leads_to(self, asked: Url, file: Url) -> bool:
        """Returns whether a file may be one of those behind a URL."""
        if file == asked:
            return True
        folder = asked.path[: asked.path.rfind("/") + 1]
        if file.query or (file.scheme, file.host) != (asked.scheme, asked.host):
            return False
        below = urllib.parse.unquote(file.path.removeprefix(folder)).split("/")
        return file.path.startswith(folder) and not {"", ".", ".."}.intersection(below)

    def opened(self, reader: RangeReader) -> None:
        """Is called with the first reader that was opened."""

    def listing(self, folder: Url) -> List[str]:
        """Returns the names of the files in a folder; empty if they cannot be listed."""
        return []


class _Hub(_Site):
    def __init__(self, url: Url, options: Options) -> None:
        super().__init__(url, options)
        self._repo = Repo(url, self._settings)

    def is_folder(self, url: Url) -> bool:
        return _is_folder(self._repo.path_of(url))

    def reader(self, url: Url, hint: str = "") -> RangeReader:
        return self._repo.reader(self._repo.path_of(url), self._pool, self._reader_class)

    def address(self, url: Url) -> str:
        return self._repo.address(self._repo.path_of(url))

    def leads_to(self, asked: Url, file: Url) -> bool:
        # At another revision: rank 0 has found which commit a branch is.
        if file.scheme != "hf":
            return False
        return Repo(file, self._settings).repository == self._repo.repository

    def opened(self, reader: RangeReader) -> None:
        self._repo.pin(cast(HttpReader, reader))


class _Engine(_Site):
    """An object store, or a file system of fsspec, by the module of its engine."""

    def __init__(self, url: Url, options: Options) -> None:
        name = "objects" if url.scheme in STORES else "filesystems"
        self._engine: Any = importlib.import_module("." + name, __package__)
        self._settings = Settings.of(options, self._engine.OPTIONS)

    def is_folder(self, url: Url) -> bool:
        return _is_folder(url.path)

    def reader(self, url: Url, hint: str = "") -> RangeReader:
        return cast(RangeReader, self._engine.reader(url, self._settings))

    def listing(self, folder: Url) -> List[str]:
        return cast(List[str], self._engine.listing(folder, self._settings))


def _site(url: Url, options: Options) -> _Site:
    if url.scheme in HTTP:
        return _Site(url, options)
    return _Hub(url, options) if url.scheme == "hf" else _Engine(url, options)


def _is_folder(path: str) -> bool:
    return _SUFFIX.search(path.rpartition("/")[2]) is None


def _with_slash(url: Url) -> str:
    return url.path.rstrip("/") + "/" if url.path else ""


def _shard(site: _Site, url: Url) -> RemoteShard:
    return RemoteShard(url.name, lambda: site.reader(url), url=site.address(url))


def _shards_in(site: _Site, folder: Url) -> List[RemoteShard]:
    denied: Optional[SafetensorError] = None
    try:
        return _shards_of_index(site, join(folder, "model" + _INDEX))
    except FileNotFoundError:
        pass
    except PermissionError as error:
        # Stores answer so for a missing file if the folder may not be listed.
        denied = cast(SafetensorError, error)
    model = join(folder, _MODEL)
    reader = site.reader(model)
    try:
        first = reader.open(_FIRST_OF_FILE)
    except FileNotFoundError:
        pass
    else:
        address = site.address(model)
        found = RemoteShard(model.name, lambda: _Opened(reader, first), url=address)
        return [found._replace(folder=folder.name)]
    names = visible(site.listing(folder))
    indexes = [name for name in names if name.endswith(_INDEX)]
    if len(indexes) == 1:
        return _shards_of_index(site, join(folder, indexes[0]))
    files = [join(folder, name) for name in names if name.endswith(".safetensors")]
    if not files:
        raise denied or errors.missing(folder.name, f"has no model{_INDEX} and no {_MODEL}")
    return [_shard(site, file)._replace(folder=folder.name) for file in files]


def _shards_of_index(site: _Site, url: Url) -> List[RemoteShard]:
    reader = site.reader(url)
    try:
        data = _content(reader)
        site.opened(reader)
    finally:
        close = getattr(reader, "close", None)
        if close is not None:
            close()
    by_file, total_size = _core._parse_index(data, url.name)
    hint = ""
    if url.query:
        hint = (
            "; the query of the index's URL, which may sign it, is not sent for other files: "
            "load the folder by its own scheme, such as s3://"
        )

    def shard(file: Url, names: List[str]) -> RemoteShard:
        address = site.address(file)
        return RemoteShard(
            file.name, lambda: site.reader(file, hint), names, url.name, total_size, address
        )

    return [shard(join(url, file), names) for file, names in by_file.items()]


def _content(reader: RangeReader) -> bytes:
    """Returns all bytes of an index."""
    size, first = reader.open(_FIRST_OF_INDEX)
    if size > _MOST_OF_INDEX:
        raise errors.failed(reader.name, f"has {size} bytes; an index has at most 100 MB")
    data = bytes(first)
    return data if len(data) == size else data + bytes(reader.read(len(data), size - len(data)))


class _Opened:
    """A reader whose open() was called to find out whether the file exists."""

    def __init__(self, reader: RangeReader, first: Tuple[int, Any]) -> None:
        self.name = reader.name
        self._reader = reader
        self._first: Optional[Tuple[int, Any]] = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def open(self, nbytes: int) -> Tuple[int, Any]:
        first, self._first = self._first, None
        if first is None:
            return self._reader.open(nbytes)
        return first[0], memoryview(first[1])[:nbytes]

    def read(self, offset: int, nbytes: int) -> Any:
        return self._reader.read(offset, nbytes)
