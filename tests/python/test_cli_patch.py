"""Patches on the command line: `diff --patch`, `patch`, and what `ls`, `show` and `check` say."""

import json
import os

import pytest

from safetensors import delta
from support import cli, copies, file_builder
from support.file_builder import raw


@pytest.fixture
def files(tmp_path):
    """The states as files, and the patch between them, in the working directory of the commands."""
    old, new = copies.patched()
    cli.write(tmp_path / "a.safetensors", old, {"step": "0"})
    cli.write(tmp_path / "b.safetensors", new, {"step": "1"})
    delta.diff(
        tmp_path / "a.safetensors",
        tmp_path / "b.safetensors",
        tmp_path / "p.safetensors-patch",
        labels=("0", "1"),
    ).close()
    return tmp_path


def test_options_of_diff(files):
    words = ("diff", "-q", "a.safetensors", "b.safetensors", "--patch", "q.safetensors-patch")
    cli.output(*words, "--values", "set", "--digest", "sha256", status=1, cwd=files)
    with delta.open_patch(files / "q.safetensors-patch") as patch:
        assert patch.algorithm == "sha256"
        assert patch.changed("h.0.weight")[1].tolist() == [4, 60_001, 70_000]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diff", "a", "b", "--values", "set"], "--values needs --patch"),
        (["diff", "a", "b", "--digest", "xxh3-128"], "--digest needs --patch"),
        (["diff", "a", "b", "--stats", "--force"], "--force needs --patch"),
        (["patch", "a", "p", "--output", "new", "--shared"], "--shared needs --in-place"),
    ],
)
def test_options_that_go_together(files, words, said):
    before = os.listdir(files)
    names = {"a": "a.safetensors", "b": "b.safetensors", "p": "p.safetensors-patch"}
    assert cli.complaint(*(names.get(word, word) for word in words), cwd=files) == said
    assert os.listdir(files) == before


def test_ls_of_standard_input(files):
    with (files / "p.safetensors-patch").open("rb") as stream:
        assert "h.0.weight" in cli.output("ls", "-", cwd=files, stdin=stream)


@pytest.mark.parametrize("verify", ["blocks", "full", "whole"])
def test_shards(tmp_path, verify):
    """A model of several files stays one of as many."""
    index = cli.sharded(tmp_path / "model")
    tensors = cli.small()
    tensors["mask"] = raw("BOOL", (5,), bytes(5))
    cli.write(tmp_path / "new.safetensors", tensors, {"format": "pt"})
    path = tmp_path / "p.safetensors-patch"
    cli.output("diff", index, tmp_path / "new.safetensors", "--patch", path, status=1)
    out = tmp_path / "out"
    cli.output("patch", tmp_path / "model", path, "--output", out, "--verify", verify)
    assert "0 changed, 0 only" in cli.output("diff", out, tmp_path / "new.safetensors")
    assert len(os.listdir(out)) == 3
    again = ("patch", tmp_path / "model", path, "--output", out)
    assert "exists; --force" in cli.complaint(*again)
    cli.output(*again, "--force", "--fsync")


def test_check(files):
    """All of a patch is checked."""
    data = (files / "p.safetensors-patch").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    _, end = header["r/h.0.weight"]["data_offsets"]
    broken = bytearray(data)
    broken[start + end - 1] ^= 1
    file_builder.write(files / "broken", bytes(broken))
    said = cli.output("check", "broken", cwd=files, status=1)
    assert said.startswith("broken: patch: ")
    assert "`h.0.weight`" in said
