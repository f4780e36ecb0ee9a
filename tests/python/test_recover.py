"""Recovery after saves that were interrupted."""

import fcntl
import os
import shutil

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, recover
from safetensors import numpy as stn
from support import cli, libc_calls, model_saves, pages
from support.switches import (
    INDEX,
    LIMITS,
    RANDOM,
    SAVE,
    SWITCH,
    TWO,
    identity,
    interrupted,
    listing,
    make_switch,
    part,
    switch_of,
)


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
    for name in ("other.safetensors", "model2.safetensors", "none.json"):
        with pytest.raises(FileNotFoundError):
            recover(tmp_path / "model" / name)
    assert listing(tmp_path / "model") == before
    (tmp_path / "model" / "config.json").write_text("{}")
    assert recover(tmp_path / "model" / "config.json") == "clean"


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
    make_switch(folder, "", f".other.{RANDOM}.save")
    for name in ("00001", "00002", "index", "+config.json"):
        (folder / f".other.{RANDOM}.save" / name).touch()
    assert recover(folder) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"


def test_only_its_own_files_are_removed(tmp_path):
    """A rollback removes what is in the private folder of its save, and that."""
    kept = [
        f".model-00001.{RANDOM}.part",
        f".model.{RANDOM}.saves",
        f"model.{RANDOM}.save",
        f".model.{RANDOM[1:]}.save",
        f".other.{RANDOM}.bak",
        "model.safetensors",
    ]
    for name in kept:
        (tmp_path / name).touch()
    make_switch(tmp_path, "")
    for what in (1, 99999, "index", "sums", "+config.json"):
        (tmp_path / part(what)).touch()
    assert recover(tmp_path) == "rolled back"
    assert {path.name for path in tmp_path.iterdir()} == {*kept}


def test_an_empty_private_folder(tmp_path):
    """It was left, or belongs to a process that has just made it, and that makes another one."""
    (tmp_path / SAVE).mkdir(0o700)
    assert recover(tmp_path) == "rolled back"
    assert not os.listdir(tmp_path)


def test_a_save_whose_empty_folder_was_recovered(tmp_path):
    outcomes = []

    def make(function, args):
        if args[1] == b"switch" and args[2] & os.O_CREAT and not outcomes:
            outcomes.append(recover(tmp_path))
        return function(*args)

    with libc_calls.replaced({"openat": make}):
        stn.save_files(model_saves.NEW, tmp_path)
    assert outcomes == ["rolled back"]
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_private_folder_without_a_switch(tmp_path):
    """A process that makes the switch has it locked; else it was left."""
    (tmp_path / SAVE).mkdir(0o700)
    (tmp_path / SAVE / "00001").touch()
    held = os.open(tmp_path / SAVE, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert recover(tmp_path) == "clean"
    assert (tmp_path / SAVE).exists()
    stn.save_files(model_saves.NEW, tmp_path)  # which that process would notice
    os.close(held)
    assert recover(tmp_path) == "rolled back"
    assert os.listdir(tmp_path) == ["model.safetensors"]


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
    for name in (SAVE, INDEX):  # also if the name is another one
        os.rename(other / name, other / name.replace("model", "x"))
    assert model_saves.same(model_saves.load(other), model_saves.NEW)
    assert recover(folder) == "rolled forward"
    assert model_saves.state(folder, LIMITS) == "new"


def test_readers_of_other_models_do_not_care(tmp_path):
    """Of a default model with an index, beside a variant that is being replaced."""
    stn.save_files(model_saves.OLD, tmp_path, max_shard_size=model_saves.TWO)
    make_switch(tmp_path, "{}", f".model.fp16.{RANDOM}.save")
    assert model_saves.same(model_saves.load(tmp_path), model_saves.OLD)
    stn.save_files(model_saves.NEW, tmp_path, max_shard_size=model_saves.TWO, name="x")
    for path in tmp_path.glob("model*"):
        path.unlink()
    with pytest.raises(SafetensorError, match=r"a save of `model\.fp16` was interrupted"):
        model_saves.load(tmp_path)  # the index of x is not the model that was here


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("by", ["recover", "document"])
def test_equal_sizes_and_times(tmp_path, by, is_copied):
    """Of old and new files, as on a file system with coarse times: recovery completes the save at
    each step. A copy of the folder has other inodes, which are not compared then."""
    old = {f"layers.{i}": np.full(50, i, "f4") for i in range(4)}
    new = {name: -1 - array for name, array in old.items()}
    for done in range(5):
        for again in range(done, 5):  # recovery is stopped, too
            folder = tmp_path / f"{done}-{again}"
            folder.mkdir()
            stn.save_files(old, folder, max_shard_size=400)
            (folder / SAVE).mkdir(0o700)
            stn.save_files(new, folder / "new", max_shard_size=400)
            for i, name in enumerate((*TWO, INDEX), 1):
                os.rename(folder / "new" / name, folder / part("index" if name == INDEX else i))
            (folder / "new").rmdir()
            for path in folder.rglob("*"):
                os.utime(path, (1, 1))
            text = switch_of(
                shards=2,
                old={name: identity(folder / name) for name in (*TWO, INDEX)},
                inodes=[identity(folder / part(i))[2] for i in (1, 2, "index")],
            )
            (folder / SWITCH).write_text(text)
            kept = [path.open("rb") for path in folder.rglob("*") if path.is_file()]
            stages = [
                lambda f: (f / INDEX).unlink(),
                lambda f: os.replace(f / part(1), f / TWO[0]),
                lambda f: os.replace(f / part(2), f / TWO[1]),
                lambda f: os.replace(f / part("index"), f / INDEX),
            ]
            for stage in stages[:done]:
                stage(folder)
            if is_copied:
                shutil.copytree(folder, tmp_path / "copy")
                folder = tmp_path / "copy"
            for stage in stages[done:again]:
                stage(folder)
            recovers = recover if by == "recover" else program()
            assert recovers(folder) == "rolled forward"
            assert model_saves.same(model_saves.load(folder), new)
            assert sorted(os.listdir(folder)) == sorted([*TWO, INDEX])
            for file in kept:  # until here, no other file got their inodes
                file.close()
            if is_copied:
                shutil.rmtree(folder)


def test_companions_take_their_places(tmp_path):
    """After the model, at whatever step the save was killed; or they are removed with it."""
    for done in range(4):
        folder = tmp_path / str(done)
        interrupted(folder, companions=["config.json", "tokenizer.json"])
        if done > 0:
            for number, name in enumerate(TWO, 1):
                os.replace(folder / part(number), folder / name)
            os.replace(folder / part("index"), folder / INDEX)
        if done > 1:
            (folder / "model.safetensors").unlink()
        if done > 2:
            os.replace(folder / part("+config.json"), folder / "config.json")
        assert recover(folder) == "rolled forward"
        assert (folder / "config.json").read_text() == "new"
        assert (folder / "tokenizer.json").read_text() == "new"
        assert model_saves.same(model_saves.load(folder), model_saves.NEW)
        assert not (folder / SAVE).exists()
    interrupted(tmp_path / "back", companions=["config.json"])
    (tmp_path / "back" / SWITCH).write_text("")
    assert recover(tmp_path / "back") == "rolled back"
    assert model_saves.state(tmp_path / "back", LIMITS) == "old"


def test_a_switch_that_has_just_been_completed(tmp_path):
    """By another process, between opening and locking it: a newer save's files are not touched."""

    def lock(function, args):
        (tmp_path / SWITCH).unlink()
        return function(*args)

    make_switch(tmp_path, "")
    (tmp_path / part(1)).touch()
    with libc_calls.replaced({"flock": lock}):
        assert recover(tmp_path) == "clean"
    assert os.listdir(tmp_path / SAVE) == ["00001"]


@pytest.mark.parametrize("has_switch", [True, False])
def test_two_switches_at_the_same_time(tmp_path, has_switch):
    """Made after each process has looked for others: both give up. Without a switch yet, the other
    process will see this one's."""

    def make(function, args):
        if not (tmp_path / SAVE).exists():
            make_switch(tmp_path, "")
            if not has_switch:
                (tmp_path / SWITCH).unlink()
        return function(*args)

    with libc_calls.replaced({"mkdirat": make}):
        if not has_switch:
            stn.save_files(model_saves.NEW, tmp_path)
            return
        with pytest.raises(SafetensorError, match=r"another process is saving `model`$"):
            stn.save_files(model_saves.NEW, tmp_path)
    assert os.listdir(tmp_path) == [SAVE]


def stale(folder, name):
    """Makes a temporary file of a save that was killed."""
    path = folder / f".{name}.{RANDOM}.tmp"
    path.write_bytes(b"half")
    return path


def test_single_saves(tmp_path):
    """Their temporary files are removed if nobody has them locked."""
    path = stale(tmp_path, "a.safetensors")
    others = [
        stale(tmp_path, "b.safetensors.x"),
        stale(tmp_path, "c.bin"),
        stale(tmp_path, ".safetensors.x"),
    ]
    linked = tmp_path / f".link.safetensors.{RANDOM}.tmp"
    linked.symlink_to(others[0])
    os.mkfifo(tmp_path / f".pipe.safetensors.{RANDOM}.tmp")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert recover(tmp_path) == "clean"
    with pytest.raises(FileNotFoundError):
        recover(tmp_path / "c.safetensors")
    assert path.exists()
    assert recover(tmp_path) == "rolled back"
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == len(others) + 2
    assert recover(tmp_path / "c.bin") == "rolled back"  # asked for by name
    assert not others[1].exists()


def program():
    """Returns the recovery of the documents."""
    page = pages.Page("docs/format.md")
    assert len(page.program().splitlines()) < 60
    scope = page.run(page.program())
    return lambda folder: scope["recover"](folder, "model", RANDOM)


def test_the_program_in_the_documents(tmp_path):
    """It does at each stage what recovery does."""
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
            for recovers in (recover, program()):
                folder = tmp_path / f"{len(os.listdir(tmp_path))}"
                interrupted(folder, old)
                for stage in done:
                    stage(folder)
                words.add((recovers(folder), model_saves.state(folder, limits)))
            expected = ("rolled back", "old") if count == 2 else ("rolled forward", "new")
            assert words == {expected}


def test_nothing_to_recover(tmp_path):
    assert safetensors.recover(tmp_path) == "clean"
    for name in ("none.safetensors", INDEX, "none", "none/model.safetensors"):
        with pytest.raises(FileNotFoundError, match="none|model"):
            recover(tmp_path / name)
    stn.save_files({"a": np.arange(9), "b": np.arange(9)}, tmp_path, max_shard_size=80)
    for name in ("model.safetensors", "model-00001-of-00001.safetensors", *TWO, INDEX):
        assert recover(tmp_path / name) == "clean"  # of the model, whichever files it has now
    with pytest.raises(TypeError):
        recover(None)


def test_command(tmp_path):
    folder = tmp_path / "model"
    interrupted(folder)
    assert cli.output("recover", folder) == f"{folder}: rolled forward\n"
    assert cli.output("recover", folder) == f"{folder}: clean\n"
    assert cli.output("recover", folder, "--quiet") == ""
    assert model_saves.state(folder, LIMITS) == "new"
    make_switch(folder, "5")
    said = cli.complaint("recover", folder)
    assert said == f"it is not a switch file, so it is not followed (in {folder / SWITCH})"
    said = cli.complaint("recover", tmp_path / "none" / "x")
    assert said == f"No such file or directory: {tmp_path / 'none'}"
