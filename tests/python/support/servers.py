"""RangeServer: an HTTP server on the loopback interface that counts what it is asked for.

    with RangeServer({"/model.safetensors": content}) as server:
        read(server.url("/model.safetensors"))
        assert [request.range for request in server.log] == ["bytes=0-524287"]

It answers GET and HEAD as RFC 9110 says: ranges, If-Match, If-None-Match and If-Range. Requests
carry an S3 client as well: `server.url()` is an endpoint, and "/bucket/key" is a file's path.
"""

import contextlib
import email.utils
import functools
import hashlib
import http.server
import os
import pathlib
import re
import socket
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from support.certificates import certificate

BLOCK = 1 << 20
SECONDS = 30  # the longest that a connection may be idle
MODIFIED = email.utils.formatdate(1_700_000_000, usegmt=True)


class Request(NamedTuple):
    """A request as it came in. `headers` are a mapping that ignores case."""

    method: str
    path: str  # decoded, without the query
    query: str
    range: str | None
    headers: Mapping


class Answer(NamedTuple):
    """A response other than a file's."""

    status: int
    headers: Mapping = {}
    body: bytes = b""


def redirect(location, status=302):
    """Returns the answer that leads to another URL."""
    return Answer(status, {"Location": location})


class RangeServer:
    """Serves `files`, a dict from paths to contents. Thread safe; tests may change the dict.

    A content is bytes, the path of a file (which may be sparse), an Answer, or a function of the
    Request that returns one of these, or None for status 404. `tls` serves https; clients must
    trust `certificate().authority`.
    """

    def __init__(self, files, *, tls=False, host="127.0.0.1"):
        self.files = dict(files)
        self.tls = tls
        self.host = host
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.failures = []
        self.clear()
        self._now = 0

    def clear(self):
        """Forgets the requests so far."""
        with self.lock:
            self.log = []
            self.bytes_sent = 0  # of bodies
            self.most_at_once = 0  # at most one per connection
            self.connections = 0

    @property
    def requests(self):
        """How many requests came in."""
        return len(self.log)

    def url(self, path="", *, userinfo=None, host=None):
        """Returns the URL of a path."""
        name = f"{userinfo}@" if userinfo else ""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{name}{host or self.host}:{self.port}{urllib.parse.quote(path, '/?=&')}"

    def __enter__(self):
        self._listener = _Listener(self)
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stopping.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.cut_connections()
        self._listener.server_close()  # joins the threads of the connections
        if kind is None:
            assert not self.failures, f"the server failed: {self.failures}"

    def begin(self, request):
        """Logs a request, and counts it as under way."""
        with self.lock:
            self.log.append(request)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)

    def end(self):
        """Counts a request as answered."""
        with self.lock:
            self._now -= 1

    def respond(self, handler, request):
        """Answers one request. MisbehavingServer overrides this."""
        content = self.content(request)
        if isinstance(content, Answer):
            handler.answer(*content)
        else:
            handler.serve(request, content)

    def content(self, request):
        """Returns the bytes or the path that the request is for, or an Answer."""
        content = self.files.get(request.path)
        if callable(content):
            content = content(request)
        return Answer(404, body=b"no such file") if content is None else content


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    disable_nagle_algorithm = True

    def setup(self):
        """Shakes hands here, in the thread of the connection, where a client may be slow."""
        super().setup()
        self.owner = self.server.owner
        if self.owner.tls:
            self.connection.do_handshake()

    def do_GET(self):
        """Answers GET."""
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        asked = self.headers.get("Range")
        request = Request(self.command, path, query, asked, self.headers)
        self.owner.begin(request)
        self._under_way = True
        try:
            self.owner.respond(self, request)
        finally:
            self._end()

    do_HEAD = do_GET

    def _end(self):
        """Ends the count of this request, before its last bytes are written.

        A client that has all of them may send its next request before this thread runs again.
        """
        if self._under_way:
            self._under_way = False
            self.owner.end()

    def log_message(self, *args):
        """Prints nothing."""

    def serve(self, request, content, **changes):
        """Answers with a file: all of it, or the range that the request asks for.

        `changes` replace headers, by their names with underscores; None leaves one out.
        """
        size = size_of(content)
        tag = etag(content)
        headers = {"ETag": tag, "Last-Modified": MODIFIED, "Accept-Ranges": "bytes"}
        if_match = self.headers.get("If-Match", "*")
        if if_match != "*" and tag not in re.split(r"\s*,\s*", if_match):
            return self.answer(412, headers | _spelled(changes), b"another version")
        if self.headers.get("If-None-Match") in (tag, "*"):
            return self.answer(304, headers | _spelled(changes))
        begin, end, status = 0, size, 200
        if request.range and self.headers.get("If-Range", tag) in (tag, MODIFIED):
            begin, end, status = asked_range(request.range, size)
        if status == 416:
            return self.answer(416, {"Content-Range": f"bytes */{size}"} | _spelled(changes))
        if status == 206:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        headers["Content-Length"] = str(end - begin)
        self.head(status, headers | _spelled(changes))
        return self.send(content, begin, end)

    def answer(self, status, headers=(), body=b""):
        """Sends a whole response."""
        self.head(status, {"Content-Length": str(len(body))} | dict(headers))
        self.send(body, 0, len(body))

    def head(self, status, headers):
        """Sends the status and the headers that are not None."""
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        # Nor do clients wait for the body of an error.
        if self.command == "HEAD" or headers.get("Content-Length") == "0" or status >= 400:
            self._end()
        self.end_headers()

    def send(self, content, begin, end):
        """Sends these bytes of a content, unless the request is HEAD."""
        if self.command == "HEAD":
            return
        for block in blocks(content, begin, end):
            with self.owner.lock:  # first: a client that has all of it may look at once
                self.owner.bytes_sent += len(block)
            begin += len(block)
            if begin == end:
                self._end()
            self.wfile.write(block)

    def reset(self):
        """Ends the connection by a reset (RST) instead of an orderly close."""
        linger = b"\x01\0\0\0\0\0\0\0"  # struct linger: on, 0 seconds
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined by server_close()
    request_queue_size = 128

    def __init__(self, owner):
        self.owner = owner
        self._open = set()
        self._context = certificate().server_context() if owner.tls else None
        super().__init__((owner.host, 0), Handler)

    def get_request(self):
        connection, address = super().get_request()
        connection.settimeout(SECONDS)
        if self._context:
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self.owner.lock:
            self.owner.connections += 1
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request):
        with self.owner.lock:
            self._open.discard(request)
        lingering = request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0]
        if lingering:
            request.close()  # shutdown() would send FIN before the reset
        else:
            super().shutdown_request(request)

    def cut_connections(self):
        """Wakes the threads that wait for clients."""
        with self.owner.lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # the client went, or did not trust the certificate
            self.owner.failures.append(error)


def size_of(content):
    """Returns a content's size."""
    return os.stat(content).st_size if isinstance(content, pathlib.Path) else len(content)


def etag(content):
    """Returns a strong ETag, which differs for contents that differ."""
    if isinstance(content, pathlib.Path):
        found = os.stat(content)
        content = f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}".encode()
    return _hashed(content)


@functools.lru_cache(32)
def _hashed(content):
    return f'"{hashlib.md5(content).hexdigest()}"'


def asked_range(value, size):
    """Returns (begin, end, status) for a Range header and a file of this size."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", value)
    if not match or not any(match.groups()):
        return 0, size, 200  # a unit or a list that this server does not know is ignored
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
    return (begin, end, 206) if begin < end else (0, 0, 416)


def blocks(content, begin, end):
    """Yields the bytes of a content from `begin` to `end`."""
    if not isinstance(content, pathlib.Path):
        yield from (content[at : min(at + BLOCK, end)] for at in range(begin, end, BLOCK))
        return
    with open(content, "rb") as file:
        for at in range(begin, end, BLOCK):
            yield os.pread(file.fileno(), min(BLOCK, end - at), at)


def _spelled(changes):
    return {name.replace("_", "-"): value for name, value in changes.items()}
