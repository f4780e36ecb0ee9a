"""Each mode of a misbehaving server, by each engine: right bytes or the table's error, in time.

A file is opened, and a part of it is read. The server misbehaves from its first answer on, or from
its second. What is read is never another object's bytes, and no error has a secret in it.
"""

import concurrent.futures
import functools
import time

import pytest

from safetensors import SafetensorError
from support import misbehaving, whole_bodies
from support.remote_engines import ENGINES, PATH, SECRETS, Words, kind_of, open_by, server_of
from support.servers import RangeServer

pytestmark = pytest.mark.slow

# So long that obstore takes the second read of https.
CONTENT = bytes(i * 31 % 251 for i in range(251)) * 6000
OTHER = misbehaving.other(CONTENT)
HUGE = misbehaving.HUGE
FIRST, BEGIN, END = 64 << 10, 100 << 10, 1300 << 10
SECONDS = 10

# What a mode may end in, from the first answer on and from the second. "other" and "huge": the
# bytes of another file, which has been there from the beginning.
CHANGED = {"changed"}
EXPECTED = {
    "ignores_ranges": ({"right", "io"}, {"io"}),  # obstore refuses it
    "whole_in_chunks": ({"io"}, {"io"}),
    "chunks_are_cut": ({"io", "connection"}, {"io"}),
    "whole_until_the_close": ({"io"}, {"io"}),
    "whole_is_cut": ({"io", "connection"}, {"io", "connection"}),
    "range_misnamed": ({"io"}, {"io"}),
    "range_shifted": ({"io"}, {"io"}),
    "range_shorter": ({"io"}, {"io"}),
    "range_unnamed": ({"io"}, {"io"}),
    "range_malformed": ({"io"}, {"io"}),
    "range_multipart": ({"io"}, {"io"}),
    "total_unknown": ({"io"}, {"io"}),
    "total_changes": (CHANGED, CHANGED),
    "total_huge": ({"right"}, CHANGED),
    "body_short": ({"connection"}, {"connection"}),
    "body_reset": ({"connection"}, {"connection"}),
    "body_stalls": ({"timeout"}, {"timeout"}),
    "body_drips": ({"timeout"}, {"timeout"}),
    "body_endless": ({"right", "io"}, {"right", "io"}),
    "body_endless_chunked": ({"io"}, {"io"}),
    "body_longer": ({"io"}, {"io"}),
    "silent": ({"timeout"}, {"timeout"}),
    "closes": ({"connection"}, {"connection"}),
    "resets": ({"connection"}, {"connection"}),
    "garbage": ({"connection"}, {"connection"}),
    "head_drips": ({"timeout"}, {"timeout"}),
    "head_endless": ({"connection"}, {"connection"}),
    "etag_changes": (CHANGED, CHANGED),
    "precondition_fails": ({"io", "changed"}, CHANGED),
    "replaced": ({"other"}, CHANGED),
    "replaced_ignoring_if_match": ({"other"}, CHANGED),
    "replaced_without_etag": ({"other"}, CHANGED),
    "replaced_weakly": ({"other"}, CHANGED),
    "no_etag": ({"right"}, CHANGED),
    "no_validators": ({"right"}, CHANGED),
    "weak_etag": ({"right"}, CHANGED),
    "modified_malformed": ({"right", "io"}, {"right", "io"}),
    "gzipped": ({"io"}, {"io"}),
    "gzip_claimed": ({"right", "io"}, {"right", "io"}),
    "status_400": ({"io"}, {"io"}),
    "status_401": ({"denied"}, {"denied"}),
    "status_403": ({"denied"}, {"denied"}),
    "status_404": ({"missing"}, {"missing"}),
    "status_405": ({"io"}, {"io"}),
    "status_408": ({"timeout"}, {"timeout"}),
    "status_410": ({"missing"}, {"missing"}),
    "status_416": ({"io"}, {"io", "changed"}),
    "status_429": ({"connection"}, {"connection"}),
    "status_500": ({"connection"}, {"connection"}),
    "status_501": ({"io"}, {"io"}),
    "status_502": ({"connection"}, {"connection"}),
    "status_503": ({"connection"}, {"connection"}),
    "status_504": ({"timeout"}, {"timeout"}),
    "retry_after_seconds": ({"connection"}, {"connection"}),
    "retry_after_date": ({"connection"}, {"connection"}),
    "retry_after_years": ({"connection"}, {"connection"}),
    "retry_after_malformed": ({"connection"}, {"connection"}),
    "redirects": ({"io", "connection"}, {"io", "connection"}),
    "redirects_growing": ({"io", "connection"}, {"io", "connection"}),
    "redirects_nowhere": ({"io"}, {"io"}),
    "huge": ({"huge", "io"}, {"io", "changed"}),
}


@pytest.fixture(autouse=True)
def _little_waiting(monkeypatch):
    """The waits between the tries of our own engine are short."""
    monkeypatch.setattr("safetensors._remote.retry._FIRST_DELAY", 0.01)


def read(server, engine, words):
    """Opens and reads. Returns what it ends in, and the error or None."""
    begin = time.monotonic()
    error = None
    reader = open_by(engine, server)
    try:
        size, first = reader.open(FIRST)
        first, part = bytes(first), bytes(reader.read(BEGIN, END - BEGIN))
    except SafetensorError as raised:
        error = raised
        kind = kind_of(error)
        assert str(error).startswith(reader.name), error
    else:
        kind = "wrong"
        for name, file in [("right", CONTENT), ("other", OTHER), ("huge", HUGE)]:
            if first == file[:FIRST] and part == file[BEGIN:END]:
                kind = name
        assert size >= len(CONTENT)
    words.check(reader, *([error] if error else []))
    assert time.monotonic() - begin < SECONDS
    reader.close()
    return kind, error


def failures(cases):
    """Calls the functions of a dict, and returns the errors of those that fail.

    They wait most of their time, so six run at a time. On a busy machine that may be too slow for
    their time limits: one that fails runs again by itself.
    """

    def failure(case):
        try:
            case()
        except BaseException as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        failed = [
            name
            for name, error in zip(cases, pool.map(failure, cases.values()), strict=True)
            if error
        ]
    again = {name: failure(cases[name]) for name in failed}
    return {name: repr(error) for name, error in again.items() if error}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_mode(engine, after):
    def case(mode):
        files = {PATH: CONTENT}
        server = server_of(engine, misbehaving.MisbehavingServer, mode, files, after=after)
        with server:
            kind, error = read(server, engine, words)
            assert kind in EXPECTED[mode][after], f"{kind}: {error}"
            assert server.requests <= 20

    with Words() as words:
        cases = {mode: functools.partial(case, mode) for mode in whole_bodies.MODES}
        assert failures(cases) == {}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_passes_is_tried_again(engine, after):
    def case(mode):
        server = server_of(
            engine, misbehaving.MisbehavingServer, mode, {PATH: CONTENT}, after=after, times=1
        )
        with server:
            assert read(server, engine, words) == ("right", None)

    with Words() as words:
        modes = ("body_short", "body_reset", "closes", "resets", "status_503")
        assert failures({mode: functools.partial(case, mode) for mode in modes}) == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_good_server(engine):
    with server_of(engine, RangeServer, {PATH: CONTENT}) as server, Words() as words:
        assert read(server, engine, words) == ("right", None)
        assert server.requests == 2


def test_a_store_that_redirects_takes_no_signature_with_it():
    """obstore follows redirects by itself; docs/safety.md says what it sends along."""
    with RangeServer({PATH: CONTENT}, host="127.0.0.2") as other:
        location = other.url(PATH)
        files = {PATH: CONTENT}
        with misbehaving.MisbehavingServer("redirects", files, location=location) as server:
            reader = open_by("s3", server, headers={"Cookie": SECRETS["header"]})
            assert reader.open(FIRST)[0] == len(CONTENT)
            assert "authorization" in server.log[0].headers
    for request in other.log:
        assert not {"authorization", "cookie"} & {name.lower() for name in request.headers}
        assert SECRETS["key"] not in str(request.headers)
