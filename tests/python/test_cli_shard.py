"""`safetensors shard`."""

import json
import os

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
