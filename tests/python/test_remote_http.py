"""HttpReader: what it asks for, repeats, and refuses. test_remote_matrix.py has the faults."""

import os
import threading
import time

import numpy as np
import pytest

from safetensors import SafetensorError
from safetensors._remote import exchange
from safetensors._remote.connections import Pool
from safetensors._remote.http import HttpReader
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from safetensors.numpy import load_file, save
from support.misbehaving import MODES, MisbehavingServer
from support.servers import Answer, RangeServer, asked_range, etag
from support.threads import together

KIB = 1 << 10
CONTENT = bytes(i * 31 % 251 for i in range(300 * KIB))
PATH = "/m.safetensors"
FAST = {"tries": 3, "connect_timeout": 2, "idle_timeout": 0.5, "timeout": 2}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Waits between tries are short."""
    monkeypatch.setattr("safetensors._remote.retry._FIRST_DELAY", 0.01)


def reader_of(server, path=PATH, **options):
    """Returns a reader of a file of a server."""
    return HttpReader(Url.parse(server.url(path)), Settings.of(FAST | options))


def read(reader, offset, nbytes):
    """Reads to new memory."""
    return bytes(reader.read(offset, nbytes))


def fill(reader, offset, nbytes):
    """Reads to memory that exists."""
    data = bytearray(nbytes)
    assert reader._safetensors_fill(offset, memoryview(data))
    return bytes(data)


def check_all(reader):
    """Opens the object, and reads all of it and parts of it."""
    size, first = reader.open(64 * KIB)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT[: 64 * KIB])
    assert bytes(reader.read(0, size)) == CONTENT
    assert bytes(reader.read(size - 7, 7)) == CONTENT[-7:]


def test_open_and_reads_are_one_request_each_on_one_connection():
    with RangeServer({PATH: CONTENT}) as server:
        reader = reader_of(server)
        check_all(reader)
        assert [request.range for request in server.log] == [
            "bytes=0-65535", f"bytes=0-{len(CONTENT) - 1}",
            f"bytes={len(CONTENT) - 7}-{len(CONTENT) - 1}",
        ]  # fmt: skip
        assert [request.headers["If-Match"] for request in server.log] == [
            None, etag(CONTENT), etag(CONTENT)
        ]  # fmt: skip
        assert {request.headers["Accept-Encoding"] for request in server.log} == {"identity"}
        assert server.connections == 1
        reader.close()
        with pytest.raises(SafetensorError, match="is closed"):
            reader.read(0, 1)


def test_responses_are_closed(monkeypatch):
    """Those that are read, refused and cut off: none is left to the garbage collector."""
    made = []

    class Response(exchange.Response):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(exchange, "Response", Response)
    with RangeServer({PATH: CONTENT}) as server:
        reader = reader_of(server)
        check_all(reader)
        with pytest.raises(SafetensorError):
            reader_of(server, "/absent").open(KIB)
        reader.close()
    with MisbehavingServer("body_short", {PATH: CONTENT}) as server, pytest.raises(SafetensorError):
        reader_of(server).open(KIB)
    assert len(made) > 4
    assert all(response.closed and response.isclosed() for response in made)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_short_objects(size):
    """The range that is asked for is longer than the object."""
    with RangeServer({PATH: CONTENT[:size]}) as server:
        reader = reader_of(server)
        assert reader.open(64) == (size, CONTENT[:size])
        assert reader.read(0, size) == CONTENT[:size]
        assert reader.read(size, 0) == b""
        with pytest.raises(SafetensorError, match=f"has no 1 bytes at {size}"):
            reader.read(size, 1)


def test_a_server_without_ranges_is_read_if_the_object_fits_the_first_read():
    with MisbehavingServer("ignores_ranges", {PATH: CONTENT}) as server:
        reader = reader_of(server)
        assert reader.open(len(CONTENT)) == (len(CONTENT), CONTENT)
        assert reader.read(5, 10) == CONTENT[5:15]
        assert server.requests == 1


@pytest.mark.parametrize("mode", ["body_short", "body_reset", "body_stalls"])
@pytest.mark.parametrize(("after", "way"), [(0, read), (1, read), (1, fill)])
def test_a_body_that_was_cut_is_resumed_from_its_last_byte(mode, after, way):
    with MisbehavingServer(mode, {PATH: CONTENT}, after=after, times=1) as server:
        reader = reader_of(server)
        size, first = reader.open(64 * KIB)
        assert bytes(first) + way(reader, 64 * KIB, size - 64 * KIB) == CONTENT
        assert server.requests == 3
        # A reset also takes what the client has not read yet.
        assert server.bytes_sent == len(CONTENT) or mode == "body_reset"
        assert server.log[after + 1].headers["If-Match"] == etag(CONTENT)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_statuses_that_may_pass_are_retried(status):
    with MisbehavingServer(f"status_{status}", {PATH: CONTENT}, times=2) as server:
        check_all(reader_of(server))
        assert server.requests == 5


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 412, 416, 501])
def test_statuses_that_will_not_pass_are_not_retried(status):
    with RangeServer({PATH: Answer(status)}) as server:
        with pytest.raises(SafetensorError, match=f"answered {status} "):
            reader_of(server).open(64)
        assert server.requests == 1


def test_denied_reads_are_not_repeated_without_a_redirect():
    with MisbehavingServer("status_403", {PATH: CONTENT}, after=1) as server:
        reader = reader_of(server)
        reader.open(64)
        with pytest.raises(PermissionError):
            reader.read(0, 64)
        assert server.requests == 2


def test_the_last_error_says_how_often_and_how_long():
    with MisbehavingServer("status_503", {PATH: CONTENT}) as server:
        with pytest.raises(
            ConnectionError, match=r"503 Service Unavailable, after 5 tries in \d+\.\d s$"
        ):
            reader_of(server, tries=5).open(64)
        assert server.requests == 5


@pytest.mark.parametrize("mode", ["retry_after_seconds", "retry_after_date"])
def test_retry_after_is_obeyed(mode):
    """The date is whole seconds, so up to one second may be missing."""
    with MisbehavingServer(mode, {PATH: CONTENT}, times=1) as server:
        began = time.monotonic()
        reader_of(server, timeout=9).open(64)
        assert time.monotonic() - began > (0.9 if mode == "retry_after_seconds" else 0.0)
        assert server.requests == 2


def test_nobody_listens():
    with RangeServer({}) as server:
        url = server.url(PATH)
    reader = HttpReader(Url.parse(url), Settings.of(FAST))
    with pytest.raises(ConnectionError, match="ConnectionRefusedError.* after 3 tries"):
        reader.open(64)


def test_a_kept_connection_that_the_server_closed_is_no_failure():
    with RangeServer({PATH: CONTENT}) as server:
        reader = reader_of(server, tries=1)
        reader.open(64)
        server._listener.cut_connections()
        time.sleep(0.05)
        assert reader.read(100, 100) == CONTENT[100:200]
        assert server.connections == 2


@pytest.mark.parametrize("mode", ["gzipped", "gzip_claimed"])
def test_encodings_are_refused(mode):
    """Also that of a body that is plain in truth: nobody can know."""
    with MisbehavingServer(mode, {PATH: CONTENT}) as server:
        with pytest.raises(SafetensorError, match="the server sent it with the encoding 'gzip'$"):
            reader_of(server).open(64)
        assert server.requests == 1


def test_an_error_body_does_not_stay_on_the_connection():
    """A 416 of an empty object has a body, which is not read."""
    with RangeServer({PATH: Answer(416, {"Content-Range": "bytes */0"}, b"x" * 50000)}) as server:
        reader = reader_of(server, tries=1)
        for _ in range(3):
            assert reader.open(64) == (0, b"")
        assert server.connections == 3


@pytest.mark.parametrize("etag", ['"a\r\n b"', '""', '"', '"a"b"', "x", 'W/"x"', '"\xe9"'])
def test_etags_that_are_not_sent_back(etag):
    headers = {"ETag": etag, "Content-Range": "bytes 0-3/4"}
    with RangeServer({PATH: Answer(206, headers, b"abcd")}) as server:
        reader = reader_of(server, tries=1)
        assert reader.open(64) == (4, b"abcd")
        assert not reader.resolved.version.is_strong
        assert reader.read(0, 4) == b"abcd"
        assert server.log[-1].headers["If-Match"] is None


def test_other_weak_etags_are_another_version():
    with MisbehavingServer("replaced_weakly", {PATH: CONTENT}, after=1) as server:
        server.otherwise = MODES["weak_etag"]
        reader = reader_of(server)
        reader.open(64)
        with pytest.raises(SafetensorError, match=r'\(it was W/"\w+", 307200 bytes of ') as caught:
            reader.read(100, 100)
        assert caught.value.code == "file_changed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_parents_connections_alone():
    """It refuses to read, also by a new reader whose pool is the parent's; close() is safe."""
    with MisbehavingServer("body_stalls", {PATH: CONTENT}, after=1, times=1) as server:
        url = Url.parse(server.url(PATH))
        settings = Settings.of(FAST | {"idle_timeout": 1, "timeout": 9})
        pool = Pool(settings)
        reader = HttpReader(url, settings, pool=pool)
        reader.open(64)
        results = []
        began = time.monotonic()
        thread = threading.Thread(target=lambda: results.append(reader.read(0, 1000)))
        thread.start()
        while server.requests < 2:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                for each in (reader, HttpReader(url, settings, pool=pool)):
                    try:
                        each.open(64)
                    except SafetensorError as error:
                        refused += "forked: open it again" in str(error)
                    each.cancel()
                    each.close()
            finally:
                os._exit(0 if refused == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        assert results == [CONTENT[:1000]]
        # The body stalled for a second, and was resumed: the child's cancel() did not cut it.
        assert server.requests == 3
        assert time.monotonic() - began >= 1


class Chunked(RangeServer):
    """Sends what `chunks` makes of a body, and closes the connection."""

    def __init__(self, chunks):
        super().__init__({})
        self.chunks = chunks

    def respond(self, handler, request):
        begin, end, _ = asked_range(request.range, len(CONTENT))
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(CONTENT)}"}
        handler.head(206, headers | {"Transfer-Encoding": "chunked"})
        handler.wfile.write(self.chunks(CONTENT[begin:end]))
        handler.close_connection = True


@pytest.mark.parametrize("end", [b"", b"\r\n", b"zz\r\n"])
def test_a_body_in_chunks_whose_end_is_missing(end):
    """All bytes came, so that nothing is left to ask for."""
    with Chunked(lambda body: b"%x\r\n%b\r\n" % (len(body), body) + end) as server:
        reader = reader_of(server)
        assert reader.open(64) == (len(CONTENT), CONTENT[:64])
        assert reader.read(100, 100) == CONTENT[100:200]
        assert server.requests == 2


@pytest.mark.parametrize("size", ["-5", "+5", "0x5", "5_0", " 5", "", "g", "1" * 16, "5 5", "\xb2"])
def test_sizes_of_chunks_are_hexadecimal_digits(size):
    """The error shows what came instead."""
    caught = pytest.raises(SafetensorError, match="the answer is not HTTP")
    line = f"{size}\r\n".encode("latin-1")
    with Chunked(lambda body: line + body[:5] + b"\r\n") as server, caught as error:
        reader_of(server, tries=1).open(64)
    assert f"a chunk of size {size + chr(13) + chr(10)!r}"[:30] in str(error.value)


@pytest.mark.parametrize("line", ["12c", "012C;x=y", "12c ;x"])
def test_spellings_of_the_size_of_a_chunk(line):
    with Chunked(lambda body: b"%b\r\n%b\r\n0\r\n\r\n" % (line.encode(), body)) as server:
        assert reader_of(server).open(300) == (len(CONTENT), CONTENT[:300])


@pytest.mark.parametrize("mode", ["closes", "resets"])
def test_a_kept_connection_that_the_server_closes_meanwhile_is_no_failure(mode):
    """The request is on its way already: it is sent again, on a new connection."""
    with MisbehavingServer(mode, {PATH: CONTENT}, after=1, times=1) as server:
        reader = reader_of(server, tries=1)
        reader.open(64)
        assert reader.read(100, 100) == CONTENT[100:200]
        assert (server.requests, server.connections) == (3, 2)


def test_a_kept_connection_with_an_answer_that_nobody_awaits_is_not_used():
    """Servers send 408 before they close a connection that was idle for long."""

    class Impatient(RangeServer):
        def respond(self, handler, request):
            super().respond(handler, request)
            time.sleep(0.05)
            handler.answer(408)

    with Impatient({PATH: CONTENT}) as server:
        reader = reader_of(server, tries=1)
        reader.open(64)
        time.sleep(0.2)
        assert reader.read(100, 100) == CONTENT[100:200]
        assert server.connections == 2


def test_threads_read_at_once():
    with RangeServer({PATH: CONTENT}) as server:
        reader = reader_of(server)
        reader.open(64)
        results = {}

        def read(offset):
            for at in range(offset, offset + 5000, 1000):
                results[at] = bytes(reader.read(at, 1000))

        together(read, range(0, 80_000, 5000))
        assert len(results) == 80
        assert all(results[at] == CONTENT[at : at + 1000] for at in results)


def test_cancel_ends_what_is_under_way_and_later_reads_work():
    with MisbehavingServer("body_stalls", {PATH: CONTENT}, after=1, times=1) as server:
        reader = reader_of(server, idle_timeout=60, timeout=60)
        reader.open(64)
        caught = []

        def read():
            try:
                reader.read(0, 1000)
            except SafetensorError as error:
                caught.append(str(error))

        thread = threading.Thread(target=read)
        thread.start()
        while server.requests < 2:
            time.sleep(0.01)
        time.sleep(0.05)
        reader.cancel()
        thread.join(5)
        assert not thread.is_alive()
        assert caught == [f"{server.url(PATH)}: the read was cancelled"]
        assert reader.read(0, 1000) == CONTENT[:1000]


def is_released(view):
    """Returns whether a memoryview can no longer be used."""
    try:
        return len(view) < 0
    except ValueError:
        return True


def frames(error):
    """Yields the frames that an error keeps alive."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "mode", ["body_short", "body_stalls", "resets", "replaced", "range_shifted"]
)
def test_errors_keep_no_view_of_the_memory_of_tensors(mode):
    data = save({"x": np.zeros(1 << 18, np.float32)})
    with MisbehavingServer(mode, {PATH: data}, after=1) as server:
        reader = reader_of(server)
        with pytest.raises(SafetensorError) as caught:
            load_file(reader)
        names = {frame.f_code.co_name for frame in frames(caught.value)}
        assert "_safetensors_fill" in names
        for frame in frames(caught.value):
            for value in frame.f_locals.values():
                if isinstance(value, memoryview):
                    assert is_released(value) or isinstance(value.obj, bytearray)


def test_loads_read_long_tensors_into_their_memory():
    arrays = {"a": np.arange(1 << 20, dtype=np.int32), "b": np.arange(300_000, dtype=np.int64)}
    asked = []

    class Watched(HttpReader):
        def read(self, offset, nbytes):
            asked.append(nbytes)
            return super().read(offset, nbytes)

    with RangeServer({PATH: save(arrays)}) as server:
        reader = Watched(Url.parse(server.url(PATH)), Settings.of(FAST | {"chunk_bytes": 1 << 20}))
        loaded = load_file(reader)
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)
        assert len(asked) <= 1  # the chunk that has bytes of both
