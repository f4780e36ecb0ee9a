"""Folders in which a save stopped while its files took their places."""

import json
import os

import pytest

from safetensors import SafetensorError, recover
from safetensors import numpy as stn
from support import model_saves

RANDOM = "0123456789abcdef"
SAVE = f".model.{RANDOM}.save"
SWITCH = f"{SAVE}/switch"
INDEX = "model.safetensors.index.json"
TWO = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def part(what):
    """Returns the place of a shard's number, or of the index, before it has its name."""
    return f"{SAVE}/{what if isinstance(what, str) else f'{what:05}'}"


def identity(path):
    """Returns what a switch says about an old file."""
    status = os.lstat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def make_switch(folder, text, save=SAVE):
    """Writes a switch of a save without parts."""
    (folder / save).mkdir(0o700, exist_ok=True)
    (folder / save / "switch").write_text(text)


def switch_of(**fields):
    """Returns the text of a switch to one file, with these fields instead of its own."""
    return json.dumps({"shards": 1, "old": {}, "inodes": [1], "companions": [], **fields})


def interrupted(folder, old=model_saves.ONE, companions=()):
    """Makes a folder in which a switch to two shards is complete, and nothing else is done."""
    model_saves.make(folder, old)
    (folder / SAVE).mkdir(0o700)
    stn.save_files(model_saves.NEW, folder / "new", max_shard_size=model_saves.TWO)
    for i, name in enumerate(TWO, 1):
        os.rename(folder / "new" / name, folder / part(i))
    os.rename(folder / "new" / INDEX, folder / part("index"))
    (folder / "new").rmdir()
    for name in companions:
        (folder / SAVE / f"+{name}").write_text("new")
    replaced = [path for path in folder.iterdir() if not path.name.startswith((".", "conf"))]
    content = {
        "shards": 2,
        "old": {p.name: identity(p) for p in replaced if p.suffix != ".bak"},
        "inodes": [os.lstat(folder / part(i)).st_ino for i in (1, 2, "index")],
        "companions": [*companions],
    }
    (folder / SWITCH).write_text(json.dumps(content))
    return content


def listing(folder):
    """Returns the content of every file."""
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


LIMITS = (model_saves.ONE, model_saves.TWO)


def refused(folder, reason):
    """Checks that recovery, and saving, refuse the switch and change nothing."""
    before = sorted(os.listdir(folder))
    for call in (lambda: recover(folder), lambda: stn.save_files(model_saves.NEW, folder)):
        with pytest.raises(SafetensorError) as caught:
            call()
        path = str(folder / SWITCH)
        assert reason in str(caught.value)
        assert path in str(caught.value)
        assert len(str(caught.value)) < len(path) + 300
    assert sorted(os.listdir(folder)) == before
