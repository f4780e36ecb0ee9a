"""Long ranges of https by obstore: when it is used, and that nothing is lost by it."""

import time

import obstore
import pytest

from safetensors import SafetensorError
from safetensors._remote import https_ranges, loop
from safetensors._remote.http import HttpReader
from safetensors._remote.https_ranges import HttpsReader
from safetensors._remote.open import open_reader
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.certificates import certificate
from support.misbehaving import MODES, MisbehavingServer
from support.remote_engines import cancel_reads
from support.servers import Answer, RangeServer, redirect

pytestmark = pytest.mark.slow

CONTENT = bytes(i * 31 % 251 for i in range(3 << 20))
LONG = 1 << 20
FAST = {"tries": 2, "connect_timeout": 1, "idle_timeout": 0.3, "timeout": 3.0}


@pytest.fixture
def ranges(monkeypatch):
    """The ranges that obstore was asked for."""
    asked = []
    real = obstore.get_async

    def get_async(store, path, *, options):
        asked.append(options["range"])
        return real(store, path, options=options)

    monkeypatch.setattr(obstore, "get_async", get_async)
    return asked


def opened(server, path="/m", **options):
    """Returns an open reader that trusts the server."""
    url = Url.parse(server.url(path))
    given = {"ca_file": certificate().authority, **options}
    reader = HttpsReader(url, Settings.of(given))
    reader.open(100)
    return reader


def test_long_reads_are_obstores_and_short_ones_are_not(ranges):
    with RangeServer({"/m": CONTENT}, tls=True) as server:
        reader = opened(server)
        assert bytes(reader.read(5, LONG - 1)) == CONTENT[5 : LONG + 4]
        assert ranges == []
        assert bytes(reader.read(7, LONG)) == CONTENT[7 : LONG + 7]
        assert ranges == [(7, LONG + 7)]
        assert server.log[-1].headers["If-Match"] == server.log[-2].headers["If-Match"]
        assert server.requests == 3


@pytest.mark.parametrize("case", ["http", "not verified", "header", "no strong ETag", "forked"])
def test_it_is_left_to_our_own_engine(ranges, monkeypatch, case):
    options = {"not verified": {"verify": False}, "header": {"headers": {"X-Api-Key": "x"}}}
    if case == "forked":
        monkeypatch.setattr(loop, "is_forked", lambda: True)
    mode = "weak_etag" if case == "no strong ETag" else "no_etag"
    times = None if case == "no strong ETag" else 0
    with MisbehavingServer(mode, {"/m": CONTENT}, tls=case != "http", times=times) as server:
        reader = opened(server, **options.get(case, {}))
        assert bytes(reader.read(7, LONG)) == CONTENT[7 : LONG + 7]
    assert ranges == []


def test_a_token_goes_along(ranges):
    with RangeServer({"/m": CONTENT}, tls=True) as server:
        reader = opened(server, token="secret")
        reader.read(0, LONG)
        assert len(ranges) == 1
        assert [request.headers["Authorization"] for request in server.log] == ["Bearer secret"] * 2


def test_redirects_are_followed_once(ranges):
    with RangeServer({"/m": CONTENT}, tls=True) as server:
        server.files["/start"] = redirect("/m?signature=1%2F2&x=a+b")
        reader = opened(server, "/start")
        reader.read(0, LONG)
        reader.read(LONG, LONG)
        paths = [(request.path, request.query) for request in server.log]
        signed = ("/m", "signature=1%2F2&x=a+b")
        assert paths == [("/start", ""), signed, signed, signed]
        assert len(ranges) == 2


def test_a_later_redirect_gets_no_token_and_leads_to_no_plain_server():
    files = {"/m": CONTENT}
    with (
        RangeServer(files) as plain,
        RangeServer(files, tls=True) as other,
        RangeServer(files, tls=True) as server,
    ):
        reader = opened(server, token="secret", tries=1)
        server.files["/m"] = redirect(plain.url("/m"))
        with pytest.raises(SafetensorError, match="from https to http"):
            reader.read(0, LONG)
        assert plain.requests == 0
        server.files["/m"] = redirect(other.url("/m"))
        assert bytes(reader.read(0, LONG)) == CONTENT[:LONG]
        assert ["Authorization" in request.headers for request in other.log] == [False]
        other.files["/m"] = CONTENT[::-1]
        with pytest.raises(SafetensorError, match="changed"):
            reader.read(0, LONG)


def test_a_signed_url_is_renewed(ranges):
    valid = ["key=1"]
    with RangeServer({}, tls=True) as server:
        server.files["/start"] = lambda request: redirect(f"/m?{valid[0]}")
        server.files["/m"] = lambda request: CONTENT if request.query in valid else Answer(403)
        reader = opened(server, "/start")
        assert bytes(reader.read(0, LONG)) == CONTENT[:LONG]
        valid[0] = "key=2"
        assert bytes(reader.read(1, LONG)) == CONTENT[1 : LONG + 1]
        assert len(ranges) == 2
        server.clear()
        assert bytes(reader.read(2, LONG)) == CONTENT[2 : LONG + 2]
        assert [request.query for request in server.log] == ["key=2"]
        assert len(ranges) == 3


def test_a_change_is_noticed():
    with RangeServer({"/m": CONTENT}, tls=True) as server:
        reader = opened(server)
        server.files["/m"] = CONTENT[::-1]
        with pytest.raises(SafetensorError, match="changed while it was being read") as raised:
            reader.read(0, LONG)
        assert raised.value.code == "file_changed"


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_fault_has_the_same_end_as_by_our_own_engine(mode, monkeypatch):
    monkeypatch.setattr("safetensors._remote.retry._FIRST_DELAY", 0.01)
    ends = []
    for kind in (HttpReader, HttpsReader):
        with MisbehavingServer(mode, {"/m": CONTENT}, after=1, tls=True) as server:
            settings = Settings.of({"ca_file": certificate().authority, **FAST})
            reader = kind(Url.parse(server.url("/m")), settings)
            reader.open(100)
            began = time.monotonic()
            try:
                assert bytes(reader.read(LONG, LONG)) == CONTENT[LONG : 2 * LONG]
                ends.append("right")
            except SafetensorError as error:
                ends.append(type(error).__name__ + str(error.code))
            assert time.monotonic() - began < 10
    own, by_obstore = ends
    assert by_obstore in (own, "right")


def test_nothing_is_read_after_close(ranges):
    with RangeServer({"/m": CONTENT}, tls=True) as server:
        reader = opened(server)
        reader.close()
        with pytest.raises(SafetensorError, match="is closed"):
            reader.read(0, LONG)
    assert ranges == []


def test_after_three_failures_it_is_not_tried_again(ranges):
    with MisbehavingServer("modified_malformed", {"/m": CONTENT}, tls=True) as server:
        reader = opened(server)
        for _ in range(5):
            assert bytes(reader.read(0, LONG)) == CONTENT[:LONG]
        assert len(ranges) == 3


def test_cancel_ends_reads_at_once():
    with MisbehavingServer("silent", {"/m": CONTENT}, after=1, times=4, tls=True) as server:
        reader = opened(server)
        cancel_reads(reader, server, 4, LONG)
        assert bytes(reader.read(0, LONG)) == CONTENT[:LONG]


@pytest.mark.parametrize(
    ("value", "kind"), [("", HttpsReader), ("obstore", HttpsReader), ("python", HttpReader)]
)
def test_the_engine_is_chosen_by_a_variable(monkeypatch, value, kind):
    monkeypatch.setenv("SAFETENSORS_HTTP_ENGINE", value)
    assert type(open_reader("https://host/m.safetensors")) is kind


def test_a_wrong_variable_is_an_error(monkeypatch):
    monkeypatch.setenv("SAFETENSORS_HTTP_ENGINE", "curl")
    with pytest.raises(SafetensorError, match="SAFETENSORS_HTTP_ENGINE is neither"):
        open_reader("https://host/m.safetensors")


def test_without_obstore_it_is_not_used(monkeypatch):
    monkeypatch.setattr(https_ranges.importlib.util, "find_spec", lambda name: None)
    assert type(open_reader("https://host/m.safetensors")) is HttpReader
