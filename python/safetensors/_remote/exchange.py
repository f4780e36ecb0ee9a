"""One request to a web server, its redirects, and the body of the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import re
import ssl
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._core import SafetensorError, __version__
from . import errors
from .answers import UNKNOWN, Version
from .connections import Connection, LimitReached, Pool
from .retry import Again, Deadline
from .settings import Settings
from .urls import HTTP, MAX_CHARS, Url

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PIECE = 1 << 16
# RFC 9112, section 7.1, with at most 15 digits: such a size fits in 63 bits.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_MAX_CHUNK_LINE = 4096
# All of ASCII that can be seen.
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Where an object is, after redirects, and which version of it was opened."""

    url: Url
    """May be signed: `url.text` is secret, `url.name` is not."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """What to send there: empty if a redirect led to another host."""
    guarded: bool = False
    """Whether only servers of the internet may be reached, because the first one is one."""
    version: Version = UNKNOWN
    commit: str | None = None
    """The Hub's commit, if the host of the first URL named one."""

    def at(self, version: Version, pinned: Version, name: str) -> Resolved:
        """Returns it with a version, which must be the pinned one unless that is unknown."""
        if pinned is not UNKNOWN:
            pinned.require(version, name)
        return dataclasses.replace(self, version=version)

    def sized(self, size: int) -> Resolved:
        """Returns it with the size of an object whose bytes were counted."""
        return dataclasses.replace(self, version=dataclasses.replace(self.version, size=size))


class ChunkSizeError(http.client.HTTPException):
    """A chunk of a body whose size is no number of RFC 9112."""


class Response(http.client.HTTPResponse):
    """Reads the sizes of chunks strictly: http.client takes "-5", "+5", "0x5" and "5_0", too."""

    def _read_next_chunk_size(self) -> int:
        line = self.fp.readline(_MAX_CHUNK_LINE)
        found = _CHUNK.fullmatch(line)
        if found is None:
            self.close()
            raise ChunkSizeError(f"a chunk of size {line[:20].decode('latin-1')!r}")
        return int(found[1], 16)


class Exchange:
    """A request and its answer. finish() must be called."""

    def __init__(
        self, pool: Pool, started: Callable[[Connection], None], deadline: Deadline, name: str
    ) -> None:
        """Sends nothing yet.

        Args:
            pool: the connections.
            started: is called with each connection before anything is sent; may raise.
            deadline: the end of the request.
            name: the object, for errors.
        """
        self.response: http.client.HTTPResponse
        self._pool = pool
        self._started = started
        self.connections: list[Connection] = []
        self._deadline = deadline
        self._name = name
        self._connection: Connection | None = None
        self._read_to_end = False

    def request(self, start: Resolved, extra: Mapping[str, str]) -> Resolved:
        """Sends a GET request, follows redirects, and returns where the answer comes from.

        Args:
            start: the URL and the headers for its host.
            extra: headers for all hosts.
        """
        url, headers, guarded, commit = start.url, start.headers, start.guarded, start.commit
        for _ in range(_MAX_REDIRECTS + 1):
            connection = self._send(url, {**headers, **extra}, guarded)
            response = self.response
            guarded = guarded or connection.public
            if _is_same_host(start.url, url):
                named = response.headers.get("X-Repo-Commit", "").strip()
                commit = named if _COMMIT.fullmatch(named) else commit
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return Resolved(url, headers, guarded, start.version, commit)
            self.finish()
            url = _redirected(url, location, self._name)
            if not _is_same_host(start.url, url):
                headers = {}
        raise errors.failed(self._name, f"more than {_MAX_REDIRECTS} redirects")

    def go_on(self, started: Callable[[Connection], None], deadline: Deadline) -> None:
        """Prepares the next reads of a body that was read in part, for another caller."""
        connection = self._connection
        assert connection is not None
        self._started, self._deadline = started, deadline
        connection.deadline = deadline
        started(connection)

    def read_into(self, view: memoryview) -> int:
        """Reads some bytes of the body, at least one; 0 at its end."""
        if self.response.chunked:
            data = self.response.read1(min(len(view), _PIECE))
            view[: len(data)] = data
            return len(data)
        file: Any = self.response.fp
        # Not readinto, which waits for all bytes however slowly they come.
        return int(file.readinto1(view) or 0)

    def end(self) -> bool:
        """Returns whether the body ends here, after all of its length was read."""
        at_end = not self.response.chunked or not self.response.read1(1)
        self._read_to_end = at_end and self.response.status in (200, 206)
        return at_end

    def finish(self) -> None:
        """Keeps the connection if it can be used again; else closes it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # The garbage collector may close the response's file before the response, which then warns.
        self.response.close()
        if self._read_to_end and not self.response.will_close:
            self._pool.give_back(connection)
        else:
            connection.close()

    def _begin(self, connection: Connection) -> None:
        self.connections.append(connection)
        if self._connection is not None:  # the last one did not answer
            self.response.close()
        self.response = Response(connection)  # type: ignore[arg-type]
        self._connection, self._read_to_end = connection, False
        self._started(connection)

    def _send(self, url: Url, headers: Mapping[str, str], guarded: bool) -> Connection:
        target, proxy_headers = url.target, self._pool.headers_for_proxy(url)
        if proxy_headers is not None:
            target, headers = f"http://{url.host}{target}", {**headers, **proxy_headers}
        lines = [f"GET {target} HTTP/1.1", f"Host: {url.host}", "Accept-Encoding: identity"]
        if not any(name.lower() == "user-agent" for name in headers):
            lines.append(f"User-Agent: safetensors/{__version__}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join([*lines, "", ""]).encode("latin-1")
        while True:
            connection, was_used = self._pool.take(url, self._deadline, guarded, self._begin)
            try:
                connection.send(data)
                self.response.begin()
            except (ConnectionError, ssl.SSLError, http.client.BadStatusLine):
                # The server may close a kept connection just then: that is no failure.
                if not was_used:
                    raise
                connection.close()
                continue
            return connection


@contextlib.contextmanager
def errors_of(name: str, settings: Settings, is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Turns what sockets, TLS and http.client raise into Again or a SafetensorError."""
    try:
        yield
    except (SafetensorError, Again):
        raise
    except (LimitReached, OSError, http.client.HTTPException) as error:
        if is_cancelled():
            raise errors.failed(name, "the read was cancelled") from None
        if isinstance(error, LimitReached):
            text = f"it takes longer than {settings.timeout:g} s"
            raise errors.timed_out(name, text) from None
        if isinstance(error, TimeoutError):
            text = "the server cannot be reached in time, or sends nothing for too long"
            raise Again(errors.timed_out, name, text) from None
        if isinstance(error, ssl.SSLCertVerificationError):
            text = f"the certificate is not accepted: {error.verify_message}"
            raise errors.unreachable(name, text) from None
        if isinstance(error, http.client.HTTPException):
            what = str(error) if isinstance(error, ChunkSizeError) else type(error).__name__
            text = f"the answer is not HTTP ({what})"
            raise Again(errors.unreachable, name, text) from None
        raise Again(errors.unreachable, name, f"{type(error).__name__}: {error}") from error


def _redirected(url: Url, location: str, name: str) -> Url:
    if len(location) > MAX_CHARS:
        text = f"redirects to a URL of {len(location):,} characters: {MAX_CHARS:,} are allowed"
        raise errors.failed(name, text)
    # http.client decodes headers as Latin-1, so this gives the bytes that were sent.
    quoted = urllib.parse.quote(location.strip().encode("latin-1", "replace"), safe=_VISIBLE)
    try:
        text = urllib.parse.urljoin(url.text, quoted)
        scheme = text.partition(":")[0].lower()
        if scheme not in HTTP:
            raise errors.failed(name, f"redirects to a URL of the scheme {scheme[:20]!r}")
        target = Url.parse(text)
    except ValueError:
        raise errors.failed(name, "redirects to an invalid URL") from None
    if url.scheme == "https" and target.scheme == "http":
        raise errors.failed(name, f"redirects from https to http, to {target.name}")
    return target


def _is_same_host(first: Url, other: Url) -> bool:
    if first.hostname != other.hostname:
        return False
    both_default = (first.port, other.port) == (80, 443) and other.scheme == "https"
    return (first.scheme, first.port) == (other.scheme, other.port) or (
        both_default and first.scheme == "http"
    )
