"""Reads files of web servers with the standard library."""

from __future__ import annotations

import os
import threading
from typing import Mapping, Optional, Set, Tuple

from . import errors
from .answers import UNKNOWN, Answer, Version, refuse_status, size_of_empty
from .connections import Connection, Pool, is_loopback
from .exchange import Exchange, Resolved, errors_of
from .retry import Again, Deadline, retry
from .settings import Settings
from .urls import Url

_SECRET = frozenset({"authorization", "cookie"})


class HttpReader:
    """Reads one object by ranges, all of the version that open() found. Thread safe."""

    def __init__(
        self,
        url: Url,
        settings: Settings,
        *,
        pool: Optional[Pool] = None,
        name: str = "",
        headers: Optional[Mapping[str, str]] = None,
        credentials: str = "",
        hint: str = "",
    ) -> None:
        """Sends nothing yet.

        Args:
            url: the object.
            settings: time limits and the rest.
            pool: where connections are kept; its own if None.
            name: the object, for errors; the URL if empty.
            headers: sent to the URL's host, instead of those of the settings.
            credentials: what they are, for errors.
            hint: ends the error of denied access.

        Raises:
            SafetensorError: a token or a cookie would be sent without TLS.
        """
        self.name = name or url.name
        self.concurrency = settings.concurrency
        self.chunk_bytes = settings.chunk_bytes
        self.gap_bytes = settings.gap_bytes
        if headers is None:
            headers, credentials = given_headers(url, settings, self.name)
        self._start = Resolved(url, headers)
        self._settings = settings
        self._owns_pool = pool is None
        self._pool = pool or Pool(settings)
        self._credentials = credentials or ("the URL's query" if url.query else "anonymous")
        self._hint = hint
        self._renewing = threading.Lock()
        self._busy: Set[Connection] = set()
        self._cancelled = threading.Event()
        self._closed = False
        self._resolved: Optional[Resolved] = None
        self._whole: Optional[bytearray] = None  # of a server without ranges

    @property
    def resolved(self) -> Resolved:
        """Where open() found the object."""
        if self._resolved is None:
            raise errors.failed(self.name, "was not opened")
        return self._resolved

    def open(self, nbytes: int) -> Tuple[int, bytearray]:
        """Returns the size of the object and its first bytes, by one request and its redirects."""
        transfer = _Transfer(0, max(nbytes, 1))
        found = self._run(transfer, self._start, self._cancelled)
        self._whole = transfer.data if transfer.is_whole else None
        self._resolved = found
        return found.version.size, transfer.data if nbytes > 0 else bytearray()

    def version(self) -> str:
        """Returns what identifies the version that open() found."""
        return self.resolved.version.describe()

    def read(self, offset: int, nbytes: int) -> bytearray | memoryview:
        """Returns exactly these bytes.

        Raises:
            SafetensorError: they cannot be read, or are of another version.
        """
        resolved, whole = self.resolved, self._whole
        if offset < 0 or nbytes < 0 or offset + nbytes > resolved.version.size:
            raise errors.failed(self.name, f"has no {nbytes} bytes at {offset}")
        if whole is not None:
            return memoryview(whole)[offset : offset + nbytes]
        if nbytes == 0:
            return bytearray()
        transfer, cancelled = _Transfer(offset, nbytes), self._cancelled
        try:
            self._run(transfer, resolved, cancelled)
        except PermissionError:
            # A redirect leads to a URL that is signed for some minutes only.
            if resolved.url == self._start.url:
                raise
            self._run(transfer, self.renew(resolved, cancelled), cancelled)
        return transfer.data

    def renew(self, expired: Resolved, cancelled: Optional[threading.Event] = None) -> Resolved:
        """Returns where the object is by now. Follows the redirects again, once for all threads.

        Args:
            expired: what this returned before, or `resolved`.
            cancelled: set if the read that needs it is cancelled.

        Raises:
            SafetensorError: the object is not the one that was opened.
        """
        with self._renewing:
            if self._resolved is expired:
                start = Resolved(self._start.url, self._start.headers, version=expired.version)
                self._resolved = self._run(_Transfer(0, 1), start, cancelled or self._cancelled)
            return self.resolved

    def cancel(self) -> None:
        """Ends all reads that are under way with an error. Later ones work."""
        if self._is_forked():
            return  # the connections are the parent's, and shutting one down would end it there
        cancelled, self._cancelled = self._cancelled, threading.Event()
        cancelled.set()
        for connection in list(self._busy):
            connection.stop()

    def close(self) -> None:
        """Ends all reads and closes the connections. Later reads raise."""
        self._closed = True
        self.cancel()
        if self._owns_pool and not self._is_forked():
            self._pool.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._pool.pid

    def _run(self, transfer: _Transfer, start: Resolved, cancelled: threading.Event) -> Resolved:
        """Fills the transfer, by several requests if need be, and returns where from."""
        if self._is_forked():
            raise errors.failed(self.name, "was opened before the process forked: open it again")
        known = start

        def started(connection: Connection) -> None:
            self._busy.add(connection)
            if cancelled.is_set():
                raise errors.failed(self.name, "the read was cancelled")

        def attempt(deadline: Deadline) -> Resolved:
            nonlocal known
            if self._closed:
                raise errors.failed(self.name, "is closed")
            if transfer.got and transfer.got == len(transfer.data):
                return known  # all but the end of a body in chunks came
            exchange = Exchange(self._pool, started, deadline, self.name)
            try:
                with errors_of(self.name, self._settings, cancelled.is_set):
                    known = self._ask(exchange, transfer, known)
                    self._fill(exchange, transfer)
                    return known
            finally:
                self._busy.difference_update(exchange.connections)
                exchange.finish()

        return retry(attempt, self._settings, cancelled)

    def _ask(self, exchange: Exchange, transfer: _Transfer, known: Resolved) -> Resolved:
        """Sends the request for what is missing, and checks the answer's header."""
        begin, end = transfer.begin + transfer.got, transfer.begin + transfer.nbytes
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        if known.version.etag is not None:
            headers["If-Match"] = known.version.etag
        found = exchange.request(known, headers)
        response, is_pinned = exchange.response, known.version is not UNKNOWN
        if response.status == 416 and begin == 0 and size_of_empty(response):
            found = found.at(Version(0, None, None), known.version, self.name)
            transfer.expect(0)
            return found
        if is_pinned and response.status in (412, 416):
            now = response.headers.get("ETag") or response.headers.get("Content-Range")
            raise errors.changed(self.name, known.version.describe(), now or "another version")
        if response.status not in (200, 206):
            refuse_status(response, self.name, self._credentials, self._hint)
        answer = Answer(response, self.name, begin, end)
        found = found.at(answer.version, known.version, self.name)
        if answer.is_whole:
            transfer.restart(found.version.size, self.name)
        else:
            transfer.expect(answer.end - transfer.begin)
        return found

    def _fill(self, exchange: Exchange, transfer: _Transfer) -> None:
        while transfer.got < len(transfer.data):
            done = exchange.read_into(memoryview(transfer.data)[transfer.got :])
            if done == 0:
                text = f"the body ended after {transfer.got} of {len(transfer.data)} bytes"
                raise Again(errors.unreachable, self.name, text)
            transfer.got += done
        if not exchange.end():
            raise errors.failed(self.name, "the server sent more than it was asked for")


class _Transfer:
    """The bytes of one read: which are wanted, and those that have come."""

    def __init__(self, begin: int, nbytes: int) -> None:
        self.begin = begin
        self.nbytes = nbytes
        self.got = 0
        self.data = bytearray()
        self.is_whole = False
        """Whether the server sent the object instead of the range."""

    def expect(self, nbytes: int) -> None:
        """Makes room: the object may be shorter than the range."""
        if not self.data:
            self.nbytes = nbytes
            self.data = bytearray(nbytes)

    def restart(self, size: int, name: str) -> None:
        """Makes room for an object that is sent as a whole, again from its first byte."""
        if self.begin != 0 or size > self.nbytes:
            raise errors.failed(name, "the server sends no ranges of it, only the whole")
        self.is_whole = True
        self.got = 0
        self.expect(size)


def given_headers(url: Url, settings: Settings, name: str) -> tuple[Mapping[str, str], str]:
    """Returns the headers that the user gave for the host of a URL, and what they are.

    Raises:
        SafetensorError: a token or a cookie would be sent without TLS.
    """
    headers = dict(settings.headers)
    credentials = "storage_options['headers']" if headers else ""
    if isinstance(settings.token, str):
        headers["Authorization"] = f"Bearer {settings.token}"
        credentials = "storage_options['token']"
    refuse_plain_secrets(url, headers, name)
    return headers, credentials


def sends_plainly(url: Url) -> bool:
    """Returns whether others on the way could read what is sent to a URL."""
    return url.scheme != "https" and not is_loopback(url.hostname)


def refuse_plain_secrets(url: Url, headers: Mapping[str, str], name: str) -> None:
    """Raises if a token or a cookie would be sent without TLS."""
    if sends_plainly(url) and any(key.lower() in _SECRET for key in headers):
        raise errors.refused(name, "tokens and cookies are sent by https only")
