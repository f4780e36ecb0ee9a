"""Patches on the command line: `diff --patch`, `patch`, and what `ls`, `show` and `check` say."""

import json
import os

import numpy as np
import pytest

from safetensors import delta
from support import cli, file_builder
from support.file_builder import Raw, raw


def states():
    """Returns two states: a tensor changes, one stays, one comes, one goes, one gets a dtype."""
    long = np.arange(70_000, dtype="<i4")
    old = {
        "h.0.weight": Raw("I32", (70, 1000), long.tobytes()),
        "h.1.weight": raw("BF16", (50,)),
        "gone": raw("F32", (3,)),
        "type": raw("I8", (4,)),
    }
    long[[3, 60_000, 69_999]] += 1
    new = {
        "h.0.weight": Raw("I32", (70, 1000), long.tobytes()),
        "h.1.weight": old["h.1.weight"],
        "new": raw("F4", (6,)),
        "type": raw("U8", (4,)),
    }
    return old, new


@pytest.fixture
def files(tmp_path):
    """The states as files, and the patch between them, in the working directory of the commands."""
    old, new = states()
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
    said = cli.output("check", "p.safetensors-patch", cwd=files)
    assert said.startswith("p.safetensors-patch: ok: a patch, 4 tensors, ")
    data = (files / "p.safetensors-patch").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    begin, end = header["r/h.0.weight"]["data_offsets"]
    for at in (begin, begin + 40, end - 1):
        broken = bytearray(data)
        broken[start + at] ^= 1
        file_builder.write(files / "broken", bytes(broken))
        said = cli.output("check", "broken", cwd=files, status=1)
        assert said.startswith("broken: patch: ")
        assert "`h.0.weight`" in said
    file_builder.write(files / "broken", data[:-1])
    assert cli.output("check", "broken", cwd=files, status=1).startswith("broken: truncated: ")


def test_hostile_names(tmp_path):
    """Names and labels cannot control the terminal."""
    old = {"a\x1b[31m\nb": np.zeros(2), "gone\x07": np.zeros(1)}
    path = tmp_path / "p.safetensors-patch"
    new = {"a\x1b[31m\nb": np.ones(2)}
    delta.diff(old, new, path, labels=("\x1b]0;x\x07", None)).close()
    for words in (["ls"], ["show", "*"], ["check"]):
        printed = cli.output(words[0], path, *words[1:])
        assert "\x1b" not in printed
        assert "\x07" not in printed
