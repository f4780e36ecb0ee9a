"""Reads files of the file systems of fsspec whose protocols are listed here."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from .._core import SafetensorError
from . import errors
from .settings import Settings
from .urls import Url

_T = TypeVar("_T")

# Protocols that address a server by the URL alone, and memory. Others of fsspec read local files
# (file, git, reference, zip without a chain), run the protocol of another URL (dir, generic,
# caches), or have an engine of their own here (http, s3, ...).
PROTOCOLS = frozenset(
    {
        "dbfs",
        "ftp",
        "hdfs",
        "lakefs",
        "memory",
        "oss",
        "sftp",
        "smb",
        "ssh",
        "webdav",
        "webhdfs",
    }
)

OPTIONS = None
"""Any names in storage_options: they are arguments of the file system's class."""

_MAX_READS = 8
# Characters. A shorter value of an option, such as a number, stays in the texts of errors.
_LEAST_SECRET = 4
# One connection, on which one command runs at a time. paramiko mixes up answers to several threads.
_SERIAL = frozenset({"ftp", "sftp", "ssh"})
# What changes with the content. fs.ukey() would add the time of the last access, which reads set.
_VERSION_KEYS = (
    "ETag",
    "etag",
    "version",
    "generation",
    "mtime",
    "modify",
    "modified",
    "modificationTime",
    "last_modified",
    "LastModified",
    "created",
)


class FilesystemReader:
    """Reads ranges of one file.

    Its version cannot be asked for: after each read, the file must have the size and the times
    that `open` found. Reads cannot be cancelled.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, url: Url, settings: Settings) -> None:
        """Makes a reader, which may connect to the server.

        Raises:
            ImportError: fsspec, or what it needs for the protocol, is not installed.
            SafetensorError: the protocol is not listed, or the server cannot be reached.
        """
        self.name = url.name
        self.concurrency = 1 if url.scheme in _SERIAL else min(settings.concurrency, _MAX_READS)
        self.chunk_bytes = settings.chunk_bytes
        self.gap_bytes = settings.gap_bytes
        self._lock: AbstractContextManager[Any] = (
            threading.Lock() if url.scheme in _SERIAL else contextlib.nullcontext()
        )
        self._options = settings.options
        self._fs, self._path = _file_system(url, settings)
        self._version: dict[str, Any] | None = None
        self._pid = os.getpid()

    def open(self, nbytes: int) -> tuple[int, Any]:
        """Returns the size of the file and its first bytes, at most `nbytes`: two requests."""

        def call() -> tuple[dict[str, Any], Any]:
            version = self._find()
            return version, self._fs.cat_file(self._path, start=0, end=min(nbytes, version["size"]))

        self._version, data = self._run(call)
        size: int = self._version["size"]
        self._check_length(data, min(nbytes, size))
        return size, data

    def version(self) -> str:
        """Returns what identifies the version that `open` found."""
        return str(self._version)

    def read(self, offset: int, nbytes: int) -> Any:
        """Returns these bytes, if the file is still the one that `open` found: two requests."""

        def call() -> tuple[Any, dict[str, Any]]:
            data = self._fs.cat_file(self._path, start=offset, end=offset + nbytes)
            return data, self._find()

        data, now = self._run(call)
        if now != self._version:
            raise errors.changed(self.name, str(self._version), str(now))
        self._check_length(data, nbytes)
        return data

    def _run(self, call: Callable[[], _T]) -> _T:
        if os.getpid() != self._pid:
            raise errors.failed(self.name, "was opened before the process forked: open it again")
        with self._lock:
            return _rewriting(self.name, self._options, call)

    def _find(self) -> dict[str, Any]:
        info = self._fs.info(self._path)
        size = info.get("size")
        if info.get("type") == "directory":
            raise errors.failed(self.name, "is a folder")
        if not isinstance(size, int) or size < 0:
            raise errors.failed(self.name, "has no size")
        return {"size": size, **{key: info[key] for key in _VERSION_KEYS if key in info}}

    def _check_length(self, data: Any, nbytes: int) -> None:
        if len(data) != nbytes:
            raise errors.failed(self.name, f"gave {len(data)} bytes instead of {nbytes}")


def reader(url: Url, settings: Settings) -> FilesystemReader:
    """Returns a reader of a file; see FilesystemReader."""
    return FilesystemReader(url, settings)


def listing(folder: Url, settings: Settings) -> list[str]:
    """Returns the names of the files in a folder, without its path; empty if there is none."""
    file_system, path = _file_system(folder, settings)
    try:
        entries = _rewriting(
            folder.name, settings.options, lambda: file_system.ls(path, detail=True)
        )
    except FileNotFoundError:
        return []
    files = (entry["name"] for entry in entries if entry.get("type") != "directory")
    return sorted(name.rstrip("/").rpartition("/")[2] for name in files)


def _file_system(url: Url, settings: Settings) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path in it."""
    if url.scheme not in PROTOCOLS:
        raise ImportError(
            f"{url.scheme}:// is not a protocol that safetensors reads (those of fsspec that it "
            f"reads are {', '.join(sorted(PROTOCOLS))}); pass a pathlib.Path for a local file"
        )
    if "::" in url.text:
        raise errors.refused(url.name, "chains of protocols are not read")
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError as error:
        raise ImportError(
            f"{url.scheme}:// needs fsspec, which is not installed: pip install fsspec"
        ) from error
    # Not fsspec.url_to_fs(), which takes chains apart. Instances are not shared: one may have a
    # single connection.
    kind = fsspec.get_filesystem_class(url.scheme)
    options = {**kind._get_kwargs_from_urls(url.text), **settings.options}
    made = _rewriting(url.name, settings.options, lambda: kind(**options, skip_instance_cache=True))
    # Not by an argument, which some classes pass on to a client that does not know it.
    made.dircache = fsspec.dircache.DirCache(use_listings_cache=False)
    return made, kind._strip_protocol(url.text)


def _rewriting(name: str, options: Mapping[str, Any], call: Callable[[], _T]) -> _T:
    """Returns what `call` returns. Turns its errors into those that users of URLs get."""
    try:
        return call()
    except (SafetensorError, ImportError, MemoryError):
        raise
    except FileNotFoundError:
        found = errors.missing(name, "does not exist")
    except PermissionError as error:
        found = errors.denied(name, _said(error, options))
    except TimeoutError as error:
        found = errors.timed_out(name, _said(error, options))
    except (ConnectionError, EOFError) as error:
        found = errors.unreachable(name, _said(error, options))
    except Exception as error:
        found = errors.failed(name, _said(error, options))
    # Outside of the handlers, so that the error, with secrets in its text, is not kept.
    raise found


def _said(error: Exception, options: Mapping[str, Any]) -> str:
    """Returns the error's class and text, without the values of the options."""
    text = f"{type(error).__name__}: {error}"
    for value in sorted(_texts_in(options), key=len, reverse=True):
        if len(value) >= _LEAST_SECRET:
            text = text.replace(value, "...")
    return text


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each)
