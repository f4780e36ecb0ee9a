"""hf:// URLs: the token goes to the Hub alone, and one commit is read."""

import pytest

from safetensors import SafetensorError
from safetensors._remote.hub import Repo
from safetensors._remote.open import open_reader
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.servers import Answer, RangeServer, redirect

CONTENT = bytes(range(256)) * 100
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = (
    "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "XDG_CACHE_HOME",
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
@pytest.mark.parametrize("status", [401, 403])
def test_denied(hub, monkeypatch, settings, credentials, status):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    hub.files["/org/repo/resolve/main/m.safetensors"] = Answer(status)
    with pytest.raises(PermissionError, match=f"credentials: {credentials}$") as caught:
        open_reader(URL, FAST).open(1)
    assert str(caught.value).startswith("hf://org/repo@main/m.safetensors: the server answered 40")
    assert "cAnArY" not in str(caught.value)


def test_a_given_header_comes_before_the_environment(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "env")
    open_reader(URL, FAST | {"headers": {"authorization": "Basic given"}}).open(1)
    assert tokens(hub) == ["Basic given"]


def test_a_token_that_is_none(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "cAnArY\nX: y")
    with pytest.raises(SafetensorError, match="^HF_TOKEN has no valid token$"):
        open_reader(URL, FAST)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_offline(hub, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(PermissionError, match="HF_HUB_OFFLINE is set"):
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
