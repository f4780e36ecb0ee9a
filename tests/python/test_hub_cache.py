"""hf:// while programs are offline: the cache of huggingface_hub is read as local files are."""

import json
import os

import pytest

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_files, save_files, stream_files
from support import cli, sharded
from support.fake_hub import commit_of

torch = pytest.importorskip("torch", reason="torch is not installed")

COMMIT = commit_of("main")
TENSORS = {f"t{i}": torch.full((100,), float(i)) for i in range(6)}
INDEX = "model.safetensors.index.json"
GONE = "is set: download it by `hf download`, or unset the variable"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of org/repo in a cache, with a model of several files."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Nothing listens there.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = tmp_path / "hub" / "models--org--repo"
    save_files(TENSORS, tmp_path / "saved", max_shard_size=900)
    blobs = folder / "blobs"
    snapshot = folder / "snapshots" / COMMIT
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted((tmp_path / "saved").iterdir())):
        file.rename(blobs / f"{i:040}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i:040}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return folder


def shards(cache):
    """Returns the names of the shards."""
    names = os.listdir(cache / "snapshots" / COMMIT)
    return sorted(name for name in names if name.endswith(".safetensors"))


@pytest.mark.parametrize(
    "url", ["hf://org/repo", "hf://models/org/repo@main/", f"hf://org/repo@{COMMIT}"]
)
def test_a_model(cache, url):
    assert sharded.same(load_files(url)["t3"], TENSORS["t3"])
    assert load_files(f"{url.rstrip('/')}/{INDEX}", keys=["t1"]).keys() == {"t1"}
    assert dict(stream_files(url, storage_options={"tries": 1})).keys() == TENSORS.keys()
    with pytest.raises(SafetensorError, match="unknown name 'tris'; did you mean `tries`"):
        load_files(url, storage_options={"tris": 1})


def test_one_file(cache):
    url = f"hf://org/repo/{shards(cache)[0]}"
    assert load_file(url).keys() == load_files(url).keys()
    with safe_open(url, "pt") as f:
        assert f.keys() == [*load_file(url)]
    # Views of the file, as of any other.
    assert "t0" in cli.run("ls", url).stdout
    assert cli.run("ls", "hf://org/repo").stdout.count("100") >= 6


def test_verify(cache):
    from safetensors import sums

    snapshot = cache / "snapshots" / COMMIT
    sums.write(snapshot)
    assert load_files("hf://org/repo", verify=True).keys() == TENSORS.keys()
    assert load_file(f"hf://org/repo/{shards(cache)[0]}", verify=True)


def test_files_that_are_not_there(cache):
    first, second = shards(cache)[:2]
    (cache / "snapshots" / COMMIT / second).unlink()
    for url in ("hf://org/repo", f"hf://org/repo/{INDEX}"):
        with pytest.raises(FileNotFoundError, match=f"{second}.* lacks it, and .* {GONE}"):
            load_files(url)
        kept = [*load_file(f"hf://org/repo/{first}")]
        assert load_files(url, keys=kept).keys() == {*kept}
    with pytest.raises(
        FileNotFoundError, match=f"^hf://org/repo/{second}: .* lacks it, and .*{GONE}"
    ):
        load_file(f"hf://org/repo/{second}")
    with pytest.raises(FileNotFoundError, match="has no revision 'v2' of org/repo"):
        load_files("hf://org/repo@v2")
    with pytest.raises(FileNotFoundError, match="lacks org/none"):
        load_files("hf://org/none")
    with pytest.raises(FileNotFoundError, match="lacks datasets/org/repo"):
        load_files("hf://datasets/org/repo")


def test_what_the_hub_does_not_have(cache):
    (cache / ".no_exist" / COMMIT / "sub").mkdir(parents=True)
    (cache / ".no_exist" / COMMIT / "sub" / "x.safetensors").touch()
    with pytest.raises(
        FileNotFoundError, match="org/repo has no such file .* as the Hub's cache says"
    ):
        load_file("hf://org/repo/sub/x.safetensors")


@pytest.mark.parametrize("text", ["../../../evil", "", "main", COMMIT[:7], "\xff", COMMIT + "0"])
def test_a_ref_that_is_no_commit(cache, text):
    (cache / "refs" / "main").write_text(text)
    with pytest.raises(FileNotFoundError, match="has no revision 'main'"):
        load_files("hf://org/repo")


def test_a_snapshot_in_part_is_no_other_model(cache):
    """The cache may know all names of the Hub: the model is chosen among them."""
    snapshot = cache / "snapshots" / COMMIT
    for name in (INDEX, *shards(cache)[1:]):
        (snapshot / name).unlink()
    (snapshot / shards(cache)[0]).rename(snapshot / "adapter.safetensors")
    assert load_files("hf://org/repo")
    (cache / "trees").mkdir()
    tree = cache / "trees" / f"{COMMIT}.json"
    names = ("adapter.safetensors", "model.safetensors", "sub/other.safetensors")
    files = {name: {} for name in names}
    tree.write_text(json.dumps({"format_version": 1, "files": files}))
    with pytest.raises(FileNotFoundError, match=f"model.safetensors: .* lacks it, and .*{GONE}"):
        load_files("hf://org/repo")
    assert load_files("hf://org/repo", name="adapter")
    for damaged in (
        "",
        "[]",
        '{"format_version": 1}',
        '{"format_version": 2, "files": {}}',
        "{" * 999,
    ):
        tree.write_text(damaged)
        assert load_files("hf://org/repo")


def test_forbidden(cache, monkeypatch):
    monkeypatch.setenv("SAFETENSORS_REMOTE", "0")
    with pytest.raises(PermissionError, match="forbids reading URLs"):
        load_files("hf://org/repo")


def test_a_group_reads_it(cache):
    """Each rank reads its own cache: the ranks agree that they do."""
    from safetensors._group import opening

    assert opening._described("hf://org/repo") == "hf://org/repo in the Hub's cache"
    assert opening._described("https://h.example/m?a=b") == "https://h.example/m?a=..."
