"""Recovery after saves that were interrupted, and what it refuses to follow."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import time

import pytest

import safetensors
from safetensors import SafetensorError, recover
from safetensors import numpy as stn
from support import cli, model_saves

RANDOM = "0123456789abcdef"
SWITCH = f".model.{RANDOM}.switch"
INDEX = "model.safetensors.index.json"
TWO = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def part(what):
    """Returns the temporary name of a shard's number, or of the index."""
    number = what if what == "index" else f"{what:05}"
    return f".model-{number}.{RANDOM}.part"


def identity(path):
    """Returns what a switch says about an old file."""
    status = os.lstat(path)
    return [status.st_size, status.st_mtime_ns]


def interrupted(folder, old=model_saves.ONE):
    """Makes a folder in which a switch to two shards is complete, and nothing else is done."""
    model_saves.make(folder, old)
    stn.save_files(model_saves.NEW, folder / "new", max_shard_size=model_saves.TWO)
    for i, name in enumerate(TWO, 1):
        os.rename(folder / "new" / name, folder / part(i))
    os.rename(folder / "new" / INDEX, folder / part("index"))
    (folder / "new").rmdir()
    replaced = [path for path in folder.iterdir() if not path.name.startswith((".", "conf"))]
    content = {"shards": 2, "old": {p.name: identity(p) for p in replaced if p.suffix != ".bak"}}
    (folder / SWITCH).write_text(json.dumps(content))
    return content


def listing(folder):
    """Returns the content of every file."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


LIMITS = (model_saves.ONE, model_saves.TWO)


@pytest.mark.parametrize("by", ["folder", "single", "shard", "index", "bytes", "relative"])
def test_forward(tmp_path, monkeypatch, by):
    folder = tmp_path / "model"
    interrupted(folder)
    path = {
        "folder": folder,
        "single": folder / "model.safetensors",
        "shard": folder / "model-00009-of-00010.safetensors",
        "index": folder / INDEX,
        "bytes": os.fsencode(folder),
        "relative": "model.safetensors",
    }[by]
    monkeypatch.chdir(folder)
    assert recover(path) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"
    assert recover(path) == "clean"


def test_another_models_file_recovers_nothing(tmp_path):
    interrupted(tmp_path / "model")
    before = listing(tmp_path / "model")
    for name in ("other.safetensors", "model2.safetensors", "config.json"):
        assert recover(tmp_path / "model" / name) == "clean"
    assert listing(tmp_path / "model") == before


@pytest.mark.parametrize("length", [0, 1, 20, -1])
def test_back(tmp_path, length):
    """A switch that is incomplete: the old model stays, and is loaded meanwhile if the switch is
    empty."""
    folder = tmp_path / "model"
    interrupted(folder)
    data = (folder / SWITCH).read_bytes()
    (folder / SWITCH).write_bytes(data[: len(data) + length if length < 0 else length])
    if length == 0:
        assert model_saves.same(model_saves.load(folder), model_saves.OLD)
    assert recover(folder) == "rolled back"
    assert model_saves.state(folder, LIMITS) == "old"


def test_every_prefix_rolls_back(tmp_path):
    folder = tmp_path / "model"
    model_saves.make(folder, model_saves.ONE)
    data = json.dumps({"shards": 2, "old": {TWO[0]: [1, 2], INDEX: [3, 4]}}).encode()
    for length in range(len(data)):
        (folder / SWITCH).write_bytes(data[:length])
        assert recover(folder) == "rolled back"
    assert model_saves.state(folder, LIMITS) == "old"


def test_saving_recovers_first(tmp_path):
    """Also a model that another name's save leaves alone."""
    folder = tmp_path / "model"
    interrupted(folder)
    before = listing(folder)
    stn.save_files(model_saves.OLD, folder, name="other")
    (folder / "other.safetensors").unlink()
    assert listing(folder) == before
    stn.save_files(model_saves.NEW, folder, max_shard_size=model_saves.THREE)
    assert model_saves.state(folder, (None, model_saves.THREE)) == "new"


def test_several_models(tmp_path):
    """Of a folder, all are recovered."""
    folder = tmp_path / "model"
    interrupted(folder)
    (folder / f".other.{RANDOM}.switch").touch()
    (folder / f".other-00001.{RANDOM}.part").touch()
    (folder / f"..other-00002.{RANDOM}.part.{RANDOM}.tmp").touch()
    assert recover(folder) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"


def test_only_its_own_files_are_removed(tmp_path):
    """A rollback removes exactly the temporary names of its save."""
    kept = [
        f".model-00001.{RANDOM[::-1]}.part",
        f".model-1.{RANDOM}.part",
        f".model-00001.{RANDOM}.part.bak",
        f"model-00001.{RANDOM}.part",
        f".other-00001.{RANDOM}.part",
        f".model-00001.{RANDOM}.parts",
        f"..model-00001.{RANDOM}.part.{RANDOM}",
        "model.safetensors",
    ]
    for name in (*kept, SWITCH, part(1), part(99999), part("index")):
        (tmp_path / name).touch()
    assert recover(tmp_path) == "rolled back"
    assert {path.name for path in tmp_path.iterdir()} == {*kept}


def test_readers_refuse_a_half_switched_folder(tmp_path):
    """Until it is recovered, at each stage without an index."""
    folder = tmp_path / "model"
    interrupted(folder)
    text = rf"^{folder}: a save of `model` was interrupted .* `safetensors recover` completes it"
    for change in (
        lambda: None,
        lambda: (folder / "model.safetensors").unlink(),
        lambda: os.rename(folder / part(1), folder / TWO[0]),
        lambda: os.rename(folder / part(2), folder / TWO[1]),
    ):
        change()
        with pytest.raises(SafetensorError, match=text):
            model_saves.load(folder)
        assert "a save of `model` was interrupted" in cli.complaint("ls", folder)
    os.rename(folder / part("index"), folder / INDEX)
    assert model_saves.same(model_saves.load(folder), model_saves.NEW)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for name in (f".model.{RANDOM}.switch", INDEX):  # also if the name is another one
        os.rename(other / name, other / name.replace("model", "x"))
    assert model_saves.same(model_saves.load(other), model_saves.NEW)
    assert recover(folder) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"


def test_a_switch_that_ends_while_a_reader_looks(tmp_path, monkeypatch):
    """The reader looks again."""
    folder = tmp_path / "model"
    interrupted(folder)

    def refuse(*_):
        recover(folder)
        raise FileNotFoundError

    monkeypatch.setattr("safetensors._shards.refuse_interrupted", refuse)
    assert model_saves.same(model_saves.load(folder), model_saves.NEW)


def test_readers_of_other_models_do_not_care(tmp_path):
    """Of a default model with an index, beside a variant that is being replaced."""
    stn.save_files(model_saves.OLD, tmp_path, max_shard_size=model_saves.TWO)
    (tmp_path / f".model.fp16.{RANDOM}.switch").write_text("{}")
    assert model_saves.same(model_saves.load(tmp_path), model_saves.OLD)
    stn.save_files(model_saves.NEW, tmp_path, max_shard_size=model_saves.TWO, name="x")
    for path in tmp_path.glob("model*"):
        path.unlink()
    with pytest.raises(SafetensorError, match=r"a save of `model\.fp16` was interrupted"):
        model_saves.load(tmp_path)  # the index of x is not the model that was here
    for name in (".notes.switch", f".{RANDOM}.switch", "a.switch", ".x.0123.switch"):
        (tmp_path / name).write_text("{}")
    (tmp_path / f".model.fp16.{RANDOM}.switch").unlink()
    assert model_saves.same(model_saves.load(tmp_path), model_saves.NEW)


def refused(folder, reason):
    """Checks that recovery, and saving, refuse the switch and change nothing."""
    before = sorted(os.listdir(folder))
    for call in (lambda: recover(folder), lambda: stn.save_files(model_saves.NEW, folder)):
        with pytest.raises(SafetensorError) as caught:
            call()
        path = str(folder / SWITCH)
        assert str(caught.value).startswith(f"{path} is not followed: {reason}")
        assert len(str(caught.value)) < len(path) + 300
    assert sorted(os.listdir(folder)) == before


HOSTILE = {
    "a number": ("5", "it is not a switch file"),
    "a list": ("[]", "it is not a switch file"),
    "no old files": ('{"shards": 1}', "it is not a switch file"),
    "more": ('{"shards": 1, "old": {}, "x": 1}', "it is not a switch file"),
    "no shards": ('{"shards": 0, "old": {}}', "it has a bad number of shards: 0"),
    "shards below none": ('{"shards": -1, "old": {}}', "it has a bad number of shards: -1"),
    "many shards": ('{"shards": 100000, "old": {}}', "it has a bad number of shards: 100000"),
    "huge shards": ('{"shards": 1e999, "old": {}}', "it has a bad number of shards: inf"),
    "true shards": ('{"shards": true, "old": {}}', "it has a bad number of shards: True"),
    "text shards": ('{"shards": "1", "old": {}}', "it has a bad number of shards: 1"),
    "old list": ('{"shards": 1, "old": ["x"]}', "its list of old files is not an object"),
    "deep": ('{"shards":' + "[" * 1_000_000, "it is nested too deeply"),
    "deep objects": ('{"shards":' * 1_000_000, "it is nested too deeply"),
    "lost shards": ('{"shards": 3, "old": {}}', "the new model-00001-of-00003.safetensors is mis"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_switch(tmp_path, case):
    text, reason = HOSTILE[case]
    (tmp_path / SWITCH).write_text(text)
    refused(tmp_path, reason)


NAMES = [
    "", ".", "..", "/etc/passwd", "../model.safetensors", "sub/model.safetensors", "config.json",
    "model.safetensors/", "./model.safetensors", "other.safetensors", ".model.safetensors",
    "model-00001-of-00002.safetensors.bak", "model-1-of-2.safetensors", "model.safetensors\0",
    "model-00001-of-00002.safetensors\n", "a\\model.safetensors", "model.safetensors.index.json ",
    "model-\u0660\u0660\u0660\u0660\u0660-of-00002.safetensors", SWITCH, "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:40])
def test_hostile_names(tmp_path, name):
    """Only the files of the model may be named."""
    for other in ("config.json", "other.safetensors"):
        (tmp_path / other).touch()
    found = identity(tmp_path / "config.json")
    (tmp_path / SWITCH).write_text(json.dumps({"shards": 1, "old": {name: found}}))
    refused(tmp_path, f"it names {name[:100]!r}, which is no file of `model`")


@pytest.mark.parametrize("found", [None, 1, [], [1], [1, 2, 3], [1, 2.0], [True, 1], ["1", 2]])
def test_hostile_identities(tmp_path, found):
    (tmp_path / SWITCH).write_text(json.dumps({"shards": 1, "old": {"model.safetensors": found}}))
    refused(tmp_path, "it has a bad size or time of model.safetensors")


def test_a_name_twice(tmp_path):
    """Counts once; which identity is meant does not matter, as one of them is wrong."""
    folder = tmp_path / "model"
    interrupted(folder)
    good = identity(folder / "model.safetensors")
    text = '{"shards": 2, "old": {"model.safetensors": %s, "model.safetensors": [1, 2]}}'
    (folder / SWITCH).write_text(text % good)
    refused(folder, "model.safetensors was changed after the save was interrupted")


def test_switches_that_are_no_files(tmp_path):
    """A link, a pipe, a directory, a socket: refused at once."""
    import socket

    target = tmp_path / "target"
    target.write_text('{"shards": 1, "old": {}}')

    def bind(path):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.basename(path))

    folder = tmp_path / "model"
    folder.mkdir()
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket is short
    try:
        for make in (lambda path: os.symlink(target, path), os.mkfifo, os.mkdir, bind):
            make(folder / SWITCH)
            refused(folder, "it is not a regular file")
            (shutil.rmtree if (folder / SWITCH).is_dir() else os.unlink)(folder / SWITCH)
    finally:
        os.chdir(here)
    assert target.exists()


def test_a_huge_switch(tmp_path):
    with open(tmp_path / SWITCH, "wb") as file:
        file.truncate((64 << 20) + 1)
    refused(tmp_path, "it has 67,108,865 bytes, more than 67,108,864")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_switch_and_index(tmp_path):
    folder = tmp_path / "model"
    interrupted(folder)
    os.chown(folder / SWITCH, 12345, -1)
    refused(folder, "it belongs to another user")
    (folder / SWITCH).unlink()
    os.rename(folder / part("index"), folder / INDEX)
    os.chown(folder / INDEX, 12345, -1)
    before = listing(folder)
    with pytest.raises(SafetensorError, match=rf"{INDEX} is not followed: it belongs to another"):
        stn.save_files(model_saves.NEW, folder)
    assert listing(folder) == before


def test_names_are_no_switches(tmp_path):
    """Names that do not fit are other programs' files."""
    names = [
        f"model.{RANDOM}.switch",
        f"..{RANDOM}.switch",
        f"...{RANDOM}.switch",
        f"..hidden.{RANDOM}.switch",
        f".a\\b.{RANDOM}.switch",
        f".model.{RANDOM[1:]}.switch",
        f".model.{RANDOM.upper()}.switch",
        f".model.{RANDOM}.switch~",
    ]
    for name in names:
        (tmp_path / name).write_text("{}")
    assert recover(tmp_path) == "clean"
    assert len(os.listdir(tmp_path)) == len(names)


def test_a_model_that_was_saved_since(tmp_path):
    """By another program, over an interrupted save: it is not replaced by the older one."""
    folder = tmp_path / "model"
    interrupted(folder)
    stn.save_file(model_saves.OLD, folder / "model.safetensors", {"newer": "yes"})
    before = listing(folder)
    refused(folder, "model.safetensors was changed after the save was interrupted")
    assert listing(folder) == before
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text("{}")
    refused(folder, f"{INDEX} was changed after the save was interrupted")
    (folder / INDEX).unlink()
    (folder / TWO[1]).write_text("")
    refused(folder, f"{TWO[1]} was changed after the save was interrupted")
    (folder / TWO[1]).unlink()
    assert recover(folder) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"


def test_temporary_files_that_were_removed(tmp_path):
    """By hand: what is left cannot become the new model, so the old one is not touched."""
    folder = tmp_path / "model"
    interrupted(folder, model_saves.THREE)
    for name in (part(1), part(2), part("index")):
        (folder / name).unlink()
        refused(folder, "the new model-")
        assert model_saves.same(model_saves.load(folder / INDEX), model_saves.OLD)
    (folder / SWITCH).unlink()
    assert model_saves.state(folder, (model_saves.THREE, model_saves.TWO)) == "old"


def test_hostile_old_index(tmp_path):
    """Only files are removed that it names and that have the name of a shard."""
    kept = ["config.json", "other.safetensors", "model-1-of-2.safetensors", "x.safetensors"]
    for name in (*kept, *TWO, "model-00003-of-00004.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / TWO[0]).touch()
    named = [*kept, *TWO, f"sub/{TWO[0]}", "model-00007-of-00009.safetensors"]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {name: name for name in named}}))
    stn.save_files(model_saves.NEW, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    # Nothing names the third of four shards, so it is not this model's.
    assert left == {*kept, "sub", "model.safetensors", "model-00003-of-00004.safetensors"}
    assert (tmp_path / "sub" / TWO[0]).exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"weight_map": {"a": "../x"}}', '{"weight_map":' + "[" * 100_000]
)
def test_a_damaged_old_index(tmp_path, text):
    """Is refused before anything is written."""
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(SafetensorError, match=INDEX):
        stn.save_files(model_saves.NEW, tmp_path)
    assert os.listdir(tmp_path) == [INDEX]


def test_an_old_index_that_is_no_file(tmp_path):
    (tmp_path / "target").write_text(json.dumps({"weight_map": {"a": TWO[0]}}))
    for make in (lambda path: os.symlink(tmp_path / "target", path), os.mkfifo):
        make(tmp_path / INDEX)
        with pytest.raises(SafetensorError, match=r"is not followed: it is not a regular file"):
            stn.save_files(model_saves.NEW, tmp_path)
        (tmp_path / INDEX).unlink()


def test_links_are_replaced_and_not_followed(tmp_path):
    """As in the cache of huggingface_hub, where the files of a model are links."""
    folder = tmp_path / "model"
    stn.save_files(model_saves.OLD, folder, max_shard_size=model_saves.TWO)
    for name in TWO:
        os.rename(folder / name, tmp_path / name)
        os.symlink(tmp_path / name, folder / name)
    before = {name: (tmp_path / name).read_bytes() for name in TWO}
    stn.save_files(model_saves.NEW, folder, max_shard_size=model_saves.TWO)
    assert model_saves.same(model_saves.load(folder), model_saves.NEW)
    assert {name: (tmp_path / name).read_bytes() for name in TWO} == before
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_switch_that_has_just_been_completed(tmp_path, monkeypatch):
    """By another process, between opening and locking it: a newer save's files are not touched."""

    def lock(_):
        (tmp_path / SWITCH).unlink()
        return True

    (tmp_path / SWITCH).touch()
    (tmp_path / part(1)).touch()
    monkeypatch.setattr("safetensors._recovery.lock", lock)
    assert recover(tmp_path) == "clean"
    assert os.listdir(tmp_path) == [part(1)]


def test_two_switches_at_the_same_time(tmp_path, monkeypatch):
    """Made after each process has looked for others: both give up."""
    with open(tmp_path / SWITCH, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr("safetensors._recovery.recover_model", lambda *_: None)
        with pytest.raises(SafetensorError, match=r"another process is saving `model`$"):
            stn.save_files(model_saves.NEW, tmp_path)
        assert os.listdir(tmp_path) == [SWITCH]


def stale(folder, name, age=61):
    """Makes a temporary file of a save that was killed `age` seconds ago."""
    path = folder / f".{name}.{RANDOM}.tmp"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_single_saves(tmp_path):
    """Their temporary files are removed if nobody has them locked and they are a minute old."""
    path = stale(tmp_path, "a.safetensors")
    others = [
        stale(tmp_path, "b.safetensors", age=30),
        stale(tmp_path, "c.bin"),
        stale(tmp_path, ".safetensors.x"),
    ]
    linked = tmp_path / f".link.safetensors.{RANDOM}.tmp"
    linked.symlink_to(others[0])
    os.mkfifo(tmp_path / f".pipe.safetensors.{RANDOM}.tmp")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert recover(tmp_path) == "clean"
    assert recover(tmp_path / "c.safetensors") == "clean"
    assert path.exists()
    assert recover(tmp_path) == "rolled back"
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == len(others) + 2
    assert recover(tmp_path / "c.bin") == "rolled back"  # asked for by name
    assert not others[1].exists()


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "format.md"


def test_the_program_in_the_documents(tmp_path):
    """It does at each stage what recovery does."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(program.splitlines()) < 60
    scope = {}
    exec(compile(program, PAGE, "exec"), scope)
    for old in (model_saves.ONE, model_saves.THREE):
        limits = (old, model_saves.TWO)
        first = "model.safetensors" if old == model_saves.ONE else INDEX
        stages = [lambda _: None, lambda f: (f / SWITCH).write_bytes(b"")]
        stages += [lambda f, first=first: (f / first).unlink()]
        stages += [lambda f, i=i: os.replace(f / part(i), f / TWO[i - 1]) for i in (1, 2)]
        stages += [lambda f: os.replace(f / part("index"), f / INDEX)]
        for count in range(1, len(stages) + 1):
            done = [stages[0], stages[1]] if count == 2 else [stages[0], *stages[2:count]]
            words = set()
            for recovers in (recover, lambda folder: scope["recover"](folder, "model", RANDOM)):
                folder = tmp_path / f"{len(os.listdir(tmp_path))}"
                interrupted(folder, old)
                for stage in done:
                    stage(folder)
                words.add((recovers(folder), model_saves.state(folder, limits)))
            expected = ("rolled back", "old") if count == 2 else ("rolled forward", "new")
            assert words == {expected}


def test_nothing_to_recover(tmp_path):
    assert safetensors.recover(tmp_path) == "clean"
    assert recover(tmp_path / "none.safetensors") == "clean"
    with pytest.raises(FileNotFoundError):
        recover(tmp_path / "none" / "model.safetensors")
    with pytest.raises(TypeError):
        recover(None)


def test_command(tmp_path):
    folder = tmp_path / "model"
    interrupted(folder)
    assert cli.output("recover", folder) == f"{folder}: rolled forward\n"
    assert cli.output("recover", folder) == f"{folder}: clean\n"
    assert cli.output("recover", folder, "--quiet") == ""
    assert model_saves.state(folder, LIMITS) == "new"
    (folder / SWITCH).write_text("5")
    said = cli.complaint("recover", folder)
    assert said == f"{folder / SWITCH} is not followed: it is not a switch file"
    said = cli.complaint("recover", tmp_path / "none" / "x")
    assert said == f"{tmp_path / 'none'}: No such file or directory"
