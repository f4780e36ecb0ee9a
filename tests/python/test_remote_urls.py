"""Which URLs are accepted, and what an index may name."""

import time

import pytest

from safetensors import SafetensorError
from safetensors._redact import redact
from safetensors._remote.urls import Url, join

CANARY = "cAnArY"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("HTTPS://Host:8443/a/b.st?x=1&y#f", ("https", "host:8443", "a/b.st", "x=1&y")),
        ("http://h", ("http", "h", "", "")),
        ("http://[::1]:80/a", ("http", "[::1]:80", "a", "")),
        ("https://h/a b%20c%zz?q=a b", ("https", "h", "a%20b%20c%25zz", "q=a%20b")),
        ("https://h/ä?ä", ("https", "h", "%C3%A4", "%C3%A4")),
        ("https://bücher.de/", ("https", "xn--bcher-kva.de", "", "")),
        ("s3://B/a b/%20#x?versionId=5", ("s3", "B", "a b/%20#x", "versionId=5")),
        ("abfss://box@a.dfs.core.windows.net/k", ("abfss", "box@a.dfs.core.windows.net", "k", "")),
        ("hf://org/repo@a%2Fb/x.json", ("hf", "org", "repo@a%2Fb/x.json", "")),
    ],
)
def test_parts(text, parts):
    url = Url.parse(text)
    assert (url.scheme, url.host, url.path, url.query) == parts


def test_ports_and_hosts():
    urls = map(Url.parse, ["https://h/", "http://h/", "http://[::1]:81/", "http://[::1]/"])
    assert [(url.hostname, url.port) for url in urls] == [
        ("h", 443), ("h", 80), ("::1", 81), ("::1", 80)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"https://me:{CANARY}@h/x", "a user or a password"),
        (f"https://{CANARY}@h/x", "a user or a password"),
        (f"https://me:p/{CANARY}@h/x", "invalid host"),
        (f"https://h/x?t=a@{CANARY}\n", "control character"),
        (f"https://{'a' * 64}.example/x?{CANARY}", "invalid host"),
        (f"https://a..b/x?{CANARY}", "invalid host"),
        (f"https://\u2100.example/x?{CANARY}", "invalid host"),
        (f"s3://key:{CANARY}@b/x", "a user or a password"),
        (f"abfs://box:{CANARY}@a/x", "a user or a password"),
        (f"simplecache::https://h/x?t={CANARY}", "chains"),
        (f"file:///x?{CANARY}", "path of a local file"),
        (f"local://x?{CANARY}", "path of a local file"),
        (f"reference://x?{CANARY}", "path of a local file"),
        (f"https://h/a\r\nX: y?{CANARY}", "control character"),
        (f"https://h/\ud800?{CANARY}", "half of a surrogate"),
        (f"https://h:99999/x?{CANARY}", "invalid host"),
        (f"https:///x?{CANARY}", "invalid host"),
        (f"https://a b/x?{CANARY}", "invalid host"),
        (f"https://h\\x/y?{CANARY}", "invalid host"),
        (f"https://h%2f/y?{CANARY}", "invalid host"),
        ("s3:///x", "names no bucket"),
        ("plain", "is not a URL: give the path of a local file as a pathlib.Path"),
        (f"a b://x?{CANARY}", "is not a URL: give"),
        (f"dir/s3://x?{CANARY}", "is not a URL: give"),
        (f"C://x?{CANARY}", "is not a URL: give"),
        (f"://x?{CANARY}", "is not a URL: give"),
    ],
)
def test_refused(text, reason):
    with pytest.raises(SafetensorError, match=reason) as caught:
        Url.parse(text)
    assert CANARY not in str(caught.value) + str(caught.value.path)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize(
    ("index", "name", "result"),
    [
        ("https://h/d/i.json?sig=1#f", "m-1.safetensors", "https://h/d/m-1.safetensors"),
        ("https://h/i.json", "sub/a b:c.st", "https://h/sub/a%20b%3Ac.st"),
        ("s3://b/d/i.json", "sub/a b.st", "s3://b/d/sub/a b.st"),
        ("s3://b/i.json", "m.st", "s3://b/m.st"),
        ("hf://o/r@v/i.json", "m.st", "hf://o/r@v/m.st"),
    ],
)
def test_files_of_an_index(index, name, result):
    assert join(Url.parse(index), name).text == result


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "/etc/passwd", "../x", "a/../../x", "a/./x", ".", "..", "a//b", "a/", "//h/x",
        "https://evil/x", "s3://evil/x", "file:///x", "x?y", "x#y", "x%2e", "%2e%2e/x", "a\\b",
        "..\\x", "x\n", "x\0", "x\x7f", "x\x85", "\ud800",
    ],
)  # fmt: skip
@pytest.mark.parametrize("index", ["https://h/d/i.json", "s3://b/d/i.json", "hf://o/r/i.json"])
def test_files_that_an_index_may_not_name(index, name):
    with pytest.raises(SafetensorError, match="which is not a plain path below its folder"):
        join(Url.parse(index), name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/x?a=1&b=2#f", "https://h/x?a=...&b=..."),
        ("https://u:p@h/x?sig", "https://h/x?..."),
        ("get https://u:p@h/x?s=1 failed: s3://k@b/y#z", "get https://h/x?s=... failed: s3://b/y"),
        ("abfss://box@a/k", "abfss://box@a/k"),
        ("abfss://box:p@a/k", "abfss://a/k"),
        ("'/x?Signature=a/b+c%20d'", "'/x?Signature=..."),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ..."),
        ("the token file of the Hub", "the token file of the Hub"),
        ("first\nsecond", "first"),
        ("a\x1b[31mb", "a?[31mb"),
        ("1http://u@h/ +x://u@h ://u@h", "1http://h/ +x://h ://h"),
        ("a#b https://h/#x#y://z#q w#v", "a#b https://h/ w#v"),
        ("https://u:" + "p" * 9000 + "@h/", "https://..."),
        ("x" * 9000, "x" * 500 + "..."),
        ("", ""),
    ],
)
def test_redact(text, shown):
    assert redact(text) == shown


@pytest.mark.timed
@pytest.mark.parametrize(
    "part",
    ["a", "://", "a://", "https://h/", "#", "?", "&", "?a=", "@", "a@", "Bearer ", "Bearer", " "],
)
def test_redact_takes_linear_time(part):
    """Of what any server sends, nothing is read that is not shown."""

    def seconds(count):
        text = (part * count)[:count]
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            redact(text)
            best = min(best, time.process_time() - begun)
        return best

    short = max(seconds(1000), 0.0002)
    assert seconds(8000) < 30 * short
    assert seconds(1_000_000) < 40 * short


def test_long_urls():
    """No web server takes a longer one; what they show of one has no user."""
    assert Url.parse("https://h/" + "a" * 8182).path == "a" * 8182
    with pytest.raises(
        SafetensorError, match="https://...: is a URL of 8,193 characters"
    ) as caught:
        Url.parse(f"https://u:{CANARY}@h/".ljust(8193, "a"))
    assert CANARY not in str(caught.value)
    with pytest.raises(SafetensorError, match="invalid host"):
        Url.parse("https://" + "é" * 8000)


def test_texts_of_urls_have_no_secrets():
    url = Url.parse(f"https://h/x?t={CANARY}#{CANARY}")
    assert CANARY in url.text
    assert CANARY not in f"{url} {url!r} {url.name}"
