"""The servers of the tests keep to HTTP's rules, or break just the one that they say."""

import email.utils
import http.client
import socket
import ssl
import threading
import time
import urllib.request

import pytest

from support import misbehaving
from support.certificates import certificate
from support.delay_proxy import DelayProxy
from support.servers import Answer, RangeServer, redirect
from support.threads import together

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 64


def ask(server, path="/file", method="GET", timeout=0.2, **headers):
    """Returns the response, whose `body` is read, to one request on a connection of its own."""
    context = ssl.create_default_context(cafile=certificate().authority) if server.tls else None
    kind = http.client.HTTPSConnection if server.tls else http.client.HTTPConnection
    options = {"context": context} if server.tls else {}
    connection = kind(server.host, server.port, timeout=timeout, **options)
    connection.connect()
    # The timeout is one of silence; a server that drips needs a deadline.
    deadline = threading.Timer(3 * timeout, connection.sock.shutdown, [socket.SHUT_RDWR])
    deadline.start()
    try:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        response.body = response.read()
        return response
    finally:
        deadline.cancel()
        deadline.join()
        connection.close()


@pytest.fixture(params=[False, True], ids=["http", "https"])
def server(request, tmp_path):
    """A server with contents of each kind."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    files = {
        "/file": CONTENT,
        "/path": path,
        "/gone": Answer(410, {"X-Why": "moved"}, b"gone"),
        "/chosen": lambda asked: CONTENT if asked.query == "yes" else None,
        "/moved": redirect("/file"),
    }
    with RangeServer(files, tls=request.param) as running:
        yield running


@pytest.mark.parametrize("path", ["/file", "/path"])
def test_ranges(server, path):
    size = len(CONTENT)
    whole = ask(server, path)
    assert (whole.status, whole.body) == (200, CONTENT)
    for value, begin, end in [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        (f"bytes=0-{size * 9}", 0, size),
        ("bytes=16000-", 16000, size),
        ("bytes=-7", size - 7, size),
    ]:
        part = ask(server, path, Range=value)
        assert (part.status, part.body) == (206, CONTENT[begin:end])
        assert part.headers["Content-Range"] == f"bytes {begin}-{end - 1}/{size}"
    past = ask(server, path, Range=f"bytes={size}-")
    assert (past.status, past.headers["Content-Range"]) == (416, f"bytes */{size}")
    assert ask(server, path, Range="lines=1-2").status == 200


def test_conditions(server):
    tag = ask(server).headers["ETag"]
    assert ask(server, If_Match=tag, Range="bytes=0-9").status == 206
    assert ask(server, If_Match=f'"other", {tag}').status == 200
    assert ask(server, If_Match='"other"', Range="bytes=0-9").status == 412
    assert ask(server, If_None_Match=tag).status == 304
    assert ask(server, If_Range='"other"', Range="bytes=0-9").status == 200
    server.files["/file"] = CONTENT[::-1]
    assert ask(server, If_Match=tag).status == 412


def test_answers(server):
    assert ask(server, "/none").status == 404
    gone = ask(server, "/gone")
    assert (gone.status, gone.headers["X-Why"], gone.body) == (410, "moved", b"gone")
    assert ask(server, "/chosen?yes").body == CONTENT
    assert ask(server, "/chosen?no").status == 404
    assert ask(server, "/moved").headers["Location"] == "/file"
    head = ask(server, method="HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(CONTENT)))


def test_counts(server):
    for _ in range(3):
        ask(server, Range="bytes=0-99", X_Canary="here")
    assert (server.requests, server.bytes_sent, server.connections) == (3, 300, 3)
    request = server.log[-1]
    assert request[:4] == ("GET", "/file", "", "bytes=0-99")
    assert request.headers["x-canary"] == "here"
    server.clear()
    assert (server.requests, server.bytes_sent) == (0, 0)


def test_most_at_once():
    meeting = threading.Barrier(5, timeout=10)

    def wait(_):
        meeting.wait()
        return CONTENT

    with RangeServer({"/file": wait}) as server:
        together(lambda _: ask(server, timeout=10), range(5))
        assert server.most_at_once == 5


def test_a_failure_of_the_server_fails_the_test():
    def broken(_):
        raise ValueError("a bug of the test")

    server = RangeServer({"/file": broken})
    failed = pytest.raises(AssertionError, match="a bug of the test")
    with failed, server, pytest.raises(ConnectionError):
        ask(server)


def outcome(server):
    """Returns what http.client makes of a request for a range: (status, headers, body) or error."""
    try:
        response = ask(server, Range="bytes=1000-1999", If_Match=misbehaving.etag(CONTENT))
    except (OSError, http.client.HTTPException) as error:
        return type(error)
    headers = {name: response.headers[name] for name in response.headers if name != "Date"}
    return response.status, headers, response.body


@pytest.mark.parametrize("mode", misbehaving.MODES)
def test_each_mode_differs_from_a_good_answer(mode):
    with RangeServer({"/file": CONTENT}) as server:
        good = outcome(server)
    begin = time.monotonic()
    with misbehaving.MisbehavingServer(mode, {"/file": CONTENT}, after=1, times=1) as server:
        answers = [outcome(server) for _ in range(3)]
    assert answers[0] == answers[2] == good
    assert answers[1] != good
    assert time.monotonic() - begin < 5, "the server outlives its clients"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("body_short", http.client.IncompleteRead),
        ("body_reset", ConnectionResetError),
        ("resets", ConnectionResetError),
        ("closes", http.client.RemoteDisconnected),
        ("silent", TimeoutError),
        ("body_stalls", TimeoutError),
        ("garbage", http.client.BadStatusLine),
        ("head_endless", http.client.HTTPException),
        ("ignores_ranges", 200),
        ("precondition_fails", 412),
        ("replaced", 412),
        ("replaced_ignoring_if_match", 206),
        ("weak_etag", 412),
        ("status_503", 503),
        ("redirects", 302),
    ],
)
def test_what_some_modes_do(mode, expected):
    with misbehaving.MisbehavingServer(mode, {"/file": CONTENT}) as server:
        found = outcome(server)
    if isinstance(expected, int):
        assert found[0] == expected
    else:
        assert issubclass(found, expected)


def test_retry_after_has_both_forms():
    for mode, parse in [
        ("retry_after_seconds", int),
        ("retry_after_date", email.utils.parsedate_to_datetime),
    ]:
        with misbehaving.MisbehavingServer(mode, {"/file": CONTENT}) as server:
            status, headers, _ = outcome(server)
        assert status == 503
        assert parse(headers["Retry-After"])


def test_a_proxy_delays_requests():
    with RangeServer({"/file": CONTENT}) as server, DelayProxy(server.port, latency=0.1) as proxy:
        begin = time.monotonic()
        body = urllib.request.urlopen(proxy.url("/file")).read()
        assert time.monotonic() - begin >= 0.1
    assert body == CONTENT
    assert (proxy.connections, proxy.most_at_once, server.requests) == (1, 1, 1)


def test_a_proxy_limits_the_bandwidth_of_all_connections():
    content = bytes(1 << 18)
    server = RangeServer({"/file": content})
    with server, DelayProxy(server.port, bandwidth=1 << 20) as proxy:
        begin = time.monotonic()
        together(lambda _: urllib.request.urlopen(proxy.url("/file")).read(), range(2))
        assert 0.5 <= time.monotonic() - begin < 5
    assert proxy.bytes_received >= 2 * len(content)
