"""`safetensors convert --lenient`: files that the core refuses although their tensors are whole."""

import json

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, safe_open
from safetensors._cli import repair
from safetensors._cli.errors import CliError
from safetensors._cli.main import main
from safetensors.numpy import load_file, save_files
from support import cli, file_builder, hostile_cases
from support.file_builder import entry

A = np.arange(4, dtype="<f4")
B = np.arange(2, dtype="<f4") + 9
DATA = A.tobytes() + B.tobytes()
ENTRIES = {"a": entry("F32", (4,), 0, 16), "b": entry("F32", (2,), 16, 24)}
BOTH = {"a": A, "b": B}


def content(header, data=DATA):
    return file_builder.from_entries(header, data)


def with_metadata(text):
    entries = json.dumps(ENTRIES)[1:]
    return content(f'{{"__metadata__": {text}, {entries}'.encode())


HOLES = {"a": entry("F32", (4,), 2, 18), "b": entry("F32", (2,), 25, 33)}
EMPTY = {"a": entry("F32", (4,), 0, 16), "e": entry("F32", (0,), 3, 3)}
REPAIRED = {
    "after the last": (content(ENTRIES, DATA + bytes(100)), "left out 100 bytes after the last"),
    "one byte": (content(ENTRIES, DATA + b"x"), "left out 1 byte after the last tensor"),
    "holes": (
        content(HOLES, b"xx" + A.tobytes() + b"x" * 7 + B.tobytes()),
        "left out 9 bytes between tensors",
    ),
    "a number": (with_metadata('{"step": 3, "k": "v"}'), "not text as JSON: `step`"),
    "an object": (with_metadata('{"x": {"a": [1, null, true], "a": "é"}}'), "JSON: `x`"),
    "zeros at the end": (content(json.dumps(ENTRIES).encode() + bytes(3)), "the header anew"),
    "a newline at the end": (content(json.dumps(ENTRIES).encode() + b"\n"), "the header anew"),
    "a mark of the byte order": (content(b"\xef\xbb\xbf" + json.dumps(ENTRIES).encode()), "anew"),
}
TEXTS = {
    "a number": {"step": "3", "k": "v"},
    "an object": {"x": '{"a": [1, null, true], "a": "é"}'},
}


@pytest.mark.parametrize("name", REPAIRED)
def test_whole_tensors_are_written(tmp_path, name):
    """`check` names the command that repairs a file, and the command says what it did."""
    written, said = REPAIRED[name]
    path, to = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    path.write_bytes(written)
    with pytest.raises(SafetensorError):
        load_file(path)
    assert f"  `{repair.command(str(path))}` repairs it\n" in cli.output("check", path, status=1)
    done = cli.run("convert", "--lenient", path, to)
    assert done.stderr.startswith(f"safetensors: {path}: ")
    assert said in done.stderr
    found = load_file(to)
    assert {key: value.tolist() for key, value in found.items()} == {
        key: value.tolist() for key, value in BOTH.items()
    }
    with safe_open(to, "np") as file:
        assert file.metadata() == TEXTS.get(name)
    assert path.read_bytes() == written


def test_an_empty_tensor_is_anywhere(tmp_path):
    path, to = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    path.write_bytes(content(EMPTY, DATA))
    cli.run("convert", "--lenient", path, to)
    assert load_file(to)["e"].shape == (0,)


AMBIGUOUS = {
    "truncated": (content(ENTRIES, DATA[:-1]), "bytes of tensor `b` are missing"),
    "an overlap": (
        content({**ENTRIES, "b": entry("F32", (2,), 12, 20)}),
        "overlaps the one before by 4 bytes",
    ),
    "a name twice": (
        content(json.dumps(ENTRIES)[:-1].encode() + b', "a": {}}'),
        "`a` occurs 2 times",
    ),
    "a wrong shape": (content({**ENTRIES, "a": entry("F32", (3,), 0, 16)}), "takes 12 bytes by"),
    "an unknown dtype": (content({**ENTRIES, "a": entry("Q4", (4,), 0, 16)}), "`a` cannot be read"),
    "a field twice": (
        content(b'{"a":{"dtype":"F16","dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
        "states a field twice",
    ),
    "metadata twice": (with_metadata('{"k": 1, "k": 2}'), "metadata `k` has two values"),
    "metadata that is a list": (with_metadata("[1]"), "`__metadata__` is not an object"),
    "no JSON": (content(b'{"a":'), "the header cannot be read"),
    "a length beyond the end": (content(ENTRIES)[:40], "the header cannot be read"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_nothing_is_guessed(tmp_path, name):
    """The error has what the core refuses, and why this is not repaired."""
    path, to = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    path.write_bytes(AMBIGUOUS[name][0])
    said = cli.complaint("convert", "--lenient", path, to)
    assert said.startswith(f"{path}: ")
    assert "; not repaired: " in said
    assert AMBIGUOUS[name][1] in said
    assert not to.exists()
    assert "repairs it" not in cli.output("check", path, status=1)


def test_what_is_repaired_is_valid(tmp_path):
    """Hostile files are refused, or the core accepts what they are read as."""
    path, repaired = tmp_path / "m.safetensors", []
    for row in hostile_cases.LIGHT:
        path.write_bytes(row.file())
        try:
            file, remarks = repair.open_lenient(str(path))
        except (CliError, SafetensorError):
            assert row.expect != "ok", row.name
            continue
        with file:
            assert bool(remarks) == (row.expect != "ok"), row.name
            for tensor in file.tensors:
                assert len(b"".join(file.chunks(tensor))) == tensor.nbytes, row.name
        repaired += [row.name] if remarks else []
    assert len(repaired) > 10


def test_shards_and_valid_files(tmp_path):
    """Each shard is repaired; one that is valid is read as always."""
    save_files(BOTH, tmp_path / "in", max_shard_size=16)
    shards = sorted((tmp_path / "in").glob("model-*"))
    with open(shards[1], "ab") as file:
        file.write(b"tail")
    said = cli.complaint("convert", tmp_path / "in", tmp_path / "out.safetensors")
    assert "`safetensors convert --lenient` leaves out" in said
    done = cli.run("convert", "--lenient", tmp_path / "in", tmp_path / "out.safetensors")
    assert done.stderr == f"safetensors: {shards[1]}: left out 4 bytes after the last tensor\n"
    assert load_file(tmp_path / "out.safetensors").keys() == BOTH.keys()
    done = cli.run("convert", "--lenient", tmp_path / "out.safetensors", tmp_path / "2.safetensors")
    assert done.stderr == ""
    dry = cli.output("convert", "--lenient", "--dry-run", tmp_path / "in", tmp_path / "3/")
    assert "would have 2 tensors" in dry


@pytest.mark.parametrize("how", ["written to", "replaced"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_file_that_changes(tmp_path, monkeypatch, capsys, how, at):
    """After the header was read, at any later read: the result would be a mixture."""
    path, to = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    path.write_bytes(content(ENTRIES, DATA + b"x"))
    read_some, calls = repair.read_some, []

    def change(*arguments):
        calls.append(1)
        if len(calls) == at:
            new = path if how == "written to" else tmp_path / "new"
            new.write_bytes(content(ENTRIES, bytes(len(DATA)) + b"xy"))
            new.replace(path)
        return read_some(*arguments)

    monkeypatch.setattr(repair, "read_some", change)
    assert main(["convert", "--lenient", str(path), str(to)]) == 2
    assert f"{path} was replaced or written to while it was read" in capsys.readouterr().err
    assert len(calls) >= at
    assert not to.exists()


@pytest.mark.parametrize("name", ["after the last", "a number"])
def test_errors_name_the_command(tmp_path, name):
    path = tmp_path / "model.safetensors"
    path.write_bytes(REPAIRED[name][0])
    for refused in (load_file, safetensors.recover):
        with pytest.raises(SafetensorError, match="`safetensors convert --lenient`"):
            refused(path)
