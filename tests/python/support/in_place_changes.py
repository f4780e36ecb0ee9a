"""Changes tensors of a file in place, and stops the change at each of its system calls."""

import collections
import contextlib
import os
import random
import shutil
import signal
import time

import numpy as np

import safetensors
from safetensors import numpy as stn
from support import model_saves, replaced_calls
from support.model_saves import same

OLD = {
    "a": np.arange(400_000, dtype="f4"),
    "b": np.arange(7, dtype="u1"),
    "c": np.zeros((3, 5), "f2"),
    "d": np.ones(300_000, "i8"),
}
CHANGES = {
    "a": np.where(np.arange(400_000) % 1000 == 0, -1, OLD["a"]).astype("f4"),
    "c": np.ones((3, 5), "f2"),
    "d": OLD["d"] * 2,
}
NEW = {**OLD, **CHANGES}


def make(folder):
    """Makes a folder with the old file; returns its path."""
    folder.mkdir(parents=True)
    stn.save_file(OLD, folder / "m.safetensors", metadata={"k": "v"})
    return folder / "m.safetensors"


def names_in(path):
    """Returns the names in the folder of a file."""
    return {each.name for each in path.parent.iterdir()}


def change(path):
    safetensors.update_file(path, CHANGES, in_place=True)


def state(path):
    """Returns "old", "new", or "refused" if the file cannot be loaded."""
    try:
        found = stn.load_file(path, backend="pread")
    except safetensors.SafetensorError as error:
        if "`safetensors recover` completes it" not in str(error):
            raise
        return "refused"
    for word, tensors in (("old", OLD), ("new", NEW)):
        if same(found, tensors):
            return word
    raise AssertionError("a mixture")


class Steps(replaced_calls.Steps):
    """The steps of a change or a recovery: the calls that change or flush files, and make them."""

    LIBC = model_saves.Steps.LIBC


class AfterTheMark:
    """An `act` for all steps, which calls another one once a file is marked, and that flushed."""

    def __init__(self, act):
        self._act, self._names = act, []

    def __call__(self, name, function, args):
        before = iter(self._names)
        is_marked = all(step in before for step in ("move", "C write", "fsync"))
        self._names.append(name)
        return self._act(name, function, args) if is_marked else function(*args)


def steps_after_the_mark(act):
    """Returns steps of which each is `act(name, function, args)` once a file is marked."""
    return Steps(1, AfterTheMark(act), to_the_end=True)


def run(path, work, at, act):
    """Runs `work(path)` in a forked process that ends at a call; returns whether it did."""
    return replaced_calls.is_killed(Steps(at, act), lambda: work(path))


def kill_at_each(scratch):
    """Kills a change at each call, and each recovery at each of its calls.

    Returns the states before and after the recoveries. Forks, so it runs in a process without
    threads.
    """
    old = make(scratch / "old")
    change(make(scratch / "first"))  # imports what each forked process would import
    seen = []
    for at in range(1, 1000):
        is_last = False
        for act in (replaced_calls.kill, replaced_calls.kill_within):
            path = scratch / f"{at}-{act.__name__}" / "m.safetensors"
            shutil.copytree(old.parent, path.parent)
            is_last = not run(path, change, at, act)
            before = state(path)
            assert (before == "refused") == bool(path.read_bytes()[7] & 0x80), at
            _recover_in_steps(path)
            after = state(path)
            assert after == ("new" if before == "refused" else before), at
            assert {each.name for each in path.parent.iterdir()} == {path.name}
            seen.append((before, after))
            shutil.rmtree(path.parent)
        if is_last:
            return seen
    raise AssertionError("the change does not end")


def kill_at_random(scratch, count, seed):
    """Kills so many changes at random times, and half of the recoveries.

    Returns how often each pair of states before and after the recovery was seen. Forks, as above.
    """
    rng = random.Random(seed)
    old = make(scratch / "old")
    change(make(scratch / "first"))
    path = scratch / "m" / "m.safetensors"
    seen = collections.Counter()
    seconds = 0.0
    for number in range(count):
        shutil.copytree(old.parent, path.parent)
        begin = time.monotonic()
        is_killed = _run_until(path, change, rng.uniform(0, seconds) if number else 60)
        if not is_killed:  # times differ, so longer ones are tried, too
            seconds = max(seconds, 1.2 * (time.monotonic() - begin))
        before = state(path)
        assert before == "new" or is_killed
        if number % 2:
            _run_until(path, safetensors.recover, rng.uniform(0, seconds))
            assert state(path) in ("refused", before, "new")
        safetensors.recover(path)
        after = state(path)
        assert after == ("new" if before == "refused" else before), number
        assert {each.name for each in path.parent.iterdir()} == {path.name}
        seen[before, after] += 1
        shutil.rmtree(path.parent)
    return seen


def interrupt_at_random(scratch, count, seed):
    """Interrupts so many changes by Ctrl-C at random times; returns how often each state was left,
    in which there is nothing to recover. Forks, as above."""
    rng = random.Random(seed)
    old = make(scratch / "old")
    begin = time.monotonic()
    change(make(scratch / "first"))
    seconds = time.monotonic() - begin
    path = scratch / "m" / "m.safetensors"
    seen = collections.Counter()
    for number in range(count):
        shutil.copytree(old.parent, path.parent)
        _run_until(path, change, rng.uniform(0, seconds), signal.SIGINT)
        assert {each.name for each in path.parent.iterdir()} == {path.name}, number
        seen[state(path)] += 1
        shutil.rmtree(path.parent)
    return seen


def _run_until(path, work, seconds, number=signal.SIGKILL):
    """Runs `work(path)` in a forked process that gets a signal after a time; returns whether it
    ended by that."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work(path)
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.0005)
    os.kill(child, number)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _recover_in_steps(path):
    """Recovers, killed at every call in turn."""
    for at in range(1, 1000):
        if not run(path, safetensors.recover, at, replaced_calls.kill):
            break
        assert state(path) in ("refused", "old", "new")
    assert safetensors.recover(path) == "clean"
