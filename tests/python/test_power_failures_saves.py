"""Power failures within saves, replayed from their system calls: the old model or the new one."""

import os
import shutil

import pytest

import safetensors
from safetensors import SafetensorError, sums
from safetensors import numpy as stn
from support import disk_replay, model_saves

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace"),
]

SAVE_FILES = """
    import sys
    from safetensors import numpy as stn
    from support import model_saves

    folder, limit, *flags = sys.argv[1:]
    fsync, sums = (each == "True" for each in flags)
    stn.save_files(model_saves.NEW, folder, max_shard_size=int(limit), fsync=fsync, sums=sums)
"""
SAVE_FILE = """
    import sys
    from safetensors import numpy as stn
    from support import model_saves

    stn.save_file(model_saves.NEW, sys.argv[1] + "/m.safetensors", fsync=True)
"""


class Replay:
    """A save of which each state after a power failure can be looked at."""

    def __init__(self, folder, code, *args):
        self.folder = folder
        pool = folder.parent / "pool"
        pool.mkdir()
        self.pool, self.before = {}, {}
        for number, path in enumerate(sorted(folder.iterdir())):
            self.before[str(path)] = number
            self._keep(number, path, pool)
        self.events = disk_replay.record(folder, code, *args)
        for each in self.events:
            if isinstance(each, disk_replay.Change) and os.path.isfile(each.target or ""):
                self._keep(each.file, each.target, pool)  # by its last name

    def _keep(self, number, path, pool):
        self.pool[number] = pool / str(number)
        os.link(path, self.pool[number])

    def states(self, events=None):
        """Makes each state in the folder, and yields whether the save had returned."""
        events = self.events if events is None else events
        for time, state in disk_replay.states(self.before, events):
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            disk_replay.put(state, self.pool)
            yield time == len(events)


def word_of(folder):
    """Returns what a reader finds: "old", "new", or "refused" with one clear error."""
    try:
        found = model_saves.load(folder)
    except (SafetensorError, FileNotFoundError):
        return "refused"
    for word, model in (("old", model_saves.OLD), ("new", model_saves.NEW)):
        if model_saves.same(found, model):
            return word
    raise AssertionError("a mixture")


def checked(states, folder, limits, fsync):
    """Returns what readers found before the recoveries and after them."""
    words = set()
    for has_returned in states:
        words.add(word_of(folder))
        safetensors.recover(folder)
        found = model_saves.state(folder, limits)
        assert found == "new" or not (has_returned and fsync)
        words.add(f"then {found}")
    return words


@pytest.mark.parametrize("change", model_saves.CHANGES)
def test_models(tmp_path, change):
    limits = model_saves.CHANGES[change]
    fsync = limits[0] is None  # else the old model makes the save durable
    folder = tmp_path / "m"
    model_saves.make(folder, limits[0])
    replay = Replay(folder, SAVE_FILES, limits[1], fsync, False)
    assert model_saves.state(folder, limits) == "new"
    words = checked(replay.states(), folder, limits, fsync)
    assert words >= {"new", "then old", "then new"}
    assert ("old" in words) == (limits[0] is not None)


@pytest.mark.parametrize("what", ["a part", "the private folder"])
def test_without_a_flush(tmp_path, what):
    """The test above would find that one is missing."""
    limits = (model_saves.SEVEN, model_saves.THREE)
    folder = tmp_path / "m"
    model_saves.make(folder, limits[0])
    replay = Replay(folder, SAVE_FILES, limits[1], True, False)

    def is_left_out(event):
        path = event.what if isinstance(event, disk_replay.Flush) else None
        if what == "a part":
            return isinstance(path, int)
        return isinstance(path, str) and path.endswith(".save")

    events = [each for each in replay.events if not is_left_out(each)]
    assert len(events) < len(replay.events)
    with pytest.raises((AssertionError, SafetensorError, FileNotFoundError)):
        checked(replay.states(events), folder, limits, True)


def test_sums(tmp_path):
    """They are those of the model that is there, or there are none."""
    limits = model_saves.CHANGES["three shards by three"]
    folder = tmp_path / "m"
    model_saves.make(folder, None)
    stn.save_files(model_saves.OLD, folder, max_shard_size=limits[0], sums=True)
    replay = Replay(folder, SAVE_FILES, limits[1], False, True)
    found = set()
    for _ in replay.states():
        safetensors.recover(folder)
        has_sums = (folder / "model.sums.json").exists()
        if has_sums:
            assert sums.read(folder / "model.sums.json").to_bytes() == sums.make(folder).to_bytes()
        (folder / "model.sums.json").unlink(missing_ok=True)
        found.add((model_saves.state(folder, limits), has_sums))
    assert found >= {("old", True), ("new", True)}


def test_a_file(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    stn.save_file(model_saves.OLD, folder / "m.safetensors")
    replay = Replay(folder, SAVE_FILE)
    seen = []
    for has_returned in replay.states():
        arrays = stn.load_file(folder / "m.safetensors", backend="pread")
        is_new = model_saves.same(arrays, model_saves.NEW)
        assert is_new or model_saves.same(arrays, model_saves.OLD)
        assert is_new or not has_returned
        seen.append(is_new)
    assert {*seen} == {False, True}
