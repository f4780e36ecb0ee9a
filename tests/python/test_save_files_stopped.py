"""A save of a model that is killed, fails or is interrupted leaves the old model or the new one."""

import json
import os
import pathlib
import tempfile
import time

import numpy as np
import pytest

import safetensors
from safetensors import numpy as stn
from safetensors._saving.model_files import ModelFiles
from support import children, forked, libc_calls, model_saves, replaced_calls
from support.model_saves import CHANGES
from support.threads import together

INDEX = b"model.safetensors.index.json"


@pytest.fixture(scope="module")
def memory():
    """A folder in memory, where the system has one: the saves flush files hundreds of times."""
    root = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=root) as folder:
        yield pathlib.Path(folder)


# Forks for each kill, which a process with threads should not.
KILLED = """
    import json, pathlib
    from support import model_saves
    seen = {}
    for change in sys.argv[2:]:
        folder = pathlib.Path(sys.argv[1]) / change
        seen[change] = model_saves.kill_at_each(folder, change, fsync="nothing" in change)
    print(json.dumps(seen))
"""


SLOW = ["three shards by three", "one file by one", "nothing by one file"]
QUICK = [change for change in CHANGES if change not in SLOW]


@pytest.mark.parametrize(
    "changes", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_kill_at_each_call(memory, changes):
    """Before recovery, the old model, the new one or a clean error; after it, the old or the new
    one, whole, and nothing else. (The checks are in model_saves.)"""
    found = json.loads(children.run(KILLED, memory / "killed", *changes))
    assert [*found] == changes
    for change, seen in found.items():
        outcomes = {tuple(each) for each in seen}
        expected = {("old", "clean"), ("old", "rolled back")}
        expected |= {("new", "clean"), ("new", "rolled back")}
        if change not in ("one file by one", "nothing by one file"):  # a rename, and no switch
            expected.add(("new", "rolled forward"))
        assert outcomes == expected, change
        assert len(seen) >= (8 if change.endswith(("one", "one file")) else 20)


@pytest.mark.parametrize("change", CHANGES)
def test_fail_at_each_call(memory, change):
    """If one call fails, nothing is left behind. A failure after the first old file is gone is
    mended, if it was passing."""
    limits = CHANGES[change]
    words = []
    for at, number, folder in model_saves.each(
        memory / f"failed-{change}", change, model_saves.ERRNOS
    ):
        steps = model_saves.Steps(at, replaced_calls.fail(number))
        error = model_saves.errors_of(folder, limits, steps)
        word = model_saves.state(folder, limits)
        assert word == "new" or issubclass(error, OSError), (at, number)
        words.append(word)
        assert safetensors.recover(folder) == "clean"
    assert words[0] == "old"
    assert words[-1] == "new"


class Calls(replaced_calls.Steps):
    """What Python does of a save."""

    OTHERS = (
        ("begin", ModelFiles, "__init__"),
        ("save", stn, "save_file"),
        ("commit", ModelFiles, "commit"),
    )


@pytest.mark.parametrize("change", CHANGES)
def test_interrupt_at_each_call(memory, change):
    """Ctrl-C undoes the save or, once the new model is complete, is raised then. (Within a call,
    the compiled module looks for it at each step: tests/cpp/test_model_writer.cpp.)"""
    limits = CHANGES[change]
    words = []
    for mode in (replaced_calls.interrupt_before, replaced_calls.interrupt_after):
        error, at = KeyboardInterrupt, 0
        while error is not None:
            at += 1
            folder = memory / f"interrupted-{change}-{mode.__name__}-{at}"
            model_saves.make(folder, limits[0])
            steps = Calls(at, mode)
            error = model_saves.errors_of(folder, limits, steps)
            assert error is (KeyboardInterrupt if at <= steps.count else None)
            words.append(model_saves.state(folder, limits))
            assert safetensors.recover(folder) == "clean"
    assert {*words} == {"old", "new"}
    assert words.count("new") == 3


def test_a_refusal_before_anything_is_gone(memory):
    """Of the system, to remove the first old file, and for good: nothing happens."""
    limits = CHANGES["three shards by seven"]
    folder = memory / "refused"
    model_saves.make(folder, limits[0])

    def refuse(name, function, args):
        if name == "remove" and args[1] == INDEX:
            raise PermissionError(1, "no")
        return function(*args)

    steps = model_saves.Steps(1, refuse, to_the_end=True)
    assert issubclass(model_saves.errors_of(folder, limits, steps), PermissionError)
    assert model_saves.state(folder, limits) == "old"


def complete_switch(act):
    """Returns a context in which `act(function, args)` is called when a switch is complete."""

    def call(function, args):
        return act(function, args) if args[1] == 0o1700 else function(*args)

    return libc_calls.replaced({"fchmod": call})


@pytest.mark.parametrize("index", [False, True])
def test_another_program_changes_the_old_model_meanwhile(memory, index):
    """While the new files are flushed: the save is refused and leaves nothing, and the next one
    succeeds."""
    limits = CHANGES["three shards by seven"]
    folder = memory / f"changed {index}"
    model_saves.make(folder, limits[0])

    def change(function, args):
        old = max(folder.glob("model*.json" if index else "model-00001-*.safetensors"))
        (folder / "copy").write_bytes(old.read_bytes())
        os.replace(folder / "copy", old)
        return function(*args)

    with (
        complete_switch(change),
        pytest.raises(safetensors.SafetensorError, match="was changed after the save"),
    ):
        stn.save_files(model_saves.NEW, folder, max_shard_size=limits[1])
    assert model_saves.state(folder, limits) == "old"
    stn.save_files(model_saves.NEW, folder, max_shard_size=limits[1])
    assert model_saves.state(folder, limits) == "new"


def test_a_refusal_later(memory):
    """To rename the second shard, and for good: what has been written stays, for recovery."""
    limits = CHANGES["three shards by seven"]
    folder = memory / "refused later"
    model_saves.make(folder, limits[0])

    def refuse(name, function, args):
        if name == "move" and b"-00002-of-" in args[3]:
            raise PermissionError(1, "no")
        return function(*args)

    with (
        model_saves.Steps(1, refuse, to_the_end=True),
        pytest.raises(
            safetensors.SafetensorError,
            match=r"took their places only in part \(.*\); `safetensors recover` completes it$",
        ) as caught,
    ):
        stn.save_files(model_saves.NEW, folder, max_shard_size=limits[1])
    assert isinstance(caught.value.__cause__, PermissionError)
    with pytest.raises(safetensors.SafetensorError, match="was interrupted while its files"):
        model_saves.load(folder)
    assert safetensors.recover(folder) == "rolled forward"
    assert model_saves.state(folder, limits) == "new"


UNDONE = """
    import json, pathlib
    from safetensors import numpy as stn, recover
    from support import model_saves, replaced_calls
    limits = model_saves.CHANGES["three shards by seven"]
    seen = []
    for calls in range(20):
        folder = pathlib.Path(sys.argv[1]) / f"undone-{calls}"
        model_saves.make(folder, limits[0])
        done = []

        def act(name, function, args):
            if not done:
                if name == "remove" and args[1] == b"model.safetensors.index.json":
                    done.append(name)
                    raise PermissionError(1, "no")
            elif len(done) > calls:
                replaced_calls.kill()
            else:
                done.append(name)
            return function(*args)

        steps = model_saves.Steps(1, act, to_the_end=True)
        save = lambda: stn.save_files(model_saves.NEW, folder, max_shard_size=limits[1])
        is_killed = replaced_calls.is_killed(steps, save)
        seen.append((is_killed, recover(folder), model_saves.state(folder, limits)))
        if not is_killed:
            break
    print(json.dumps(seen))
"""


def test_a_kill_while_a_save_is_undone(memory):
    """Recovery undoes the rest, although the switch had been complete, or does all of it."""
    seen = json.loads(children.run(UNDONE, memory))
    # At first, the switch is still complete, and so are all files that it names.
    assert seen[0] == [True, "rolled forward", "new"]
    assert all(each == [True, "rolled back", "old"] for each in seen[1:-1])
    assert len(seen) > 5
    assert seen[-1] == [False, "clean", "old"]


def test_a_folder_that_was_made_stays_with_the_files_of_others(tmp_path):
    folder = tmp_path / "new"

    def write(*_):
        (folder / "other").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="^no$"):
        stn.save_files(model_saves.NEW, folder, progress=write)
    assert os.listdir(folder) == ["other"]


SAVING = """
    import itertools
    from safetensors import numpy as stn
    from support import model_saves
    for i in itertools.count():
        model, limit = [(model_saves.OLD, 400), (model_saves.NEW, 120), (model_saves.OLD, 9999)][
            i % 3
        ]
        stn.save_files(model, sys.argv[1], max_shard_size=limit)
        print(i, flush=True)
"""


def test_readers_meanwhile(tmp_path):
    """A reader finds one of the models or fails cleanly."""
    folder = tmp_path / "model"
    stn.save_files(model_saves.OLD, folder)
    with children.started(SAVING, folder, imports=forked.NUMPY) as process:
        process.stdout.readline()
        ends = time.monotonic() + 1.5
        loaded = failed = 0
        while time.monotonic() < ends:
            try:
                found = model_saves.load(folder)
            except (safetensors.SafetensorError, FileNotFoundError):
                failed += 1
                continue
            loaded += 1
            models = (model_saves.OLD, model_saves.NEW)
            assert any(model_saves.same(found, model) for model in models)
    assert loaded > 10, failed


def test_two_savers(tmp_path):
    """The second fails at once, and leaves nothing; recovery fails as well."""
    done = []

    def meanwhile(*_):
        if not done:
            done.append(True)
            for call in (
                lambda: stn.save_files(model_saves.OLD, tmp_path),
                lambda: safetensors.recover(tmp_path),
                lambda: safetensors.recover(tmp_path / "model.safetensors"),
            ):
                with pytest.raises(
                    safetensors.SafetensorError, match=r"another process is saving `model`$"
                ):
                    call()
            stn.save_files(model_saves.OLD, tmp_path, name="other")

    paths = stn.save_files(model_saves.NEW, tmp_path, max_shard_size=400, progress=meanwhile)
    assert done
    names = {pathlib.Path(path).name for path in paths}
    names |= {"model.safetensors.index.json", "other.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert model_saves.same(model_saves.load(tmp_path), model_saves.NEW)


def test_many_savers(tmp_path):
    """Threads save to one folder: each succeeds or is refused, and the last success is whole."""
    saved, refused = [], []

    def save(i):
        model = {"a": np.full(100, i), "b": np.full(100, i)}
        for _ in range(10):
            try:
                stn.save_files(model, tmp_path, max_shard_size=800 if i % 2 else 9999)
            except safetensors.SafetensorError as error:
                refused.append(str(error))
            else:
                saved.append(i)

    together(save, range(4))
    assert len(saved) + len(refused) == 40
    assert saved
    assert {*refused} <= {f"{tmp_path}: another process is saving `model`"}
    found = model_saves.load(tmp_path)
    assert found["a"][0] in saved
    assert len({int(value) for array in found.values() for value in array}) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_forked_child_removes_nothing(tmp_path):
    """Its copy of a writer is not the writer."""
    code = """
        import os
        from safetensors._saving import model_files as _model_files
        files = _model_files.ModelFiles(sys.argv[1], "model", fsync=False)
        files.parts.write("00001", b"")
        child = os.fork()
        if child == 0:
            files.abort()
            os._exit(0)
        os.waitpid(child, 0)
        print(len(os.listdir(files.parts.path)))
        files.abort()
        print(os.path.exists(sys.argv[1]))
    """
    assert children.run(code, tmp_path / "model").split() == ["2", "False"]
