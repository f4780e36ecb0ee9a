"""Chooses the engine for a URL, and finds the files of a model behind one."""

from __future__ import annotations

import functools
import importlib
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .. import _extra
from .._model_folder import BY_RULE, Choice, Index, choose, warn_of
from .._range_reader import RangeReader
from . import errors, https_ranges, hub, hub_cache
from .connections import Pool
from .http import HttpReader
from .https_ranges import HttpsReader
from .hub import Repo
from .hub_cache import Cached
from .probes import Found, Probes, read_index
from .settings import Settings
from .urls import HTTP, STORES, Url, join

Options = Mapping[str, Any] | None

# Not the ".1-8B" of a folder's name.
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_]*$")


class RemoteShard(NamedTuple):
    """A file of a model, before it is opened."""

    name: str
    """The file, for errors."""
    open: Callable[[], RangeReader]
    """Returns a reader, whose open() was not called yet."""
    names: list[str] | None = None
    """The tensors that an index assigns to the file; None without an index."""
    index_name: str = ""
    """The index, for errors; empty without one."""
    total_size: int | None = None
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


def open_url(url: str, storage_options: Options = None) -> RangeReader | str:
    """Returns what reads one file: open_reader()'s, or the path of the file in the Hub's cache.

    Raises:
        SafetensorError, ImportError: as open_reader().
    """
    cached = find_cached(url, storage_options)
    return open_reader(url, storage_options) if cached is None else cached.path


def find_cached(url: str, storage_options: Options = None) -> Cached | None:
    """Returns where the Hub's cache has the file or folder of a URL, if programs are offline; None
    for other URLs.

    Raises:
        FileNotFoundError: the cache lacks it.
        SafetensorError: the URL or an option is not accepted.
    """
    if not is_cached(url):
        return None
    Settings.of(storage_options)
    return hub_cache.find(Url.parse(url))


def is_cached(url: str) -> bool:
    """Returns whether a URL is read from the Hub's cache: one of the Hub, if programs are offline.

    Raises:
        SafetensorError: it is not a URL that is accepted.
    """
    return Url.parse(url).scheme == "hf" and hub.is_offline()


def find_shards(
    url: str, storage_options: Options = None, choice: Choice = BY_RULE
) -> list[RemoteShard]:
    """Returns the files behind a URL: of a file, an index, or the model of a folder.

    A folder's URL ends with "/" or, in object stores and on the Hub, has no suffix. Web servers are
    asked for likely names only, because they do not list their files.

    Raises:
        FileNotFoundError: a folder has no such model.
        SafetensorError: the URL or an option is not accepted, an index is damaged, or more than one
            set of files of a folder may be the model.
        ValueError: `choice` is for what is no folder.
        ImportError: the scheme needs a package that is not installed.
    """
    parsed = Url.parse(url)
    site = _site(parsed, storage_options)
    if site.is_folder(parsed):
        if parsed.query:
            text = "is a folder with a query, which would not be sent for the files in it"
            raise errors.refused(parsed.name, text)
        return _shards_in(site, Url(parsed.scheme, parsed.host, _with_slash(parsed)), choice)
    choice.refuse_for(parsed.name)
    if parsed.path.endswith(".json"):
        return _shards_of_index(site, parsed, *_read_index(site, parsed))
    return [_shard(site, parsed)]


def reopen(
    url: str, found: Sequence[str], storage_options: Options
) -> list[Callable[[], RangeReader]]:
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

    has_commits = False
    """Whether the first file that is opened tells the version of the others."""

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

    def listing(self, folder: Url) -> list[str] | None:
        """Returns the names of the files in a folder; None if they cannot be listed."""
        return None


class _Hub(_Site):
    has_commits = True

    def __init__(self, url: Url, options: Options) -> None:
        super().__init__(url, options)
        if hub.is_offline():
            raise errors.denied(url.name, "the Hub is not asked: HF_HUB_OFFLINE is set")
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

    def listing(self, folder: Url) -> list[str] | None:
        return self._repo.listing(self._repo.path_of(folder), self._pool)


if TYPE_CHECKING:  # for those who follow import statements
    from . import filesystems, objects  # noqa: F401


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

    def listing(self, folder: Url) -> list[str] | None:
        try:
            return cast(list[str], self._engine.listing(folder, self._settings))
        except PermissionError:  # rights to read files may be all that somebody has
            return None


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


def _shards_in(site: _Site, folder: Url, choice: Choice) -> list[RemoteShard]:
    """Returns the files of the model of a folder.

    The likely names are asked for, which is one round trip. Only if none of them exists, the folder
    is listed, or the next likely names are asked for where it cannot be listed.
    """
    probes = Probes(lambda name: site.reader(join(folder, name)))
    likely = _extra._model_probes(*choice)
    listed: list[str] | None = None
    for pair in zip(likely[::2], likely[1::2], strict=True):
        probes.ask(pair)
        if not probes.found:
            listed = site.listing(folder)
        if probes.found or listed is not None:
            break
    if not probes.found and listed is None:
        text = f"has none of {', '.join(likely)}, and its files cannot be listed"
        raise probes.denied or errors.missing(folder.name, f"{text}: name a file or an index")
    indexes: dict[str, Index] = {}

    def files_of_index(name: str) -> list[str]:
        found = probes.index(name)
        site.opened(found.reader)
        indexes[name] = _extra._parse_index(found.first, join(folder, name).name)
        probes.will_ask([*indexes[name][0]])
        return [*indexes[name][0]]

    try:
        names = [*probes.found] if listed is None else listed
        model = choose(folder.name, names, choice, files_of_index, probes.exists)
    except FileNotFoundError as error:
        raise probes.denied or error from None
    warn_of(folder.name, model)
    if model.index_file:
        return _shards_of_index(site, join(folder, model.index_file), *indexes[model.index_file])
    if site.has_commits and len(model.files) > 1:  # else an index has told the commit
        probes.ask([file for file in model.files[:1] if file not in probes.found])
        if model.files[0] in probes.found:
            site.opened(probes.found[model.files[0]].reader)
    shards = []
    for file in model.files:
        shard = _shard(site, join(folder, file))._replace(folder=folder.name)
        if file in probes.found:
            shard = shard._replace(open=functools.partial(_Opened, probes.found[file]))
        shards.append(shard)
    return shards


def _read_index(site: _Site, url: Url) -> Index:
    reader = site.reader(url)
    data = read_index(reader)
    site.opened(reader)
    return _extra._parse_index(data, url.name)


def _shards_of_index(
    site: _Site, url: Url, by_file: Mapping[str, list[str]], total_size: int | None
) -> list[RemoteShard]:
    hint = ""
    if url.query:
        hint = (
            "; the query of the index's URL, which may sign it, is not sent for other files: "
            "load the folder by its own scheme, such as s3://"
        )

    def shard(file: Url, names: list[str]) -> RemoteShard:
        address = site.address(file)
        return RemoteShard(
            file.name, lambda: site.reader(file, hint), names, url.name, total_size, address
        )

    return [shard(join(url, file), names) for file, names in by_file.items()]


class _Opened:
    """A reader whose open() was called to find out whether the file exists."""

    def __init__(self, found: Found) -> None:
        self.name = found.reader.name
        self._reader = found.reader
        self._first: tuple[int, Any] | None = (found.size, found.first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def open(self, nbytes: int) -> tuple[int, Any]:
        first, self._first = self._first, None
        if first is None:
            return self._reader.open(nbytes)
        return first[0], memoryview(first[1])[:nbytes]

    def read(self, offset: int, nbytes: int) -> Any:
        return self._reader.read(offset, nbytes)
