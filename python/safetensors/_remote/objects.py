"""Reads objects of S3, Google Cloud Storage and Azure, by obstore."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, cast

from .._core import SafetensorError, __version__
from . import credentials, errors, loop, object_errors
from .object_errors import PastTheEnd, Version, rewritten
from .settings import Settings
from .urls import Url

_VERSION = re.compile(r"(?:versionId|generation|versionid)=([^&]+)")


class ObjectReader:
    """Reads ranges of one object, always of the version that `open` found.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, url: Url, settings: Settings) -> None:
        """Makes a reader. Sends no request.

        Raises:
            ImportError: obstore is not installed, or boto3, which a profile needs.
            SafetensorError: the URL or a setting is not accepted.
        """
        self.name = url.name
        self.concurrency = settings.concurrency
        self.chunk_bytes = settings.chunk_bytes
        self.gap_bytes = settings.gap_bytes
        self._bucket = _Bucket(url, settings)
        self._path = url.path
        self._options = _version_asked(url)
        self._pinned: Version | None = None
        self._calls = loop.Calls()

    def open(self, nbytes: int) -> tuple[int, Any]:
        """Returns the size of the object and its first bytes, at most `nbytes`: one request.

        An empty object takes two requests.
        """
        asked = max(nbytes, 1)
        try:
            version, data = self._get(0, asked, self._options)
        except PastTheEnd:
            version, data = self._head(), b""
        if len(data) != min(version.size, asked):
            raise errors.failed(self.name, f"sent {len(data)} bytes for its first {asked}")
        self._pinned = version
        return version.size, data if nbytes > 0 else b""

    def version(self) -> str:
        """Returns what identifies the version that `open` found."""
        if self._pinned is None:
            raise ValueError("version() before open()")
        return self._pinned.describe()

    def read(self, offset: int, nbytes: int) -> Any:
        """Returns these bytes of the version that `open` found.

        Raises:
            SafetensorError: the object has changed, or could not be read.
        """
        pinned = self._pinned
        if pinned is None:
            raise ValueError("read() before open()")
        if nbytes == 0:
            return b""
        options = dict(self._options)
        if pinned.is_strong:
            options["if_match"] = pinned.tag
        try:
            version, data = self._get(offset, nbytes, options, pinned)
        except PastTheEnd:
            version, data = self._head(), b""
        if version != pinned:
            raise errors.changed(self.name, *pinned.told_from(version))
        if len(data) != nbytes:
            raise errors.failed(self.name, f"sent {len(data)} bytes instead of {nbytes}")
        return data

    def cancel(self) -> None:
        """Cancels the reads that are under way, which then raise. Later reads work."""
        self._calls.cancel()

    def close(self) -> None:
        """Cancels the reads that are under way."""
        self.cancel()

    def _get(
        self, offset: int, nbytes: int, options: dict[str, Any], pinned: Version | None = None
    ) -> tuple[Version, Any]:
        import obstore

        asked = {**options, "range": (offset, offset + nbytes)}

        async def get(store: Any) -> tuple[Version, Any]:
            result = await obstore.get_async(store, self._path, options=cast(Any, asked))
            if result.range[0] != offset:
                raise errors.failed(self.name, f"sent bytes from {result.range[0]}, not {offset}")
            return Version.of(result.meta), await result.bytes_async()

        return cast(tuple[Version, Any], self._bucket.run(self._calls, get, self.name, pinned))

    def _head(self) -> Version:
        import obstore

        async def head(store: Any) -> Version:
            options: Any = {**self._options, "head": True}
            return Version.of((await obstore.get_async(store, self._path, options=options)).meta)

        try:
            return cast(Version, self._bucket.run(self._calls, head, self.name))
        except PastTheEnd:
            raise errors.failed(self.name, "the server refuses every range") from None


def reader(url: Url, settings: Settings) -> ObjectReader:
    """Returns a reader of an object; see ObjectReader."""
    return ObjectReader(url, settings)


def listing(folder: Url, settings: Settings) -> list[str]:
    """Returns the names of the objects in a folder, without its path."""
    import obstore

    prefix = folder.path.rstrip("/")

    async def listed(store: Any) -> list[str]:
        found = await obstore.list_with_delimiter_async(store, prefix or None)
        return [entry["path"] for entry in found["objects"]]

    paths: list[str] = _Bucket(folder, settings).run(loop.Calls(), listed, folder.name)
    return sorted(path.rpartition("/")[2] for path in paths)


class _Bucket:
    """A bucket with the settings of one reader."""

    def __init__(self, url: Url, settings: Settings) -> None:
        try:
            import obstore  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{url.scheme}:// needs obstore, which is not installed: pip install obstore"
            ) from error
        self.timeout = settings.timeout
        self._store, self._used = _store_of(url, settings)

    def run(self, calls: loop.Calls, call: Any, name: str, pinned: Version | None = None) -> Any:
        """Returns what the coroutine function `call` returns for the store.

        Raises:
            PastTheEnd: the range begins at or after the end.
            SafetensorError: any other error of obstore, rewritten.
        """
        if loop.is_forked():
            raise errors.failed(
                name,
                "obstore does not work in a process forked from one that had used it: start "
                "processes by spawn or forkserver",
            )

        async def bounded() -> Any:
            return await asyncio.wait_for(call(self._store), self.timeout)

        try:
            return calls.run(bounded())
        except (SafetensorError, MemoryError):
            raise
        except concurrent.futures.CancelledError:
            found: Exception = errors.failed(name, "the read was cancelled")
        except (asyncio.TimeoutError, concurrent.futures.TimeoutError):
            found = errors.timed_out(name, f"took longer than {self.timeout:g} s")
        except Exception as error:
            found = rewritten(error, name, self._used, pinned)
        # Outside of the handlers, so that obstore's error, with secrets in its text, is not kept.
        raise found


# ---- Stores ----

_PROVIDERS = {
    "s3": "aws", "gs": "google", "gcs": "google",
    "az": "azure", "abfs": "azure", "abfss": "azure", "adl": "azure",
}  # fmt: skip


OPTIONS: frozenset[str] = frozenset().union(*credentials.OPTIONS.values())
"""The names in storage_options that the stores take, besides those of Settings."""


# The variables that obstore and credentials.py read, in upper case.
_VARIABLES = (
    "ALL_PROXY",
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_",
    "STORAGE_",
)
_MAX_STORES = 64
_stores: dict[tuple[Any, ...], tuple[Any, credentials.Used]] = {}
_storing = threading.Lock()


def _store_of(url: Url, settings: Settings) -> tuple[Any, credentials.Used]:
    """Returns the store of a URL, and which credentials it uses.

    The same settings and variables give the same store, and with it its connections.
    """
    environ = {
        name: value for name, value in os.environ.items() if name.upper().startswith(_VARIABLES)
    }
    key = (
        _PROVIDERS[url.scheme],
        url.host,
        tuple(sorted(environ.items())),
        repr(dataclasses.asdict(settings)),
    )
    with _storing:
        if key not in _stores:
            if len(_stores) >= _MAX_STORES:
                del _stores[next(iter(_stores))]
            _stores[key] = _new_store(url, settings, environ)
        return _stores[key]


def _new_store(
    url: Url, settings: Settings, environ: dict[str, str]
) -> tuple[Any, credentials.Used]:
    from obstore import store

    provider = _PROVIDERS[url.scheme]
    bucket, _, host = url.host.partition("@")
    options = credentials.checked(settings.options)
    if foreign := options.keys() - credentials.OPTIONS[provider]:
        names = ", ".join(sorted(foreign))
        raise errors.refused(url.name, f"does not take these storage_options: {names}")
    if isinstance(settings.token, str):
        if provider == "aws":
            raise errors.refused(url.name, "takes no token")
        options["token"] = settings.token
    kind: Any
    if provider == "aws":
        kind, access = store.S3Store, credentials.aws(environ, options)
    elif provider == "google":
        kind, access = store.GCSStore, credentials.google(environ, options)
    else:
        account = credentials.azure_account(host, url.name) if host else None
        kind, access = store.AzureStore, credentials.azure(environ, options, account)
    client = {**access.client, **client_options(settings, settings.headers)}
    try:
        made = kind(
            bucket,
            config=access.config,
            client_options=client,
            retry_config=_retry_config(settings),
            credential_provider=access.provider,
        )
    except Exception as error:
        advice = f": {access.advice}" if access.advice else ""
        refused = errors.refused(url.name, object_errors.plain(error) + advice)
    else:
        return made, credentials.Used(access.used, access.advice)
    raise refused


def _retry_config(settings: Settings) -> dict[str, Any]:
    """Returns obstore's settings for the tries of retry.py."""
    return {
        "max_retries": settings.tries - 1,
        "retry_timeout": datetime.timedelta(seconds=settings.timeout),
        "backoff": {
            "init_backoff": datetime.timedelta(seconds=0.2),
            "max_backoff": datetime.timedelta(seconds=10),
            "base": 2,
        },
    }


def client_options(settings: Settings, headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns obstore's settings of an HTTP client."""
    client: dict[str, Any] = {
        "connect_timeout": datetime.timedelta(seconds=settings.connect_timeout),
        "read_timeout": datetime.timedelta(seconds=settings.idle_timeout),
        "timeout": datetime.timedelta(seconds=settings.timeout),
        "user_agent": f"safetensors/{__version__}",
    }
    if headers:
        client["default_headers"] = dict(headers)
    if not settings.verify:
        client["allow_invalid_certificates"] = True
    if settings.ca_file:
        client["root_certificate"] = credentials.read_certificates(settings.ca_file)
    if settings.proxy:
        client["proxy_url"] = settings.proxy
    elif settings.proxy is not None:  # none, not even the environment's: one for no host
        client["proxy_url"] = "http://127.0.0.1:9"
        client["proxy_excludes"] = "*,0.0.0.0/0,::/0"
    return client


def _version_asked(url: Url) -> dict[str, Any]:
    """Returns obstore's option for the version that the URL's query names."""
    if not url.query:
        return {}
    found = _VERSION.fullmatch(url.query)
    if found is None:
        raise errors.refused(
            url.name, "has a query that is neither versionId=... nor generation=..."
        )
    return {"version": found[1]}
