"""`safetensors shard`."""

import json
import os
import resource
import signal

import pytest

from safetensors._cli.text import natural_key
from safetensors.numpy import save_files
from support import cli, copies

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(tmp_path):
    """A file of blocks."""
    return copies.write(tmp_path / "m.safetensors", copies.tensors(), metadata={"k": "v"})


def test_shards_hold_the_model(tmp_path, source):
    """Every shard begins with a block and has the metadata; together they are the model."""
    out = tmp_path / "out"
    said = cli.output("shard", source, out, "--max-shard-size", "600kB")
    assert said == f"{out}: 13 tensors, 1.6 MB, 3 shards\n"
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(out)) == [*shards, INDEX]
    assert copies.same(copies.read(out), copies.tensors())
    for name in shards:
        assert copies.data_offset(out / name) % 4096 == 0
        assert cli.parsed("meta", out / name) == {"k": "v"}
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in copies.tensors().values())
    again = tmp_path / "again"
    cli.run("shard", out, again, "--max-shard-size", "1MB", "--fsync")
    assert copies.same(copies.read(again), copies.tensors())


def test_canonical_shards_are_those_of_save_files(tmp_path, source):
    """With --layout canonical they have the same bytes."""
    model = copies.tensors()
    names = cli.parsed("ls", source)["files"][0]["tensors"]
    assert {each["name"] for each in names} == model.keys()
    cli.run("shard", source, tmp_path / "a", "--max-shard-size", "600kB", "--layout", "canonical")
    ordered = {name: model[name] for name in sorted(model, key=natural_key)}
    save_files(ordered, tmp_path / "b", {"k": "v"}, max_shard_size="600kB")
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "b"))
    for name in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_one_shard(tmp_path, source):
    """A model within the limit, 5 GB by default, is one file without an index."""
    cli.run("shard", source, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]
    assert copies.same(copies.read(tmp_path / "out"), copies.tensors())


def test_dry_run(tmp_path, source):
    """It says what would be written and shared, and writes nothing."""
    out = tmp_path / "out"
    lines = cli.output("shard", source, out, "--max-shard-size", "600kB", "--dry-run").splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        f"{out}/model-00001-of-00003.safetensors: 6 tensors, 529.1 kB, of which up to 524.3 kB can "
        "share disk space with the source"
    )
    assert lines[3] == f"{out}: would have 13 tensors, 1.6 MB, 3 shards; nothing was written"
    assert os.listdir(tmp_path) == ["m.safetensors"]
    cast = cli.output("shard", source, out, "--dtype", "F16", "--dry-run").splitlines()
    assert "up to 0 B can share" in cast[0]
    assert "13 tensors, 791.8 kB" in cast[0]


def test_an_old_model_is_replaced_as_a_whole(tmp_path, source):
    """Only with --force; its mode is kept."""
    out = tmp_path / "out"
    words = ["shard", source, out, "--max-shard-size", "600kB"]
    cli.run(*words)
    for name in os.listdir(out):
        (out / name).chmod(0o640)
    assert "exists; --force replaces it" in cli.complaint(*words)
    cli.run(*words, "--force", "--layout", "canonical")
    first = out / "model-00001-of-00003.safetensors"
    assert copies.data_offset(first) < 4096
    assert first.stat().st_mode & 0o777 == 0o640
    assert copies.same(copies.read(out), copies.tensors())
    words[-1] = "1GB"
    assert "two models in one folder get mixed up" in cli.complaint(*words, "--force")


def test_a_failure_leaves_nothing(tmp_path):
    """If a shard cannot be written, no file and no folder is left."""
    source = copies.write(tmp_path / "m.safetensors", copies.tensors())

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    words = ["shard", source, tmp_path / "out", "--max-shard-size", "300kB"]
    cli.run(*words, preexec_fn=limit)
    words[-1] = "600kB"
    words[2] = tmp_path / "other"
    assert "File too large" in cli.complaint(*words, preexec_fn=limit)
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "out"]
