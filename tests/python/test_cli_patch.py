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


def test_diff_and_patch(files):
    """The status of diff is as without --patch; patch makes B of A."""
    words = ("diff", "a.safetensors", "b.safetensors", "--patch", "q.safetensors-patch")
    printed = cli.output(*words, status=1, cwd=files)
    assert printed == cli.output(*words[:3], status=1, cwd=files)
    said = cli.output(
        "patch", "a.safetensors", "q.safetensors-patch", "--output", "c.safetensors", cwd=files
    )
    assert said == "c.safetensors: a.safetensors after the patch\n"
    assert "0 changed, 0 only in A" in cli.output(
        "diff", "b.safetensors", "c.safetensors", cwd=files
    )
    assert cli.output("diff", "a.safetensors", "a.safetensors", "--patch", "e", cwd=files)
    with delta.open_patch(files / "e") as empty:
        assert empty.names == []
    cli.output(
        "patch", "-q", "a.safetensors", "e", "p.safetensors-patch", "--output", "d", cwd=files
    )
    assert (files / "d").read_bytes() == (files / "c.safetensors").read_bytes()


def test_options_of_diff(files):
    words = ("diff", "-q", "a.safetensors", "b.safetensors", "--patch", "q.safetensors-patch")
    cli.output(*words, "--values", "set", "--digest", "sha256", status=1, cwd=files)
    with delta.open_patch(files / "q.safetensors-patch") as patch:
        assert patch.algorithm == "sha256"
        assert patch.changed("h.0.weight")[1].tolist() == [4, 60_001, 70_000]
    assert "exists; --force" in cli.complaint(*words, cwd=files)
    cli.output(*words, "--force", status=1, cwd=files)
    assert "--no-data" in cli.complaint(*words, "--no-data", "--force", cwd=files)
    assert "not standard input" in cli.complaint(
        "diff", "-", "b.safetensors", "--patch", "z", cwd=files
    )
    found = cli.complaint(
        "diff", "a.safetensors", "b.safetensors", "--patch", "z.safetensors", cwd=files
    )
    assert "must not end with .safetensors" in found


def test_already(files):
    """A patch that the model has is refused, or left out."""
    words = ("patch", "b.safetensors", "p.safetensors-patch", "--output", "c.safetensors")
    assert "has this patch already" in cli.complaint(*words, cwd=files)
    cli.output(*words, "--already", "skip", cwd=files)
    found = cli.output("diff", "b.safetensors", "c.safetensors", cwd=files)
    assert "0 changed, 0 only in A" in found


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


def test_refused(files):
    """One line names the patch and what was found; nothing is written."""
    words = ("patch", "a.safetensors", "p.safetensors-patch", "--output")
    assert "exists; --force" in cli.complaint(*words, "b.safetensors", cwd=files)
    found = cli.complaint("patch", "b.safetensors", *words[2:], "c", cwd=files)
    assert "p.safetensors-patch" in found
    wrong = (files / "a.safetensors").read_bytes()[:-1] + b"\x7f"
    file_builder.write(files / "wrong.safetensors", wrong)
    found = cli.complaint("patch", "wrong.safetensors", *words[2:], "c", cwd=files)
    assert "p.safetensors-patch: tensor `" in found
    assert "not a patch" in cli.complaint(
        "patch", *["a.safetensors"] * 2, "--output", "c", cwd=files
    )
    assert "No such file" in cli.complaint(
        "patch", "a.safetensors", "none", "--output", "c", cwd=files
    )
    assert "not URLs" in cli.complaint("patch", "https://h/a", "p", "--output", "c", cwd=files)
    assert not (files / "c").exists()


def test_ls(files):
    lines = cli.output("ls", "p.safetensors-patch", cwd=files).splitlines()
    with delta.open_patch(files / "p.safetensors-patch") as patch:
        assert lines[1].split() == ["base", patch.base, "0"]
        assert lines[2].split() == ["target", patch.target, "1"]
    rows = {line.split()[0]: line for line in lines[4:10] if line}
    assert rows["h.0.weight"].split()[1:8] == [
        "blocks", "I32", "[70,", "1000]", "3", "0.00%", rows["h.0.weight"].split()[7],
    ]  # fmt: skip
    assert rows["h.0.weight"].endswith("pos16 add8")
    assert rows["gone"].split()[1:3] == ["removed", "0"]
    assert rows["new"].split()[1:6] == ["whole", "F4", "[6]", "3", "100.00%"]
    assert "h.1.weight" not in rows
    assert lines[-1].startswith("4 tensors, 10 of 70,007 units (0.01%), ")
    found = cli.parsed("ls", "p.safetensors-patch", cwd=files)
    assert (found["base_label"], found["metadata"]) == ("0", {"step": "1"})
    assert found["tensors"][1]["codes"] == {"pos16": 2, "add8": 2}
    assert "gone" not in cli.output("ls", "--totals", "p.safetensors-patch", cwd=files)
    only = cli.output("ls", "--match", "h.*", "--sort", "size", "p.safetensors-patch", cwd=files)
    assert "1 tensor," in only
    cli.run("ls", "--match", "x", "p.safetensors-patch", cwd=files, status=1)
    assert "draws no tree" in cli.complaint("ls", "--tree", "p.safetensors-patch", cwd=files)
    with (files / "p.safetensors-patch").open("rb") as stream:
        assert "h.0.weight" in cli.output("ls", "-", cwd=files, stdin=stream)


def test_show(files):
    lines = cli.output("show", "p.safetensors-patch", "h.*", "new", cwd=files).splitlines()
    assert lines[0].startswith("h.0.weight  I32 [70, 1000]  blocks: 3 of 70,000 units (0.00%)")
    assert "blocks 2 pos16, 2 add8" in lines
    assert "elements 3, 60,000, 69,999" in lines
    assert any(line.startswith("base xxh3-128:") for line in lines)
    assert "base no such tensor" in lines
    assert lines[-1].startswith("values ")
    found = cli.parsed("show", "p.safetensors-patch", "gone", cwd=files)
    assert (found[0]["kind"], found[0]["target"]) == ("removed", None)
    assert "no tensor `x`" in cli.complaint("show", "p.safetensors-patch", "x", cwd=files)


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
