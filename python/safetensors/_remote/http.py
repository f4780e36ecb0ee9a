"""Reads files of web servers with the standard library."""

from __future__ import annotations

import http.client
import os
import threading
import weakref
from collections.abc import Callable, Mapping

from .._core import SafetensorError
from . import errors
from .answers import UNKNOWN, Answer, Version, refuse_status, size_of_empty
from .connections import Connection, Pool, Started, is_loopback
from .exchange import Exchange, Resolved, errors_of
from .in_order import InOrder
from .retry import RETRIED, Again, Deadline, retry
from .settings import Settings
from .transfer import Transfer
from .urls import Url

_SECRET = frozenset({"authorization", "cookie"})
_PIECE = 1 << 20

Refused = Callable[[http.client.HTTPResponse], SafetensorError | None]
"""Returns the error that a server names in an answer with a status of 400 or more, if it does."""


class HttpReader:
    """Reads one object by ranges, all of the version that open() found. Thread safe."""

    def __init__(
        self,
        url: Url,
        settings: Settings,
        *,
        pool: Pool | None = None,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        credentials: str = "",
        hint: str = "",
        refused: Refused = lambda response: None,
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
            refused: knows the server's own errors.

        Raises:
            SafetensorError: a token or a cookie would be sent without TLS.
        """
        self.name = name or url.name
        self.concurrency = settings.concurrency
        """1 after open() has found a server without ranges."""
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
        self._refused = refused
        self._renewing = threading.Lock()
        self._busy: set[Connection] = set()
        self._cancelled = threading.Event()
        self._closed = False
        self._resolved: Resolved | None = None
        self._whole: bytearray | memoryview | None = None  # all bytes, if open() got them
        self._in_order: InOrder | None = None  # of a server without ranges
        # Its last answer, of which more may be read, and the next byte: none or one.
        self._bodies: list[tuple[Exchange, int]] = []
        # Runs before the finalizers of sockets, also of a reader that nobody closes.
        weakref.finalize(self, _finish_all, self._bodies)

    @property
    def resolved(self) -> Resolved:
        """Where open() found the object."""
        if self._resolved is None:
            raise errors.failed(self.name, "was not opened")
        return self._resolved

    def open(self, nbytes: int, most_unsized: int = 0) -> tuple[int, bytearray | memoryview]:
        """Returns the size of the object and its first bytes, by one request and its redirects.

        Args:
            nbytes: how many bytes, unless the object is shorter.
            most_unsized: how many bytes of an object whose size the server does not say are read to
                find it out, at least.
        """
        transfer = Transfer(0, max(nbytes, 1), max(nbytes, most_unsized))
        found = self._run(transfer, self._start, self._cancelled)
        if transfer.is_unsized:
            found = found.sized(len(transfer.data))
        size = found.version.size
        if transfer.is_whole:
            self.concurrency = 1  # a load of such files has one thread, which needs no turns
            if transfer.got == size:
                self._whole = transfer.data
            else:
                self._in_order = InOrder(self.name, transfer.got)
        self._resolved = found
        return size, transfer.data[:nbytes] if len(transfer.data) > nbytes else transfer.data

    def get(self, most: int) -> tuple[bytes, http.client.HTTPMessage]:
        """Returns all bytes of an answer to a request without a range, and its headers.

        Raises:
            SafetensorError: there are more than `most`.
        """
        transfer = Transfer(0, 0, most)
        self._run(transfer, self._start, self._cancelled)
        return bytes(transfer.data), transfer.headers

    def version(self) -> str:
        """Returns what identifies the version that open() found."""
        return self.resolved.version.describe()

    def read(self, offset: int, nbytes: int) -> bytearray | memoryview:
        """Returns exactly these bytes.

        Raises:
            SafetensorError: they cannot be read, or are of another version.
        """
        whole = self._whole
        self._check_range(offset, nbytes)
        if whole is not None:
            return memoryview(whole)[offset : offset + nbytes]
        if nbytes == 0:
            return bytearray()
        transfer = Transfer(offset, nbytes)
        self._receive(transfer)
        return transfer.data

    def _safetensors_fill(self, offset: int, view: memoryview) -> bool:
        """Receives bytes into a view; see _range_reader. Not those that open() has received.

        Raises:
            SafetensorError: they cannot be read, or are of another version.
        """
        if self._whole is not None or len(view) == 0:
            return False
        self._check_range(offset, len(view))
        self._receive(Transfer(offset, len(view), into=view))
        return True

    def _check_range(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.resolved.version.size:
            raise errors.failed(self.name, f"has no {nbytes} bytes at {offset}")

    def _receive(self, transfer: Transfer) -> None:
        """Fills the transfer, when it is its turn."""
        if self._in_order is None:
            self._receive_now(transfer)
            return
        with self._in_order.turn(transfer.begin, transfer.nbytes, self._cancelled):
            self._receive_now(transfer)

    def _receive_now(self, transfer: Transfer) -> None:
        resolved, cancelled = self.resolved, self._cancelled
        try:
            self._run(transfer, resolved, cancelled)
        except PermissionError:
            # A redirect leads to a URL that is signed for some minutes only.
            if resolved.url == self._start.url:
                raise
            self._run(transfer, self.renew(resolved, cancelled), cancelled)

    def renew(self, expired: Resolved, cancelled: threading.Event | None = None) -> Resolved:
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
                self._resolved = self._run(Transfer(0, 1), start, cancelled or self._cancelled)
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
        if self._is_forked():
            return
        _finish_all(self._bodies)
        if self._owns_pool:
            self._pool.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._pool.pid

    def _run(self, transfer: Transfer, start: Resolved, cancelled: threading.Event) -> Resolved:
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
            if transfer.is_unsized:
                transfer.start_again()
                known = start
            if transfer.got and transfer.got == len(transfer.data):
                return known  # all but the end of a body in chunks came
            exchange, is_open = self._exchange(transfer, started, deadline)
            try:
                with errors_of(self.name, self._settings, cancelled.is_set):
                    if is_open:
                        exchange.go_on(started, deadline)
                    else:
                        known = self._ask(exchange, transfer, known)
                    self._fill(exchange, transfer)
                    return known
            finally:
                self._busy.difference_update(exchange.connections)
                self._put_away(exchange, transfer)

        return retry(attempt, self._settings, cancelled)

    def _exchange(
        self, transfer: Transfer, started: Started, deadline: Deadline
    ) -> tuple[Exchange, bool]:
        """Returns an exchange, and whether its next bytes are those that the transfer lacks."""
        if self._bodies and self._bodies[0][1] <= transfer.begin + transfer.got:
            exchange, at = self._bodies.pop()
            transfer.go_on(at, self.resolved.version.size)
            return exchange, True
        _finish_all(self._bodies)
        return Exchange(self._pool, started, deadline, self.name), False

    def _put_away(self, exchange: Exchange, transfer: Transfer) -> None:
        """Keeps an answer whose body goes on after the transfer, if the next read takes more."""
        if self._in_order is None or self._closed or not transfer.is_followed:
            exchange.finish()
        else:
            self._bodies.append((exchange, transfer.begin + transfer.got))

    def _ask(self, exchange: Exchange, transfer: Transfer, known: Resolved) -> Resolved:
        """Sends the request for what is missing, and checks the answer's header."""
        begin, end = transfer.begin + transfer.got, transfer.begin + transfer.nbytes
        headers = {} if transfer.wants_all else {"Range": f"bytes={begin}-{end - 1}"}
        if known.version.etag is not None and known.version.is_strong:
            headers["If-Match"] = known.version.etag
        found = exchange.request(known, headers)
        response, is_pinned = exchange.response, known.version is not UNKNOWN
        if response.status == 416 and begin == 0 and size_of_empty(response):
            found = found.at(Version(0, None, None), known.version, self.name)
            transfer.take_range(0)
            return found
        if is_pinned and response.status in (412, 416):
            now = response.headers.get("ETag") or response.headers.get("Content-Range")
            raise errors.changed(self.name, known.version.describe(), now or "another version")
        if response.status not in (200, 206):
            error = None if response.status in RETRIED else self._refused(response)
            if error is not None:
                raise error
            refuse_status(response, self.name, self._credentials, self._hint)
        answer = Answer(response, self.name, begin, end)
        if answer.version.size < 0 and transfer.most == 0:
            raise errors.failed(self.name, "the server does not say any more how long it is")
        found = found.at(answer.version, known.version, self.name)
        transfer.headers = response.headers
        if answer.is_whole:
            # Also if a try got all of it, and its connection broke.
            is_first = not is_pinned or self._in_order is not None or transfer.is_whole
            transfer.take_whole(found.version.size, is_first, self.name)
        else:
            transfer.take_range(answer.end)
        return found

    def _fill(self, exchange: Exchange, transfer: Transfer) -> None:
        dropped = memoryview(bytearray(min(transfer.skip, _PIECE)))
        while transfer.skip > 0:
            transfer.skip -= self._some(exchange, transfer, dropped[: transfer.skip])
        if transfer.is_unsized:
            self._fill_unsized(exchange, transfer)
        while transfer.got < len(transfer.data):
            with transfer.missing() as missing:
                transfer.got += self._some(exchange, transfer, missing)
        if not transfer.is_followed and not exchange.end():
            raise errors.failed(self.name, "the server sent more than it was asked for")

    def _some(self, exchange: Exchange, transfer: Transfer, view: memoryview) -> int:
        done = exchange.read_into(view)
        if done == 0:
            text = f"the body ended after {transfer.got} of {len(transfer.data)} bytes"
            raise Again(errors.unreachable, self.name, text)
        return done

    def _fill_unsized(self, exchange: Exchange, transfer: Transfer) -> None:
        piece = memoryview(bytearray(_PIECE))
        while done := exchange.read_into(piece):
            transfer.append(piece[:done])
            if transfer.got > transfer.most:
                text = (
                    f"the server does not say how long it is, and sends more than {transfer.most} "
                    "bytes: download it, or let the server send Content-Length (many leave it out "
                    "of what they compress)"
                )
                raise errors.failed(self.name, text)


def _finish_all(bodies: list[tuple[Exchange, int]]) -> None:
    while bodies:
        bodies.pop()[0].finish()


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
