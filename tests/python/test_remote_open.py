"""Files behind URLs: a file, an index, a folder; and what an index from a stranger cannot do."""

import json

import pytest

from safetensors import SafetensorError
from safetensors._remote import probes
from safetensors._remote.open import find_shards, open_reader
from support.fake_hub import FakeHub, commit_of
from support.misbehaving import MisbehavingServer
from support.servers import Answer, RangeServer, redirect

INDEX = "model.safetensors.index.json"
MODEL = "model.safetensors"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FAST = {"tries": 2, "connect_timeout": 2, "idle_timeout": 2, "timeout": 5}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SAFETENSORS_REMOTE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def index_of(*files):
    """Returns an index that puts a tensor into each file."""
    return json.dumps({"weight_map": {f"t{i}": file for i, file in enumerate(files)}}).encode()


def paths(server):
    """Returns what a server was asked for."""
    return [request.path for request in server.log]


def test_a_file():
    with RangeServer({"/d/m.safetensors": b"x" * 100}) as server:
        reader = open_reader(server.url("/d/m.safetensors"), FAST)
        shards = find_shards(server.url("/d/m.safetensors"), FAST)
        assert server.requests == 0
        assert reader.open(5) == (100, b"x" * 5)
        assert [(shard.name, shard.names, shard.index_name) for shard in shards] == [
            (server.url("/d/m.safetensors"), None, "")
        ]
        assert shards[0].open().open(5) == (100, b"x" * 5)


def test_an_index_is_one_request_and_its_files_share_a_connection():
    files = {"/d/" + INDEX: index_of("b.safetensors", "sub/a.safetensors", "b.safetensors")}
    files |= {"/d/b.safetensors": b"b" * 10, "/d/sub/a.safetensors": b"a" * 10}
    with RangeServer(files) as server:
        shards = find_shards(server.url("/d/" + INDEX) + "?sig=1", FAST)
        assert server.requests == 1
        assert [(shard.name, shard.names) for shard in shards] == [
            (server.url("/d/b.safetensors"), ["t0", "t2"]),
            (server.url("/d/sub/a.safetensors"), ["t1"]),
        ]
        assert {shard.index_name for shard in shards} == {server.url("/d/" + INDEX) + "?sig=..."}
        assert [shard.open().open(1)[1] for shard in shards] == [b"b", b"a"]
        assert [request.query for request in server.log] == ["sig=1", "", ""]
        assert server.connections == 1


@pytest.mark.parametrize(
    "name",
    [
        "../m.safetensors", "/m.safetensors", "a/../../m.safetensors", "..\\m.safetensors",
        "https://evil.example/m.safetensors", "s3://evil/m.safetensors", "file:///etc/passwd",
        "//evil.example/m", "m.safetensors?x", "m.safetensors#x", "%2e%2e/m.safetensors",
        "%2e%2e%2fm.safetensors", "m\n.safetensors", "a//b", "a/./m.safetensors", "a/.", "",
    ],
)  # fmt: skip
def test_an_index_leads_nowhere_else(name):
    """No reader is made, and nothing more is asked for."""
    with RangeServer({"/d/" + INDEX: index_of("good.safetensors", name)}) as server:
        with pytest.raises(SafetensorError, match="index.json"):
            find_shards(server.url("/d/" + INDEX), FAST)
        assert server.requests == 1


def test_a_signed_index_does_not_sign_its_files():
    with RangeServer({"/d/" + INDEX: index_of("m"), "/d/m": Answer(403)}) as server:
        shards = find_shards(server.url("/d/" + INDEX) + "?sig=1", FAST)
        with pytest.raises(
            PermissionError, match="load the folder by its own scheme, such as s3://"
        ):
            shards[0].open().open(1)
        shards = find_shards(server.url("/d/" + INDEX), FAST)
        with pytest.raises(PermissionError, match="credentials: anonymous$"):
            shards[0].open().open(1)


def test_an_index_may_be_moved_and_names_files_where_it_was_asked_for():
    """A redirect does not move the folder of its files."""
    with RangeServer({"/cdn/x": index_of("m.safetensors")}) as server:
        server.files["/d/" + INDEX] = redirect("/cdn/x")
        shards = find_shards(server.url("/d/" + INDEX), FAST)
        assert shards[0].name == server.url("/d/m.safetensors")


def test_the_total_of_an_index():
    index = json.dumps({"metadata": {"total_size": 7}, "weight_map": {"a": "x"}}).encode()
    with RangeServer({"/" + INDEX: index}) as server:
        assert [shard.total_size for shard in find_shards(server.url("/" + INDEX), FAST)] == [7]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100000])
def test_a_damaged_index(content):
    server = RangeServer({"/" + INDEX: content})
    with server, pytest.raises(SafetensorError, match="index.json"):
        find_shards(server.url("/" + INDEX), FAST)


def test_a_huge_index(monkeypatch):
    """Its size is known before it is read, and it is refused."""
    monkeypatch.setattr(probes, "_FIRST_OF_INDEX", 1000)
    monkeypatch.setattr("safetensors._json.MAX_NBYTES", 5000)
    files = {"/big.json": b" " * 5001, "/small.json": index_of("m").ljust(5000)}
    with RangeServer(files) as server:
        with pytest.raises(SafetensorError, match="has 5001 bytes; an index has at most 100 MB"):
            find_shards(server.url("/big.json"), FAST)
        assert server.bytes_sent == 1000
        assert find_shards(server.url("/small.json"), FAST)[0].names == ["t0"]
        assert server.bytes_sent == 6000
    server = MisbehavingServer("huge", {"/big.json": b""})
    with server, pytest.raises(SafetensorError, match="has 101000000 bytes; an index"):
        find_shards(server.url("/big.json"), FAST)


def test_an_index_of_a_server_without_ranges():
    with MisbehavingServer("ignores_ranges", {"/i.json": index_of("m")}) as server:
        assert find_shards(server.url("/i.json"), FAST)[0].names == ["t0"]


# Folders


def test_a_folder_with_an_index():
    """The index and the single file are asked for at once."""
    with RangeServer({"/d/" + INDEX: index_of("m"), "/d/m": b""}) as server:
        assert [shard.name for shard in find_shards(server.url("/d/"), FAST)] == [
            server.url("/d/m")
        ]
        assert sorted(paths(server)) == ["/d/" + MODEL, "/d/" + INDEX]


def test_a_folder_of_diffusers():
    """Its names are asked for if there is no `model`."""
    name = "/d/diffusion_pytorch_model.safetensors"
    with RangeServer({name: b"x"}) as server:
        shards = find_shards(server.url("/d/"), FAST)
        assert [shard.name for shard in shards] == [server.url(name)]
        assert server.requests == 4
        assert shards[0].open().open(1) == (1, b"x")
        assert server.requests == 4


def test_a_folder_with_a_model():
    """The first answer is kept: opening it sends no request."""
    with RangeServer({"/d/" + MODEL: b"x" * 100}) as server:
        shards = find_shards(server.url("/d/"), FAST)
        assert [(shard.name, shard.names) for shard in shards] == [
            (server.url("/d/" + MODEL), None)
        ]
        reader = shards[0].open()
        assert reader.name == shards[0].name
        assert reader.concurrency == 32
        assert reader.open(7) == (100, b"x" * 7)
        assert sorted(paths(server)) == ["/d/" + MODEL, "/d/" + INDEX]
        assert reader.read(90, 10) == b"x" * 10
        assert reader.open(8) == (100, b"x" * 8)
        assert server.requests == 4


@pytest.mark.parametrize("status", [403, 404])
def test_a_folder_whose_missing_files_are_denied(status):
    with RangeServer({"/d/" + INDEX: Answer(status), "/d/" + MODEL: b"x"}) as server:
        assert find_shards(server.url("/d/"), FAST)[0].open().open(1) == (1, b"x")
        server.files["/d/" + MODEL] = Answer(status)
        kind = PermissionError if status == 403 else FileNotFoundError
        with pytest.raises(kind):
            find_shards(server.url("/d/"), FAST)
        # What was denied may be there.
        server.files["/d/" + MODEL] = Answer(404)
        with pytest.raises(kind):
            find_shards(server.url("/d/"), FAST)


def test_a_signed_folder():
    with pytest.raises(SafetensorError, match=r"/d/\?sig=...: is a folder with a query") as caught:
        find_shards("https://host.example/d/?sig=cAnArY")
    assert "cAnArY" not in str(caught.value)


def test_an_empty_folder():
    server = RangeServer({})
    with (
        server,
        pytest.raises(
            FileNotFoundError, match=f"/d/: has none of {INDEX}, {MODEL}, diffusion.*, and"
        ),
    ):
        find_shards(server.url("/d/"), FAST)


def test_a_folder_is_no_file():
    with pytest.raises(SafetensorError, match="is a folder: load_files reads it"):
        open_reader("https://host.example/d/")


# The Hub


@pytest.mark.parametrize("url", ["hf://org/Llama-3.1-8B", "hf://org/Llama-3.1-8B/"])
def test_all_files_are_of_the_commit_of_the_index(url, monkeypatch):
    root = "/org/Llama-3.1-8B/resolve"
    index = Answer(200, {"X-Repo-Commit": COMMIT, "ETag": '"i"'}, index_of("m.safetensors"))
    files = {f"{root}/main/{INDEX}": index, f"{root}/{COMMIT}/m.safetensors": b"x"}
    with RangeServer(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        shards = find_shards(url, FAST)
        assert shards[0].open().open(1) == (1, b"x")
        assert shards[0].name == "hf://org/Llama-3.1-8B/m.safetensors"
        assert sorted(paths(server)) == sorted([*files, f"{root}/main/{MODEL}"])


SHARDS = [
    "x-00001-of-00003.safetensors",
    "x-00002-of-00003.safetensors",
    "x-00003-of-00003.safetensors",
]


@pytest.mark.parametrize(
    ("files", "requests", "trips"),
    [
        (["model.safetensors"], 2, 1),
        ([INDEX, "a", "b"], 2, 1),
        (["diffusion_pytorch_model.safetensors"], 3, 2),
        (["consolidated.safetensors"], 3, 2),
        (["model.fp16.safetensors", "adapter.bin"], 3, 2),
        (SHARDS, 4, 3),
    ],
)
def test_requests_that_find_a_model(files, requests, trips, monkeypatch):
    """Those of docs/loading.md: an index and a single file at once, then the list of all files."""
    contents = {file: index_of("a", "b") if file == INDEX else b"x" for file in files}
    with FakeHub(delay=0.2) as hub:
        hub.add("org/repo", contents)
        monkeypatch.setenv("HF_ENDPOINT", hub.url())
        shards = find_shards("hf://org/repo", FAST)
        assert (hub.requests, len(hub.trips())) == (requests, trips)
        assert len(shards) == max(1, len(files) - (INDEX in files or "adapter.bin" in files))


def test_shards_without_an_index_are_of_one_commit(monkeypatch):
    with FakeHub() as hub:
        hub.add("org/repo", dict.fromkeys(SHARDS, b"old"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url())
        shards = find_shards("hf://org/repo", FAST)
        hub.repositories["org/repo"].files[commit_of("main")] = dict.fromkeys(SHARDS, b"old")
        hub.repositories["org/repo"].files["main"] = dict.fromkeys(SHARDS, b"new")
        assert [bytes(shard.open().open(9)[1]) for shard in shards] == [b"old"] * 3


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("hf://org/none", PermissionError, "no repository org/none.*`hf auth login`"),
        ("hf://org/repo@nope", FileNotFoundError, "org/repo has no revision 'nope'"),
        ("hf://org/repo@a/b", FileNotFoundError, "org/repo has no revision 'a': .* written %2F"),
        ("hf://org/repo/none/", FileNotFoundError, "no such file or folder at the revision 'main'"),
        ("hf://org/gated", PermissionError, "org/gated is gated: ask for access at http://127.*"),
        ("hf://org/repo", SafetensorError, 'several models: "a" .*, "b" '),
    ],
)
def test_folders_that_have_no_model(url, kind, text, monkeypatch):
    with FakeHub() as hub:
        hub.add("org/repo", {"a.safetensors": b"", "b.safetensors": b""})
        hub.add("org/gated", {"model.safetensors": b""}, gated=True)
        monkeypatch.setenv("HF_ENDPOINT", hub.url())
        with pytest.raises(kind, match=text):
            find_shards(url, FAST)[0].open().open(1)


def test_a_mirror_that_lists_nothing(monkeypatch):
    """Its files are found by the names that are likely, as those of a web server."""
    name = "diffusion_pytorch_model.safetensors"
    with FakeHub(has_api=False) as hub:
        hub.add("org/repo", {name: b""})
        hub.add("org/other", {"x.safetensors": b""})
        monkeypatch.setenv("HF_ENDPOINT", hub.url())
        assert find_shards("hf://org/repo", FAST)[0].name == f"hf://org/repo/{name}"
        with pytest.raises(FileNotFoundError, match=f"has none of {INDEX}.*cannot be listed"):
            find_shards("hf://org/other", FAST)


@pytest.mark.parametrize(
    "page", [b"", b"{}", b"[1]", b'[{"type":"file"}]', b'[{"type":"file","path":1}]']
)
def test_a_damaged_listing(page, monkeypatch):
    with RangeServer({"/api/models/org/repo/tree/main": Answer(200, {}, page)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        with pytest.raises(SafetensorError, match="hf://org/repo@main/: "):
            find_shards("hf://org/repo", FAST)


def test_a_listing_does_not_lead_to_another_host(monkeypatch):
    """The token goes to the Hub only, and a list that never ends is an error."""
    link = {"Link": '<https://evil.example/api?cursor=2>; rel="next"'}
    path = "/api/models/org/repo/tree/main"
    with RangeServer({path: Answer(200, link, b"[]")}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        monkeypatch.setenv("HF_TOKEN", "hf_x")
        with pytest.raises(SafetensorError, match="has more than 100 pages of names"):
            find_shards("hf://org/repo", FAST)
        assert {request.path for request in server.log[2:]} == {path}
        assert [request.query for request in server.log[3:]] == ["cursor=2"] * 99


# What is not read


@pytest.mark.parametrize("open_url", [open_reader, find_shards])
def test_off(open_url, monkeypatch):
    monkeypatch.setenv("SAFETENSORS_REMOTE", "0")
    for url in ("https://h.example/m", "hf://o/r/m.st"):
        with pytest.raises(PermissionError, match="SAFETENSORS_REMOTE=0 forbids reading URLs"):
            open_url(url)


@pytest.mark.parametrize("open_url", [open_reader, find_shards])
@pytest.mark.parametrize("url", ["file:///etc/passwd", "simplecache::https://h/x", "local://x"])
def test_refused(open_url, url):
    with pytest.raises(SafetensorError):
        open_url(url)


def test_unknown_options():
    with pytest.raises(SafetensorError, match="unknown name 'tokn'; did you mean `token`"):
        open_reader("https://h.example/m", {"tokn": "x"})
