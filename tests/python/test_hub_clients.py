"""hf:// beside huggingface_hub: the same calls to the same server, and the same results."""

import os
import threading
import time

import pytest

from safetensors import SafetensorError
from safetensors._remote import hub
from safetensors._remote.connections import Pool
from safetensors._remote.open import open_reader, open_url
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support import children
from support.fake_hub import FakeHub, commit_of, rate_limit
from support.servers import Answer

client = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

from huggingface_hub import constants, errors  # noqa: E402
from huggingface_hub.utils import _http, get_token, http_backoff, parse_hf_uri  # noqa: E402

FILES = {"model.safetensors": b"model", "config.json": b"{}", "sub/x.safetensors": b"x" * 1000}
FAST = {"tries": 2, "connect_timeout": 2, "idle_timeout": 2, "timeout": 9}
VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN", "SAFETENSORS_REMOTE",
)  # fmt: skip
"""What either client reads."""

# What our errors are, for the classes of huggingface_hub.
KINDS = {
    errors.GatedRepoError: PermissionError,
    errors.DisabledRepoError: PermissionError,
    errors.RevisionNotFoundError: FileNotFoundError,
    errors.RemoteEntryNotFoundError: FileNotFoundError,
    errors.LocalEntryNotFoundError: FileNotFoundError,
}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """Both clients have no settings but the cache, which is empty."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / ".cache/huggingface/token"))


@pytest.fixture
def server(monkeypatch):
    """A Hub with a repository of each kind."""
    with FakeHub() as server:
        server.add("org/repo", FILES, revisions=["main", "refs/pr/1", "v1.0", "feature/x"])
        server.add("org/gated", FILES, gated=True, readers={"hf_reader"})
        server.add("org/private", FILES, private=True, readers={"hf_reader"})
        server.add("org/disabled", FILES, disabled=True)
        server.add("org/old", {}, renamed_to="org/repo")
        server.add("datasets/org/data", FILES, revisions=["refs/convert/parquet", "main"])
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        yield server


def theirs(server, url, token=None, **options):
    """Returns the file that huggingface_hub downloads, or its error."""
    parsed = parse_hf_uri(url)
    try:
        path = client.hf_hub_download(
            parsed.id, parsed.path_in_repo, repo_type=parsed.type, revision=parsed.revision,
            token=token or False, endpoint=server.url(), **options,
        )  # fmt: skip
    except errors.HfHubHTTPError as error:
        return error
    except errors.LocalEntryNotFoundError as error:
        is_online = isinstance(error.__cause__, errors.HfHubHTTPError)
        return error.__cause__ if is_online else error
    with open(path, "rb") as file:
        return file.read()


def ours(url, token=None):
    """Returns the file that this package reads, or its error."""
    try:
        reader = open_url(url, FAST | {"token": token or False})
        if isinstance(reader, str):
            with open(reader, "rb") as file:
                return file.read()
        return bytes(reader.open(1 << 20)[1])
    except SafetensorError as error:
        return error


@pytest.mark.parametrize("token", [None, "hf_good", "hf_reader", "hf_bad"])
@pytest.mark.parametrize(
    "url",
    [
        "hf://org/repo/model.safetensors",
        "hf://org/repo/config.json",
        "hf://org/repo/sub/x.safetensors",
        "hf://org/repo/absent.safetensors",
        "hf://org/repo@v1.0/model.safetensors",
        f"hf://org/repo@{commit_of('main')}/model.safetensors",
        "hf://org/repo@nope/model.safetensors",
        "hf://org/repo@refs/pr/1/model.safetensors",
        "hf://org/repo@refs%2Fpr%2F1/model.safetensors",
        "hf://org/repo@refs/pr/2/model.safetensors",
        "hf://org/repo@feature%2Fx/model.safetensors",
        "hf://org/repo@feature/x/model.safetensors",
        "hf://models/org/repo/model.safetensors",
        "hf://datasets/org/data/model.safetensors",
        "hf://datasets/org/data@refs/convert/parquet/sub/x.safetensors",
        "hf://datasets/org/none/x.safetensors",
        "hf://org/old/model.safetensors",
        "hf://org/none/model.safetensors",
        "hf://org/gated/model.safetensors",
        "hf://org/private/model.safetensors",
        "hf://org/disabled/model.safetensors",
    ],
)
def test_one_file(server, url, token):
    expected, found = theirs(server, url, token), ours(url, token)
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert isinstance(found, SafetensorError), found
    status = expected.response.status_code
    by_status = FileNotFoundError if status == 404 else PermissionError
    assert isinstance(found, KINDS.get(type(expected), by_status))
    said = expected.response.headers["X-Error-Message"]
    assert said == "Access to this resource is disabled." or said in str(found)
    assert not isinstance(expected, errors.GatedRepoError) or f"{server.url()}/org" in str(found)


@pytest.mark.parametrize(
    "url",
    [
        "hf://org/repo", "hf://org/repo/", "hf://org/repo/a/b.st", "hf://models/org/repo/a",
        "hf://datasets/org/repo@v1/a", "hf://spaces/org/repo", "hf://kernels/org/repo/a",
        "hf://org/repo@refs/pr/10", "hf://org/repo@refs/pr/10/a/b", "hf://org/repo@refs/convert/x.y-z/a",
        "hf://org/repo@refs%2Fpr%2F10/a", "hf://org/repo@a%2Fb/c", "hf://org/repo@a/b", "hf://org/r@refs/x/1",
        "hf://org/repo/file@1.st", "hf://org/repo@v1/file@2.st", "hf://org/repo@a%20b/m",
        "hf://org", "hf://org/", "hf://models", "hf://models/org", "hf://model/org/repo", "hf://dataset/o/r/f",
        "hf://datasets/org", "hf://org/repo@", "hf://org/repo@/m", "hf://org@v1/repo", "hf://org/re--po/m",
        "hf://org/re..po/m", "hf://org/repo.git/m", "hf://org/repo//m", "hf://org/repo@v1//m", "hf://o%20g/r/m",
    ],
)  # fmt: skip
def test_urls(url):
    try:
        parsed = parse_hf_uri(url)
    except (errors.HfUriError, errors.HFValidationError):
        with pytest.raises(SafetensorError):
            hub.parts_of(Url.parse(url))
        return
    kind = "" if parsed.type == "model" else f"{parsed.type}s/"
    repository, revision, path = hub.parts_of(Url.parse(url))
    assert (repository, revision) == (kind + parsed.id, parsed.revision or "main")
    assert path.strip("/") == parsed.path_in_repo


@pytest.mark.parametrize(
    "variables",
    [
        {}, {"HF_TOKEN": "a"}, {"HF_TOKEN": " a\n"}, {"HUGGING_FACE_HUB_TOKEN": "b"},
        {"HF_TOKEN": "a", "HUGGING_FACE_HUB_TOKEN": "b"},
        {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "b"},
        {"HF_TOKEN": " ", "HUGGING_FACE_HUB_TOKEN": "b"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("stored", [None, "c\n", ""])
def test_tokens(server, monkeypatch, tmp_path, variables, stored):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if stored is not None:
        (tmp_path / ".cache/huggingface").mkdir(parents=True)
        (tmp_path / ".cache/huggingface/token").write_text(stored)
    token = get_token()
    server.tokens.add(token)
    open_reader("hf://org/repo/config.json", FAST).open(1)
    assert server.log[-1].headers["Authorization"] == (token and f"Bearer {token}")


def test_a_token_that_is_wanted_and_absent(server):
    with pytest.raises(errors.LocalTokenNotFoundError):
        client.hf_hub_download("org/repo", "config.json", token=True, endpoint=server.url())
    with pytest.raises(PermissionError, match="hf auth login"):
        open_reader("hf://org/repo/config.json", FAST | {"token": True})


# Rate limits


@pytest.mark.parametrize(
    ("headers", "is_asked"),
    [
        (rate_limit(55).headers, True),
        (rate_limit(0).headers, True),
        (rate_limit(55, left=3).headers, False),
        (rate_limit(55, left=3).headers | {"Retry-After": "7"}, True),
        (rate_limit(55).headers | {"Retry-After": "7"}, True),
        ({"Retry-After": "20"}, True),
        ({"Retry-After": "soon"}, False),
        ({"RateLimit": "garbage"}, False),
        ({"RateLimit": '"api" ; r = 0 ; t = 9'}, True),
        ({}, False),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_waits(server, monkeypatch, status, headers, is_asked):
    """We wait as long, and up to a tenth longer, so that many clients do not come at once."""
    answer = Answer(status, headers)
    slept, waited = [], []
    main, sleep, wait = threading.main_thread(), time.sleep, threading.Event.wait

    def slept_for(seconds):
        # Other threads sleep, too, such as the server's.
        return slept.append(seconds) if threading.current_thread() is main else sleep(seconds)

    monkeypatch.setattr(_http.time, "sleep", slept_for)
    server.limits = [answer]
    http_backoff("GET", f"{server.url()}/org/repo/resolve/main/config.json")
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", server.url())

    def noted(self, timeout=None):
        if threading.current_thread() is not main:
            return wait(self, timeout)
        return waited.append(timeout)

    server.limits = [answer]
    reader = open_reader("hf://org/repo/config.json", FAST | {"timeout": 600, "token": False})
    with monkeypatch.context() as patch:
        patch.setattr("threading.Event.wait", noted)
        reader.open(1)
    assert len(slept) == len(waited) == 1
    if is_asked and not (status == 503 and "Retry-After" not in headers):
        assert slept[0] <= waited[0] <= slept[0] + 1 + slept[0] / 10
    else:
        assert slept == [1.0]
        assert waited[0] <= 0.2


def test_a_limit_that_outlasts_the_load(server):
    server.limits = [rate_limit(250)]
    began = time.monotonic()
    error = ours("hf://org/repo/config.json")
    assert time.monotonic() - began < 5
    assert isinstance(error, ConnectionError)
    assert "the limit 'resolvers' of 5000 requests in 300 s" in str(error)
    assert "it asks to wait 251 s, more than `timeout` leaves of 9 s: try again at 20" in str(error)


# Folders


@pytest.mark.parametrize("page", [1, 2, 1000])
@pytest.mark.parametrize("folder", ["", "sub", "sub/deep", "none"])
def test_listings(server, page, folder):
    server.page = page
    names = ["a.safetensors", "b c.json", "sub/x", "sub/y%z", "sub/deep/ü", "sub/z"]
    server.add("org/many", dict.fromkeys(names, b""))
    repo = hub.Repo(Url.parse("hf://org/many"), Settings.of(FAST))
    api = client.HfApi(endpoint=server.url(), token=False)
    try:
        tree = list(api.list_repo_tree("org/many", folder or None))
    except errors.RemoteEntryNotFoundError:
        with pytest.raises(FileNotFoundError, match="no such file or folder"):
            repo.listing(folder, Pool(Settings.of(FAST)))
        return
    expected = [
        each.path.rpartition("/")[2] for each in tree if isinstance(each, client.hf_api.RepoFile)
    ]
    server.clear()
    assert repo.listing(folder, Pool(Settings.of(FAST))) == expected
    assert server.requests == -(-len(tree) // page)


# The cache


def filled(server, *files, repo="org/repo", **options):
    """Downloads files with huggingface_hub, also those that do not exist."""
    for file in files:
        try:
            client.hf_hub_download(repo, file, token=False, endpoint=server.url(), **options)
        except errors.RemoteEntryNotFoundError:
            continue


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize(
    "url",
    [
        "hf://org/repo/model.safetensors",
        "hf://models/org/repo@main/config.json",
        "hf://org/repo/sub/x.safetensors",
        "hf://org/repo/absent.safetensors",
        "hf://org/repo/not_asked.safetensors",
        "hf://org/repo@v1.0/model.safetensors",
        "hf://org/repo@refs/pr/1/config.json",
        "hf://org/repo@refs%2Fpr%2F1/config.json",
        "hf://org/repo@refs/pr/1/model.safetensors",
        f"hf://org/repo@{commit_of('main')}/model.safetensors",
        f"hf://org/repo@{commit_of('v1.0')}/model.safetensors",
        "hf://org/none/model.safetensors",
        "hf://datasets/org/repo/model.safetensors",
        "hf://datasets/org/data/config.json",
    ],
)
def test_offline(server, monkeypatch, variable, url):
    filled(server, *FILES, "absent.safetensors")
    filled(server, "config.json", revision="refs/pr/1")
    filled(server, "config.json", repo="org/data", repo_type="dataset")
    server.clear()
    monkeypatch.setenv(variable, "1")
    expected, found = theirs(server, url, local_files_only=True), ours(url)
    assert server.requests == 0
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert isinstance(expected, errors.LocalEntryNotFoundError)
    assert isinstance(found, FileNotFoundError)
    parsed = parse_hf_uri(url)
    cached = client.try_to_load_from_cache(
        parsed.id, parsed.path_in_repo, revision=parsed.revision, repo_type=parsed.type
    )
    is_known = cached is client._CACHED_NO_EXIST
    assert is_known == ("has no such file" in str(found))
    assert is_known != (f"{variable} is set: download it" in str(found))


@pytest.mark.parametrize(
    ("values", "is_offline"),
    [
        ((None, None), False), (("1", None), True), (("0", "1"), False), (("", "yes"), True),
        (("TRUE", "0"), True), ((None, "on"), True), (("no", None), False),
    ],
)  # fmt: skip
def test_who_is_offline(monkeypatch, values, is_offline):
    for name, value in zip(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), values, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    either = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE")
    assert constants._is_true(either) == hub.is_offline() == is_offline


def test_where_the_cache_is(monkeypatch, tmp_path):
    """As huggingface_hub computes it when it is imported."""
    program = "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE, c.HF_TOKEN_PATH)"
    for variables in (
        {}, {"HF_HOME": "~/h"}, {"HF_HOME": "$HOME/h", "XDG_CACHE_HOME": "/x"},
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HUB_CACHE": "~/c", "HUGGINGFACE_HUB_CACHE": "/d"}, {"HUGGINGFACE_HUB_CACHE": "/d"},
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.delenv("HF_HUB_CACHE", raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            printed = children.run(program)
            assert printed.split() == [hub.cache_folder(), os.path.join(hub.home(), "token")]
