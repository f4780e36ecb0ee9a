"""storage_options and environment variables of remote files."""

import email.utils
import re
import time

import pytest

from safetensors import SafetensorError
from safetensors._remote import errors, retry
from safetensors._remote.settings import Settings

CANARY = "cAnArY"


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in ("REMOTE", "REMOTE_CONCURRENCY", "REMOTE_CHUNK_MB"):
        monkeypatch.delenv("SAFETENSORS_" + name, raising=False)


def test_defaults():
    settings = Settings.of()
    assert (settings.tries, settings.connect_timeout, settings.idle_timeout) == (5, 5.0, 30.0)
    assert (settings.timeout, settings.concurrency) == (600.0, 32)
    assert (settings.chunk_bytes, settings.gap_bytes) == (8 << 20, 1 << 20)
    assert settings.verify is True
    assert settings == Settings.of(None) == Settings.of({})


def test_options_and_those_of_an_engine():
    options = {"tries": 2, "timeout": 1, "headers": {"X": "y"}, "verify": False, "region": "eu"}
    settings = Settings.of(options, {"region"})
    assert (settings.tries, settings.timeout, settings.verify) == (2, 1.0, False)
    assert settings.headers == {"X": "y"}
    assert settings.options == {"region": "eu"}


def test_options_of_an_engine_that_takes_any():
    """Names of the common table are its, too, and it checks their values."""
    options = {"any": 1, "token": CANARY, "timeout": None, "headers": 5, "proxy": 5, "verify": 0}
    settings = Settings.of({**options, "concurrency": 3, "chunk_bytes": 4, "gap_bytes": 5}, None)
    assert settings.options == options
    assert (settings.concurrency, settings.chunk_bytes, settings.gap_bytes) == (3, 4, 5)
    assert (settings.token, settings.timeout) == (None, 600.0)
    assert CANARY not in repr(settings)
    with pytest.raises(SafetensorError, match="'concurrency' is not an integer"):
        Settings.of({"concurrency": 0}, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("concurency", "has the unknown name 'concurency'; did you mean `concurrency`"),
        ("regoin", "has the unknown name 'regoin'; did you mean `region`"),
        ("qqq", "has the unknown name 'qqq'; known: ca_file, chunk_bytes"),
        (5, "has the unknown name '5'; known"),
    ],
)
def test_unknown_names(name, text):
    with pytest.raises(SafetensorError, match=text) as caught:
        Settings.of({name: CANARY}, {"region"})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"tries": 0}, {"tries": 101}, {"tries": True}, {"tries": 1.0}, {"tries": CANARY},
        {"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"timeout": float("inf")},
        {"idle_timeout": CANARY}, {"connect_timeout": None}, {"concurrency": 0},
        {"concurrency": 257}, {"chunk_bytes": 0}, {"chunk_bytes": 1 << 31}, {"gap_bytes": -1},
        {"verify": 0}, {"verify": CANARY}, {"ca_file": 5}, {"proxy": 5}, {"token": 5},
        {"token": CANARY + "\r\nX: y"}, {"token": ""}, {"headers": CANARY},
        {"headers": {"X": CANARY + "\n"}}, {"headers": {"X": 5}}, {"headers": {"X y": CANARY}},
        {"headers": {"": CANARY}}, {"headers": {5: CANARY}}, {"headers": {"X": CANARY + "\u0100"}},
        {"headers": {"Range": CANARY}}, {"headers": {"if-match": CANARY}},
        {"headers": {"Host": CANARY}}, {"headers": {"Transfer-Encoding": CANARY}},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_values(options):
    """The error names the option, and does not show the value."""
    with pytest.raises(SafetensorError, match="^storage_options: ") as caught:
        Settings.of(options)
    assert next(iter(options)) in str(caught.value) or "header" in str(caught.value)
    assert CANARY not in str(caught.value)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize("options", [[("token", CANARY)], CANARY, 5])
def test_options_that_are_no_dictionary(options):
    with pytest.raises(SafetensorError, match="^storage_options is not a dictionary$"):
        Settings.of(options)


def test_a_token_and_a_header():
    with pytest.raises(SafetensorError, match="both a token and a header Authorization") as caught:
        Settings.of({"token": CANARY, "headers": {"authorization": CANARY}})
    assert CANARY not in str(caught.value)
    Settings.of({"token": False, "headers": {"authorization": CANARY}})


def test_repr_has_no_secrets():
    settings = Settings.of(
        {"token": CANARY, "headers": {"X": CANARY}, "proxy": f"http://{CANARY}@h", "key": CANARY},
        {"key"},
    )
    assert CANARY not in repr(settings)


def test_environment(monkeypatch):
    monkeypatch.setenv("SAFETENSORS_REMOTE_CONCURRENCY", "7")
    monkeypatch.setenv("SAFETENSORS_REMOTE_CHUNK_MB", " 2 ")
    settings = Settings.of()
    assert (settings.concurrency, settings.chunk_bytes) == (7, 2 << 20)
    assert Settings.of({"concurrency": 9}).concurrency == 9


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "99999999999999999999", "\u0663"])
@pytest.mark.parametrize(
    ("name", "most"),
    [("SAFETENSORS_REMOTE_CONCURRENCY", 256), ("SAFETENSORS_REMOTE_CHUNK_MB", 1024)],
)
def test_bad_environment(name, most, value, monkeypatch):
    for text in (value, str(most + 1)):
        monkeypatch.setenv(name, text)
        with pytest.raises(SafetensorError, match=f"{name} is not a number from 1 to {most}$"):
            Settings.of()
    monkeypatch.setenv(name, str(most))
    Settings.of()


@pytest.mark.parametrize("value", ["0", "off", "OFF", " 0 ", "no", "maybe"])
def test_off(value, monkeypatch):
    """A value that is not known forbids, too."""
    monkeypatch.setenv("SAFETENSORS_REMOTE", value)
    with pytest.raises(PermissionError, match="SAFETENSORS_REMOTE") as caught:
        Settings.of()
    assert isinstance(caught.value, SafetensorError)


@pytest.mark.parametrize("value", ["", "1", "on"])
def test_on(value, monkeypatch):
    monkeypatch.setenv("SAFETENSORS_REMOTE", value)
    Settings.of()


# Repetitions


def test_delays_double_and_differ(monkeypatch):
    """The upper bounds are 0.2 s, 0.4 s, ... up to 10 s."""
    bounds = []
    monkeypatch.setattr(
        retry.random, "uniform", lambda low, high: bounds.append((low, high)) or 0.0
    )

    def attempt(deadline):
        raise retry.Again(errors.failed, "x", "no")

    with pytest.raises(SafetensorError, match=r"^x: no, after 9 tries in \d+\.\d s$"):
        retry.retry(attempt, Settings.of({"tries": 9}))
    assert bounds == [(0.0, min(10.0, 0.2 * 2**i)) for i in range(9)]


def test_no_wait_beyond_the_deadline():
    def attempt(deadline):
        raise retry.Again(errors.failed, "x", "no", 50.0)

    began = time.monotonic()
    text = r"^x: no, after 1 try in 0\.\d s; it asks to wait 51 s, more than `timeout` leaves of "
    with pytest.raises(
        SafetensorError, match=text + r"40 s: try again at \d{4}-\d\d-\d\d [\d:]{8} UTC$"
    ):
        retry.retry(attempt, Settings.of({"timeout": 40}))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (None, None, None), ("", None, None), ("soon", None, None), ("-5", None, None),
        ("1.5", None, None), ("7", 7, 7), (" 0 ", 0, 0), ("9" * 400, 1e8, 1e9),
        (email.utils.formatdate(0, usegmt=True), 0, 0),
        ("Mon, 99 Foo 2026 00:00:00 GMT", None, None), ("1 Jan 99999 00:00:00 GMT", None, None),
    ],
)  # fmt: skip
def test_retry_after(value, least, most):
    found = retry.retry_after(value)
    assert found is None if least is None else least <= found <= most


def test_retry_after_a_date():
    date = email.utils.formatdate(time.time() + 1000, usegmt=True)
    assert 900 <= retry.retry_after(date) <= 1001


@pytest.fixture
def waits(monkeypatch):
    """Waits that take no time: the list of their seconds."""
    waits = []
    monkeypatch.setattr("threading.Event.wait", lambda self, seconds: waits.append(seconds))
    return waits


def test_a_wait_that_the_server_asks_for(waits):
    """All are a second longer than asked, because servers round; and clients spread."""

    def attempt(deadline):
        raise retry.Again(errors.failed, "x", "no", 100.0)

    text = r"after 9 tries in .*; it asks to wait 101 s: try again at \d{4}-"
    with pytest.raises(SafetensorError, match=text):
        retry.retry(attempt, Settings.of({"tries": 9, "timeout": 1000}))
    assert len(set(waits)) == 8
    assert all(101 <= wait <= 112 for wait in waits)


def test_a_wait_that_just_fits_is_not_made_too_long(waits):
    def attempt(deadline):
        raise retry.Again(errors.failed, "x", "no", 100.0)

    for _ in range(20):
        with pytest.raises(SafetensorError, match="after 2 tries"):
            retry.retry(attempt, Settings.of({"tries": 2, "timeout": 103}))
    assert all(101 <= wait <= 102.1 for wait in waits)


def test_a_long_wait_is_logged_once(waits, caplog, monkeypatch):
    """By all that wait until then, so that it does not look like a load that hangs."""
    monkeypatch.setattr(retry, "_logged_until", 0.0)

    def attempt(deadline):
        raise retry.Again(errors.failed, "https://h.example/m?sig=cAnArY", "no", 30.0)

    for _ in range(3):
        with pytest.raises(SafetensorError):
            retry.retry(attempt, Settings.of({"tries": 2}))
    (line,) = caplog.messages
    assert re.fullmatch(r"https://h\.example/m\?sig=\.\.\.: no; waiting for 3\d s", line)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"ratelimit": '"api";r=0;t=55'}, (55.0, "the limit 'api'")),
        (429, {"ratelimit": '"api";r=1;t=55'}, (None, "")),
        (503, {"ratelimit": '"api";r=0;t=55'}, (None, "")),
        (429, {"ratelimit": '"api";r=0;t=55', "retry-after": "3"}, (55.0, "the limit 'api'")),
        (503, {"ratelimit": '"api";r=0;t=55', "retry-after": "3"}, (3.0, "")),
        (
            429,
            {"ratelimit": '"a b";r=0;t=5', "ratelimit-policy": '"fixed window";"a b";q=9;w=300'},
            (5.0, "the limit 'a b' of 9 requests in 300 s"),
        ),
        (429, {"ratelimit": '"api";r=0;t=99999999999'}, (None, "")),
    ],
)
def test_limits(status, headers, expected):
    assert retry.asked_wait(status, headers) == expected
