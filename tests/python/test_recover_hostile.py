"""What recovery does not follow: switches, indexes, links and folders that others have made."""

import json
import os
import shutil

import numpy as np
import pytest

from safetensors import SafetensorError, recover
from safetensors import numpy as stn
from support import cli, model_saves
from support.switches import (
    INDEX,
    LIMITS,
    RANDOM,
    SAVE,
    SWITCH,
    TWO,
    interrupted,
    listing,
    make_switch,
    part,
    refused,
    switch_of,
)

HOSTILE = {
    "content": ("5", "it is not a switch file"),
    "a file of another model": (
        switch_of(old={"config.json": [1, 2, 3]}),
        "it names 'config.json', which is no file of `model`",
    ),
    "a long name": (switch_of(old={"x" * 100_000: [1, 2, 3]}), "it names 'xxx"),
    "a companion": (
        switch_of(companions=["config.json", "../config.json"]),
        "it names '../config.json', which is no companion of a model",
    ),
    "an identity": (
        switch_of(old={"model.safetensors": [1, 2]}),
        "it has a bad size, time or inode of model.safetensors",
    ),
    "lost shards": (
        switch_of(shards=3, inodes=[1, 2, 3, 4]),
        "the new model-00001-of-00003.safetensors is mis",
    ),
    "size": (" " * ((64 << 20) + 1), "it has 67,108,865 bytes, more than 67,108,864"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_switch(tmp_path, case):
    text, reason = HOSTILE[case]
    make_switch(tmp_path, text)
    refused(tmp_path, reason)


def test_switches_that_are_no_files(tmp_path):
    """A link and a pipe: refused at once."""
    target = tmp_path / "target"
    target.write_text('{"shards": 1, "old": {}}')
    folder = tmp_path / "model"
    (folder / SAVE).mkdir(0o700, parents=True)
    (folder / SWITCH).symlink_to(target)
    refused(folder, "it is a symbolic link")
    (folder / SWITCH).unlink()
    os.mkfifo(folder / SWITCH)
    refused(folder, "it is not a regular file")
    assert target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_switch_and_index(tmp_path):
    folder = tmp_path / "model"
    interrupted(folder)
    os.chown(folder / SWITCH, 12345, -1)
    refused(folder, "it belongs to another user")
    os.rename(folder / part("index"), folder / INDEX)
    shutil.rmtree(folder / SAVE)
    os.chown(folder / INDEX, 12345, -1)
    before = listing(folder)
    with pytest.raises(
        SafetensorError,
        match=rf"to another user, 12345, .* \(in .*{INDEX}\)",
    ):
        stn.save_files(model_saves.NEW, folder)
    assert listing(folder) == before


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


def test_what_is_no_save_is_in_nobodys_way(tmp_path):
    """A link, a pipe, a file and an open folder with the name of a save: recovery of the folder
    warns once, and saving works."""
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "target" / "switch").write_text("{}")
    folder = tmp_path / "model"
    folder.mkdir()
    os.symlink(tmp_path / "target", folder / f".model.{RANDOM[:-1]}0.save")
    os.mkfifo(folder / f".model.{RANDOM[:-1]}1.save")
    (folder / f".model.{RANDOM[:-1]}2.save").write_text("{}")
    (folder / f".model.{RANDOM[:-1]}3.save").mkdir()
    (folder / f".model.{RANDOM[:-1]}3.save").chmod(0o755)
    (folder / f".model.{RANDOM[:-1]}3.save" / "switch").write_text("{}")
    before = {*os.listdir(folder)}
    with pytest.warns(
        UserWarning, match=r"0\.save, .*3\.save was left alone: it is not a pri"
    ) as seen:
        assert recover(folder) == "clean"
    assert len(seen) == 1
    assert seen[0].filename == __file__
    stn.save_files(model_saves.NEW, folder, max_shard_size=model_saves.TWO)
    assert model_saves.same(model_saves.load(folder), model_saves.NEW)
    assert before < {*os.listdir(folder)}
    assert (tmp_path / "target" / "switch").read_text() == "{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_save(tmp_path):
    """Saving the model is refused, with the name of the owner; recovery of the folder warns."""
    folder = tmp_path / "model"
    interrupted(folder)
    os.chown(folder / SAVE, 12345, -1)
    before = listing(folder)
    words = r"\.save: user 12345 is saving `model`, or was interrupted: then `safetensors recover`"
    for call in (
        lambda: stn.save_files(model_saves.NEW, folder),
        lambda: recover(folder / "model.safetensors"),
    ):
        with pytest.raises(SafetensorError, match=words):
            call()
    stn.save_files(model_saves.OLD, folder, name="other")
    (folder / "other.safetensors").unlink()
    with pytest.warns(UserWarning, match="was left alone"):
        assert recover(folder) == "clean"
    assert listing(folder) == before


def test_temporary_files_that_were_removed(tmp_path):
    """By hand: what is left cannot become the new model, so the old one is not touched."""
    folder = tmp_path / "model"
    interrupted(folder, model_saves.THREE)
    for name in (part(1), part(2), part("index")):
        (folder / name).unlink()
        refused(folder, "the new model-")
        assert model_saves.same(model_saves.load(folder / INDEX), model_saves.OLD)
    shutil.rmtree(folder / SAVE)
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
        with pytest.raises(
            SafetensorError,
            match=r"it is (a symbolic link|not a regular file), so",
        ):
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


def test_files_that_are_damaged_in_another_way(tmp_path):
    """They are not clean: there is nothing to recover, but they do not open."""
    path = tmp_path / "model.safetensors"
    stn.save_file({"a": np.arange(9)}, path)
    for content in (path.read_bytes()[:-1], path.read_bytes() + b"\n", b""):
        path.write_bytes(content)
        with pytest.raises(
            SafetensorError, match="nothing to recover, but the file does not open: "
        ):
            recover(path)
    (tmp_path / INDEX).write_text('{"weight_map": 3}')
    with pytest.raises(SafetensorError, match="nothing to recover, but the file does not open: "):
        recover(tmp_path / INDEX)
    assert "does not open" in cli.complaint("recover", path)
