"""hf:// URLs: the token goes to the Hub alone, and one commit is read."""

import concurrent.futures

import pytest

from safetensors import SafetensorError
from safetensors._remote.hub import Repo, parts_of
from safetensors._remote.open import open_reader, open_url
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.fake_hub import FakeHub
from support.servers import Answer, RangeServer, redirect

CONTENT = bytes(range(256)) * 100
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "XDG_CACHE_HOME",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN", "SAFETENSORS_REMOTE",
)  # fmt: skip
FAST = {"tries": 2, "connect_timeout": 2, "idle_timeout": 2, "timeout": 5}
URL = "hf://org/repo/m.safetensors"


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """No settings, and no token file, of whoever runs the tests."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def hub(monkeypatch):
    """A Hub that redirects to another server, as the Hub does. `hub.files`, `hub.cdn.files`."""
    with RangeServer({"/lfs": CONTENT}) as cdn, RangeServer({}) as server:
        server.cdn = cdn
        location = {"Location": cdn.url("/lfs") + "?sig=1", "X-Repo-Commit": COMMIT}
        for revision in ("main", COMMIT):
            server.files[f"/org/repo/resolve/{revision}/m.safetensors"] = Answer(302, location)
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        yield server


def tokens(server):
    """Returns the Authorization headers that a server got."""
    return [request.headers["Authorization"] for request in server.log]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("hf://org/repo/m.st", "org/repo/resolve/main/m.st"),
        ("hf://org/Llama-3.1_8B@v1.0/a b/m.st", "org/Llama-3.1_8B/resolve/v1.0/a%20b/m.st"),
        (
            "hf://datasets/org/repo@refs%2Fpr%2F1/m.st",
            "datasets/org/repo/resolve/refs%2Fpr%2F1/m.st",
        ),
        ("hf://spaces/org/repo/m.st", "spaces/org/repo/resolve/main/m.st"),
        ("hf://org/repo@a%20b/m%.st", "org/repo/resolve/a%20b/m%25.st"),
    ],
)
def test_urls(url, path):
    repo = Repo(Url.parse(url), Settings.of())
    assert repo.url(repo.path_of(Url.parse(url))).text == "https://huggingface.co/" + path


@pytest.mark.parametrize(
    "url",
    [
        "hf://org", "hf://org/", "hf://datasets/org", "hf://org/repo@/m", "hf://org/repo@..%2Fx/m",
        "hf://org/repo@a%0Ab/m", "hf://org/../m", "hf://org/repo/../m", "hf://org/repo//m",
        "hf://o%20g/repo/m", "hf://org/repo/m?x=1", "hf://org/repo@a%2F%2Fb/m",
    ],
)  # fmt: skip
def test_urls_that_name_no_file(url):
    with pytest.raises(SafetensorError):
        Repo(Url.parse(url), Settings.of())


def test_reads_go_to_the_signed_url_without_the_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    reader = open_reader(URL, FAST)
    assert reader.name == "hf://org/repo@main/m.safetensors"
    assert reader.open(100) == (len(CONTENT), CONTENT[:100])
    assert reader.read(300, 20) == CONTENT[300:320]
    assert tokens(hub) == ["Bearer hf_secret"]
    assert tokens(hub.cdn) == [None, None]
    assert reader.resolved.commit == COMMIT


def test_a_renamed_repository(hub, monkeypatch):
    """The Hub redirects to its new name on the same host, which gets the token."""
    monkeypatch.setenv("HF_TOKEN", "x")
    hub.files["/old/repo/resolve/main/m.safetensors"] = redirect(
        "/org/repo/resolve/main/m.safetensors", 307
    )
    assert open_reader("hf://old/repo/m.safetensors", FAST).open(1)[0] == len(CONTENT)
    assert tokens(hub) == ["Bearer x"] * 2


@pytest.mark.parametrize("commit", ["main", "", "../../evil", COMMIT.upper(), COMMIT + "0"])
def test_a_commit_that_is_none_is_not_used(hub, commit):
    hub.files["/org/repo/resolve/main/m.safetensors"] = Answer(
        302, {"Location": hub.cdn.url("/lfs"), "X-Repo-Commit": commit}
    )
    reader = open_reader(URL, FAST)
    reader.open(1)
    assert reader.resolved.commit is None


def test_the_commit_of_another_host_is_not_used(hub):
    hub.files["/org/repo/resolve/main/m.safetensors"] = redirect(hub.cdn.url("/lfs"))
    hub.cdn.files["/lfs"] = Answer(302, {"Location": "/file", "X-Repo-Commit": COMMIT})
    hub.cdn.files["/file"] = CONTENT
    reader = open_reader(URL, FAST)
    reader.open(1)
    assert reader.resolved.commit is None


@pytest.mark.parametrize(
    ("settings", "options", "token"),
    [
        ({}, {}, None),
        ({"HF_TOKEN": " env "}, {}, "env"),
        ({"HF_TOKEN": "env"}, {"token": "given"}, "given"),
        ({"HF_TOKEN": "env"}, {"token": False}, None),
        ({"HF_TOKEN": "env"}, {"token": True}, "env"),
        ({"HF_TOKEN": "env", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, {}, None),
        ({"HF_TOKEN": "env", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, {"token": True}, "env"),
        ({"HF_TOKEN_PATH": "{}/file"}, {}, "from-path"),
        ({"HF_HOME": "{}/home"}, {}, "from-home"),
        ({"XDG_CACHE_HOME": "{}/cache"}, {}, "from-cache"),
        ({"HF_TOKEN": "", "HF_HOME": "{}/home"}, {}, "from-home"),
        ({"HF_TOKEN_PATH": "{}/absent"}, {}, None),
        ({"HF_TOKEN_PATH": "{}"}, {}, None),
    ],
)
def test_tokens(hub, monkeypatch, tmp_path, settings, options, token):
    for path, text in {
        "file": "from-path\n",
        "home/token": "from-home",
        "cache/huggingface/token": "from-cache",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    open_reader(URL, FAST | options).open(1)
    assert tokens(hub) == [token and f"Bearer {token}"]


def test_the_token_file_in_the_home_directory(hub, tmp_path):
    folder = tmp_path / ".cache" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "token").write_text("stored")
    open_reader(URL, FAST).open(1)
    assert tokens(hub) == ["Bearer stored"]


def test_tokens_are_not_sent_without_tls(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HF_TOKEN", "x")
    assert Repo(Url.parse(URL), Settings.of())._headers == {}
    with pytest.raises(SafetensorError, match="tokens and cookies are sent by https only"):
        Repo(Url.parse(URL), Settings.of({"token": "x"}))
    with pytest.raises(SafetensorError, match="tokens and cookies are sent by https only"):
        Repo(Url.parse(URL), Settings.of({"headers": {"authorization": "x"}}))


@pytest.mark.parametrize(
    ("settings", "credentials"),
    [({}, "anonymous"), ({"HF_TOKEN": "cAnArY"}, "HF_TOKEN")],
)
@pytest.mark.parametrize(
    ("status", "headers", "text"),
    [
        (
            401,
            {},
            "the Hub has no repository org/repo, or it is private or gated: check the name; ",
        ),
        (403, {}, "the server answered 403 Forbidden"),
        (
            403,
            {"X-Error-Message": "no r\xe9ads"},
            "the Hub denies access: no r\xe9ads: the token may",
        ),
        (
            403,
            {"X-Error-Code": "Other", "X-Error-Message": "m?a=cAnArY"},
            r"denies access: m\?a=\.\.\.",
        ),
    ],
)
def test_denied(hub, monkeypatch, settings, credentials, status, headers, text):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    headers = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    hub.files["/org/repo/resolve/main/m.safetensors"] = Answer(status, headers)
    with pytest.raises(PermissionError, match=f"{text}.*; credentials: {credentials}$") as caught:
        open_reader(URL, FAST).open(1)
    assert str(caught.value).startswith("hf://org/repo@main/m.safetensors: the ")
    assert "cAnArY" not in str(caught.value)


def test_other_errors_of_the_hub(hub):
    headers = {"X-Error-Message": "the request is odd"}
    hub.files["/org/repo/resolve/main/m.safetensors"] = Answer(400, headers)
    with pytest.raises(SafetensorError, match="the Hub answered 400: the request is odd$"):
        open_reader(URL, FAST).open(1)


def test_an_address_names_the_same_file():
    """Other ranks of a group read by it."""
    for url in ("hf://o/r/m.st", "hf://datasets/o/r@a%2Fb/c/m.st", "hf://o/r@refs/pr/1/m.st"):
        parsed = Url.parse(url)
        repo = Repo(parsed, Settings.of())
        again = Url.parse(repo.address(repo.path_of(parsed)))
        assert parts_of(again) == parts_of(parsed)


def test_a_given_header_comes_before_the_environment(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "env")
    open_reader(URL, FAST | {"headers": {"authorization": "Basic given"}}).open(1)
    assert tokens(hub) == ["Basic given"]


def test_a_token_that_is_none(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "cAnArY\nX: y")
    with pytest.raises(SafetensorError, match="^HF_TOKEN has no valid token$"):
        open_reader(URL, FAST)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_offline(hub, monkeypatch, value, tmp_path):
    """Nothing is sent: test_hub_cache.py has what is read."""
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(FileNotFoundError, match="lacks org/repo, and HF_HUB_OFFLINE is set"):
        open_url(URL, FAST)
    with pytest.raises(PermissionError, match="the Hub is not asked: HF_HUB_OFFLINE is set"):
        open_reader(URL, FAST)
    assert hub.requests == 0


def test_a_signed_url_that_expired_is_renewed(hub):
    reader = open_reader(URL, FAST)
    reader.open(1)
    hub.cdn.files["/lfs"] = lambda request: CONTENT if request.query == "sig=2" else Answer(403)
    hub.files["/org/repo/resolve/main/m.safetensors"] = redirect(hub.cdn.url("/lfs") + "?sig=2")
    assert reader.read(5, 10) == CONTENT[5:15]
    assert reader.read(5, 10) == CONTENT[5:15]
    assert hub.requests == 2


def test_a_repository_is_no_file(hub):
    for url in ("hf://org/repo", "hf://org/Llama-3.1-8B", "hf://org/repo/folder/"):
        with pytest.raises(SafetensorError, match="is a folder"):
            open_reader(url, FAST)


def test_many_ranks_on_one_address(monkeypatch):
    """The server takes some requests a second; all ranks read their file in the end."""
    with FakeHub(quota=(8, 1)) as hub:
        hub.add("org/repo", {"m.safetensors": CONTENT})
        monkeypatch.setenv("HF_ENDPOINT", hub.url())
        options = FAST | {"tries": 9, "timeout": 60}
        readers = [open_reader("hf://org/repo/m.safetensors", options) for _ in range(20)]
        with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
            found = [*pool.map(lambda reader: bytes(reader.open(10)[1]), readers)]
        assert found == [CONTENT[:10]] * 20
        assert 20 < hub.requests < 60
