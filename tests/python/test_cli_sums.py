"""`--sums` of the commands that write models: the file that `hash --write` writes."""

import os

import numpy as np
import pytest

from safetensors import delta
from safetensors.numpy import load_file, save_files
from support import cli, copies

MODEL = copies.tensors()


@pytest.fixture
def source(tmp_path):
    """A file, and the same model as shards."""
    save_files(MODEL, tmp_path / "shards", {"k": "v"}, max_shard_size="600kB")
    return copies.write(tmp_path / "m.safetensors", MODEL, metadata={"k": "v"})


def check(model, *words):
    """Checks the sums of a file, or of a folder; `words` as for `hash --write`."""
    path = model / "model.sums.json" if model.is_dir() else model.with_suffix(".sums.json")
    written = path.read_bytes()
    cli.output("hash", model, "--write", *words)
    assert path.read_bytes() == written
    assert b"sha256:" in written or not words


@pytest.mark.parametrize("words", [["--write"], ["--check"], ["--check", "x.sums.json"]])
def test_the_digest_of_the_whole_alone(source, words):
    """It is that of `hash` without these options, which would not heed --whole."""
    said = cli.complaint("hash", source, "--whole", *words)
    assert said == "--whole goes with neither --write nor --check"
    assert sorted(os.listdir(source.parent)) == ["m.safetensors", "shards"]


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "m.safetensors"],
        ["shard", "m.safetensors"],
        ["merge", "shards"],
        ["merge", "m.safetensors", "--layout", "canonical"],
        ["extract", "shards", "--drop", "*.0.bias"],
        ["rename", "m.safetensors", "--map", "ids=numbers"],
        ["rename", "m.safetensors", "--map", "ids=numbers", "--layout", "canonical"],
        ["merge", "m.safetensors", "--dtype", "BF16"],
    ],
)
def test_a_file(source, words):
    folder = source.parent
    name = "out.safetensors"
    if words[0] == "shard":
        folder, name = folder / "out", "model.safetensors"
    to = "out" if words[0] == "shard" else name
    command, *rest = words
    cli.output(command, rest[0], to, *rest[1:], "--sums", "xxh3-128", cwd=source.parent)
    assert {name, name.replace("safetensors", "sums.json")} <= {*os.listdir(folder)}
    check(folder / name)
    cli.output(command, rest[0], to, *rest[1:], "--sums", "sha256", "--force", cwd=source.parent)
    check(folder / name, "--algorithm", "sha256")
    cli.output(command, rest[0], to, *rest[1:], "--force", cwd=source.parent)
    assert name.replace("safetensors", "sums.json") not in os.listdir(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "m.safetensors", "out", "--max-shard-size", "600kB"],
        ["shard", "m.safetensors", "out", "--max-shard-size", "600kB"],
        ["rename", "shards", "out", "--prefix", "layer.=h."],
    ],
)
def test_shards(source, words):
    out = source.parent / "out"
    cli.output(*words, "--sums", "sha256", cwd=source.parent)
    assert {"model.sums.json", "model.safetensors.index.json"} <= {*os.listdir(out)}
    assert len(list(out.glob("*.safetensors"))) == 3
    check(out, "--algorithm", "sha256")


def test_rename_in_place_of_the_source(source):
    cli.output("hash", source, "--write")
    cli.output("rename", source, "--map", "ids=numbers", "--sums", "xxh3-128")
    check(source)


@pytest.mark.usefixtures("leases")
def test_patch(source):
    folder = source.parent
    new = {name: array + 1 if array.dtype == np.float32 else array for name, array in MODEL.items()}
    patch = folder / "p.safetensors-patch"
    delta.diff(MODEL, new, patch).close()
    out, out_folder = folder / "o.safetensors", folder / "o"
    cli.output("patch", source, patch, "--output", out, "--sums", "sha256")
    cli.output("patch", folder / "shards", patch, "--output", out_folder, "--sums", "xxh3-128")
    check(out, "--algorithm", "sha256")
    check(out_folder)
    assert copies.same(copies.read(out), new)
    assert copies.same(copies.read(out_folder), new)
    for words in (["--in-place"], ["--output", folder / "noname"]):
        said = cli.complaint("patch", source, patch, *words, "--sums", "sha256")
        assert "sums need" in said
        assert "internal error" not in said
    assert copies.same(copies.read(source), MODEL)
    bigger = {**MODEL, "new": np.zeros(3)}
    delta.diff(MODEL, bigger, patch).close()
    said = cli.complaint("patch", source, patch, "--in-place")
    assert "needs a new file" in said
    assert "internal error" not in said


@pytest.mark.parametrize("name", ["model", "foo", "foo.fp16"])
def test_a_shard_by_the_sums_of_its_model(tmp_path, name):
    """By the rule of loads, also if another model of the folder has sums."""
    arrays = {f"a{i}": np.full(100, i, "f4") for i in range(4)}
    save_files(arrays, tmp_path, max_shard_size=900, name=name, sums=True)
    save_files(arrays, tmp_path / "other", max_shard_size=900, sums=True)
    if name != "model":
        os.rename(tmp_path / "other" / "model.sums.json", tmp_path / "model.sums.json")
    shard = tmp_path / f"{name}-00001-of-00002.safetensors"
    assert load_file(shard, verify=True)
    assert f"as in {tmp_path / name}.sums.json" in cli.output("hash", shard, "--check")


def test_a_save_removes_the_sums_of_old_shards(tmp_path):
    """Those of a shard that were written by themselves, too."""
    for value in range(2):
        arrays = {f"a{i}": np.full(100, value, "f4") for i in range(4)}
        save_files(arrays, tmp_path, max_shard_size=900, sums=True)
        shard = tmp_path / "model-00001-of-00002.safetensors"
        assert load_file(shard, verify=True)
        cli.run("hash", shard, "--write")
