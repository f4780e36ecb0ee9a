"""`safetensors check`."""

import json
import os
import pickle
import zipfile

import pytest

from safetensors import SafetensorError
from safetensors._cli import check
from safetensors._cli.main import main
from support import cli, file_builder, hostile_cases
from support.file_builder import entry, from_entries, raw

LIGHT = hostile_cases.LIGHT
# All would take minutes.
HEAVY = [
    row
    for row in hostile_cases.HEAVY
    if row.name.removeprefix("heavy: ")
    in {
        "shape of 10,000,000 ones",
        "shape of 7,000,000 arrays",
        "one metadata key 4,000,000 times",
        "name of 40 MB",
    }
]


def test_a_good_file(tmp_path):
    """`check` prints one line and exits with 0; with --quiet it prints nothing."""
    path = cli.write(tmp_path / "m.safetensors", cli.small())
    size = path.stat().st_size
    expected = f"{path}: ok: 5 tensors, {size} B, BF16, BOOL, F32\n"
    assert cli.output("check", path) == expected
    assert cli.output("check", "--read", path) == expected
    assert cli.output("check", "--quiet", path) == ""


def truncated(cut):
    content = file_builder.to_bytes({"a": raw("F32", (2,)), "b": raw("F32", (4,))})
    return content[: len(content) - cut]


DAMAGED = {
    "truncated": (
        truncated(20),
        ["truncated?", "missing at the end: 20 bytes; whole tensors: 0 of 2"],
    ),
    "truncated in the last": (truncated(4), ["missing at the end: 4 bytes; whole tensors: 1 of 2"]),
    "truncated in the header": (truncated(80), ["truncated?"]),
    "truncated by one": (
        from_entries({"a": entry("U8", (2,), 0, 2)}, b"x"),
        ["missing at the end: 1 byte; whole tensors: 0 of 1\n"],
    ),
    "trailing-data: one byte": (truncated(0) + b"x", ["after the last tensor: 1 byte\n"]),
    "layout: a hole of one": (
        from_entries({"a": entry("U8", (1,), 0, 1), "b": entry("U8", (1,), 2, 3)}, bytes(3)),
        ["hole of 1 byte before tensor `b`, at 1 of the data"],
    ),
    "layout: an overlap of one": (
        from_entries({"a": entry("U8", (2,), 0, 2), "b": entry("U8", (2,), 1, 3)}, bytes(3)),
        ["overlaps the one before by 1 byte\n"],
    ),
    "tensor: one byte": (
        from_entries({"a": entry("U8", (1,), 0, 2)}, bytes(2)),
        ["tensor `a` takes 1 byte by its shape and type, 2 by its offsets"],
    ),
    "git-lfs-pointer": (b"version https://git-lfs.github.com/spec/v1\noid x\n", ["git lfs pull"]),
    "pickle": (pickle.dumps({"a": [1.0] * 20}, protocol=2), ["a Python pickle"]),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(100), ["a GGUF file"]),
    "html": (b"<!DOCTYPE html><html>login</html>", ["an HTML page"]),
    "json": (b'{"weight_map": {}}', ["JSON text"]),
    "trailing-data": (truncated(0) + b"xyz", ["after the last tensor: 3 bytes"]),
    "duplicate": (
        from_entries(
            "{" + ",".join(['"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'] * 3) + "}"
        ),
        ["occurs twice", "`a` occurs 3 times in the header"],
    ),
    "layout: hole": (
        from_entries({"a": entry("U8", (2,), 0, 2), "b": entry("U8", (2,), 5, 7)}, bytes(7)),
        ["a hole", "hole of 3 bytes before tensor `b`, at 2 of the data"],
    ),
    "layout: overlap": (
        from_entries({"a": entry("U8", (4,), 0, 4), "b": entry("U8", (4,), 2, 6)}, bytes(6)),
        ["an overlap", "tensor `b` overlaps the one before by 2 bytes"],
    ),
    "tensor": (
        from_entries({"b": entry("U8", (4,), 0, 4), "a": entry("F32", (3,), 4, 12)}, bytes(12)),
        ["tensor `a` takes 12 bytes by its shape and type, 8 by its offsets"],
    ),
    "header": (file_builder.with_length(b'{"a":'), ["invalid JSON"]),
    "layout: a name that says other things": (
        from_entries({"GGUF file. This is a zip": entry("U8", (4,), 1, 5)}, bytes(5)),
        ["`GGUF file. This is a zip`"],
    ),
    "no-safetensors": (b"lmgg" + bytes(40), ["this is a GGML file, older than GGUF"]),
    "truncated at once": (b"\x10\x00", ["has 2 bytes"]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_faults_are_named(tmp_path, name):
    """`check` prints a word for scripts, the core's error and details, and exits with 1."""
    content, said = DAMAGED[name]
    path = file_builder.write(tmp_path / "m.safetensors", content)
    found = cli.output("check", path, status=1)
    kind = name.partition(":")[0].partition(" ")[0]
    assert found.startswith(f"{path}: {kind}: ")
    for words in said:
        assert words in found
    (verdict,) = cli.parsed("check", path, status=1)
    assert (verdict["path"], verdict["kind"]) == (str(path), kind)


def test_a_zip_archive(tmp_path):
    """The archive is one that torch.save wrote."""
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    found = cli.output("check", path, status=1)
    assert found.startswith(f"{path}: zip: this is a zip archive, as torch.save writes")


@pytest.mark.parametrize(
    ("faults", "last"), [(10, "hole"), (11, "... and 1 more"), (40, "30 more")]
)
def test_many_faults_are_counted(tmp_path, faults, last):
    """Ten faults are listed, and the rest are counted. Holes can be left out."""
    entries = {f"t{i}": entry("U8", (1,), 2 * i + 1, 2 * i + 2) for i in range(faults)}
    path = file_builder.write(tmp_path / "m.safetensors", from_entries(entries, bytes(2 * faults)))
    lines = cli.output("check", path, status=1).splitlines()
    assert len(lines) == 12 + (faults > 10)
    assert last in lines[-2]
    assert lines[-1].endswith(" repairs it")


def test_exit_statuses(tmp_path):
    """The status is 2 if any file cannot be read; each file has its line."""
    good = cli.write(tmp_path / "good.safetensors", cli.small())
    bad = file_builder.write(tmp_path / "bad.safetensors", b"")
    *lines, total = cli.output("check", good, bad, status=1).splitlines()
    assert len(lines) == 2
    assert total == f"1 file ok, {os.path.getsize(good)} B; 1 fault"
    found = cli.output("check", good, bad, tmp_path / "none", status=2)
    said = f"none: unreadable: No such file or directory\n{total.replace('1 fault', '2 faults')}\n"
    assert found.endswith(said)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "No .safetensors files in the directory" in cli.output("check", folder, status=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_read_permission(tmp_path):
    """The error has the system's text."""
    path = cli.write(tmp_path / "m.safetensors", cli.small())
    path.chmod(0)
    assert "Permission denied" in cli.output("check", path, status=2)


def test_a_sharded_model(tmp_path):
    """`check` checks each shard and the index."""
    index = cli.sharded(tmp_path)
    *lines, total = cli.output("check", tmp_path).splitlines()
    assert len(lines) == 3
    assert total == "2 files ok, 523 B"
    assert lines[-1] == f"{index}: ok: 5 tensors in 2 shards"
    assert cli.output("check", index, "--read") == cli.output("check", index)


def edited(**changes):
    """Returns a function that changes an index."""

    def edit(index):
        parsed = json.loads(index.read_text())
        for key, value in changes.items():
            parsed[key] = {**parsed[key], **value}
        index.write_text(json.dumps(parsed))

    return edit


def drop_a_name(index):
    parsed = json.loads(index.read_text())
    del parsed["weight_map"]["mask"]
    index.write_text(json.dumps(parsed))


def lose_a_shard(index):
    (index.parent / "b.safetensors").unlink()


def cut_a_shard(index):
    shard = index.parent / "b.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])


INDEX_FAULTS = {
    "a name too many": (edited(weight_map={"x": "a.safetensors"}), "tensor `x` is not in a."),
    "a wrong shard": (
        edited(weight_map={"mask": "a.safetensors"}),
        "tensor `mask` is not in a.safetensors",
    ),
    "a name too few": (drop_a_name, "tensor `mask` of b.safetensors is not in the index"),
    "a wrong total": (
        edited(metadata={"total_size": 7}),
        "`total_size` is 7, but the tensors have 75",
    ),
    "a lost shard": (lose_a_shard, "b.safetensors: missing: the index names this file"),
    "a damaged shard": (cut_a_shard, "b.safetensors: truncated"),
    "a shard elsewhere": (
        edited(weight_map={"mask": "../b.safetensors"}),
        "puts tensor 'mask' into '../b.safetensors': not a file below the index's directory",
    ),
    "no name of a shard": (
        edited(weight_map={"mask": 1}),
        "names no file for tensor 'mask', but 1",
    ),
}


@pytest.mark.parametrize("name", INDEX_FAULTS)
def test_an_index_and_shards_that_disagree(tmp_path, name):
    """`check` prints the fault and exits with 1; commands that need one model refuse it."""
    break_it, said = INDEX_FAULTS[name]
    index = cli.sharded(tmp_path)
    break_it(index)
    assert said in cli.output("check", index, status=1)
    assert cli.complaint("hash", index)


def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, capsys):
    """It is not damaged: it could not be read."""
    path = cli.write(tmp_path / "m.safetensors", cli.small())

    def changed(*_):
        error = SafetensorError("the file became shorter")
        error.code = "file_changed"
        raise error

    monkeypatch.setattr(check, "File", changed)
    assert main(["check", str(path)]) == 2
    assert capsys.readouterr().out == f"{path}: unreadable: the file became shorter\n"


def test_every_hostile_file(tmp_path):
    """`check` agrees with the core on each row of the table, and explains each fault."""
    paths = [tmp_path / f"{i}.safetensors" for i in range(len(LIGHT))]
    for path, row in zip(paths, LIGHT, strict=True):
        path.write_bytes(row.file())
    verdicts = cli.parsed("check", *paths, status=1)
    assert len(verdicts) == len(LIGHT)
    for row, verdict in zip(LIGHT, verdicts, strict=True):
        assert (verdict["kind"] == "ok") == (row.expect == "ok"), (row.name, verdict)
        assert verdict["kind"] != "unreadable", (row.name, verdict)
        assert verdict["message"]
    lines = cli.output("check", *paths, status=1).splitlines()
    assert sum(not line.startswith("  ") for line in lines[:-1]) == len(LIGHT)


@pytest.mark.slow
def test_heavy_hostile_files(tmp_path):
    """Headers of tens of megabytes do not take gigabytes for Python objects."""
    paths = []
    assert len(HEAVY) == 4
    for row in HEAVY:
        paths.append(tmp_path / f"{len(paths)}.safetensors")
        paths[-1].write_bytes(row.file())
    status, most = cli.peak_memory("check", *paths, limit_nbytes=4 << 30)
    assert status == 1
    assert most < 700_000_000
