"""Saves a model over another one, and stops the save at each of its system calls."""

import contextlib
import errno
import functools
import os
import shutil
import warnings

import numpy as np

import safetensors
from safetensors import numpy as stn
from safetensors._open_shards import open_tensors
from safetensors._saving import split
from safetensors._shards import find_shards
from support import replaced_calls

OTHERS = {"config.json": "{}", "model-00001-of-00002.safetensors.bak": "x", ".model.notes": "y"}
"""Files that no save and no recovery may touch."""

OLD = {f"layers.{i}": np.full(30, i, "f4") for i in range(6)} | {"old": np.zeros(3, "i8")}
NEW = {f"layers.{i}": np.full(30, -i, "f4") for i in range(1, 8)} | {"new": np.ones(5, "u1")}
ONE, TWO, THREE, SEVEN = 10_000, 600, 400, 120

# The limit of the old model's shards, or None for no old model; that of the new one's.
CHANGES = {
    "seven shards by three": (SEVEN, THREE),
    "three shards by seven": (THREE, SEVEN),
    "three shards by three": (THREE, THREE),
    "one file by shards": (ONE, THREE),
    "shards by one file": (THREE, ONE),
    "one file by one": (ONE, ONE),
    "nothing by shards": (None, TWO),
    "nothing by one file": (None, ONE),
}


def files_of(arrays, limit):
    """Returns the names of a model's files, and of the other files."""
    sizes = {name: array.nbytes for name, array in arrays.items()}
    count = len(split.split(sizes, limit).shards)
    index = [split.index_name("model")] if count > 1 else []
    return {*split.file_names("model", count), *index, *OTHERS}


def make(folder, limit):
    """Makes a folder with the other files and, unless the limit is None, the old model."""
    folder.mkdir(parents=True)
    for name, text in OTHERS.items():
        (folder / name).write_text(text)
    if limit is not None:
        stn.save_files(OLD, folder, max_shard_size=limit)


def load(folder):
    """Returns the arrays of the model that `load_files` would load."""
    with warnings.catch_warnings():  # of shards of the other model, which no index names
        warnings.filterwarnings("ignore", ".* not used")
        shards = find_shards(folder)
    with contextlib.ExitStack() as stack:
        handles, _ = open_tensors(shards, None, "pread", stack)
    arrays = {}
    for shard in shards:  # the handles return torch tensors, and torch may be missing
        arrays |= stn.load_file(shard.path, backend="pread")
    return {name: arrays[name] for name in handles}


def load_as_transformers(folder):
    """Returns the arrays of the model as most programs do: one file is preferred to an index."""
    single = folder / "model.safetensors"
    return load(single if single.exists() else folder / split.index_name("model"))


def same(found, expected):
    """Returns whether two models have the same tensors."""
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in found
    )


def state(folder, limits):
    """Returns "old" or "new" if the folder holds exactly this model, and nothing else.

    "old" of no model is a folder with the other files.
    """
    names = {path.name for path in folder.iterdir()}
    for name, text in OTHERS.items():
        assert (folder / name).read_text() == text
    if limits[0] is None and names == OTHERS.keys():
        return "old"
    for word, model, limit in (("old", OLD, limits[0]), ("new", NEW, limits[1])):
        if limit is not None and names == files_of(model, limit):
            arrays = load(folder)
            if same(arrays, model) and same(load_as_transformers(folder), model):
                return word
    raise AssertionError(sorted(names))


_AT_REMOVEDIR, _WRITES = 0x200, os.O_WRONLY | os.O_RDWR


def _named(name):
    return lambda *_: name


_CALLS = {
    "fchmod": _named("fchmod"),
    "fsync": _named("fsync"),
    "ftruncate": _named("ftruncate"),
    "mkdirat": _named("make private"),
    "openat": lambda fd, name, flags, mode: "open" if flags & _WRITES else None,
    "pwrite": _named("C write"),
    "renameat": _named("move"),
    "unlinkat": lambda fd, name, flags: "remove private" if flags & _AT_REMOVEDIR else "remove",
}


class Steps(replaced_calls.Steps):
    """The steps of a save or a recovery: the calls that change or flush files, and make them."""

    LIBC = _CALLS


def steps_of(scratch, limits, fsync):
    """Returns the names of the system calls of a save."""
    folder = scratch / "counted"
    make(folder, limits[0])
    with Steps() as steps:
        stn.save_files(NEW, folder, max_shard_size=limits[1], fsync=fsync)
    assert state(folder, limits) == "new"
    return steps.names


def each(scratch, change, modes, fsync=False):
    """Yields for each system call and each of `modes`: its number, the mode, and a folder with the
    old model. The mode "within" is for calls that write."""
    limits = CHANGES[change]
    names = [*steps_of(scratch, limits, fsync), "end"]
    make(scratch / "old", limits[0])
    for at, name in enumerate(names, 1):
        for mode in modes:
            if mode == "within" and name != "C write":
                continue
            folder = scratch / f"{at}-{mode}"
            # copy2: the times are a part of what a switch says about old files.
            shutil.copytree(scratch / "old", folder)
            yield at, mode, folder
            shutil.rmtree(folder)


def kill_at_each(scratch, change, fsync):
    """Kills a save at each system call; checks what is left, and what recovery makes of it.

    Forks, so it runs in a process without threads. Returns the states and the outcomes.
    """
    limits = CHANGES[change]
    seen = []
    for at, mode, folder in each(scratch, change, ("before", "within"), fsync):
        steps = Steps(at, replaced_calls.kill if mode == "before" else replaced_calls.kill_within)
        work = functools.partial(stn.save_files, NEW, folder, max_shard_size=limits[1], fsync=fsync)
        is_killed = replaced_calls.is_killed(steps, work)
        for loader in (load, load_as_transformers):
            try:
                found = loader(folder)
            except (safetensors.SafetensorError, FileNotFoundError):
                continue
            assert same(found, OLD) or same(found, NEW), (at, mode)
        outcome = safetensors.recover(folder)
        word = state(folder, limits)
        assert safetensors.recover(folder) == "clean", (at, mode)
        assert state(folder, limits) == word
        assert is_killed or (word, outcome) == ("new", "clean"), "after the last call"
        seen.append((word, outcome))
    words = [word for word, _ in seen]
    assert words == sorted(words, reverse=True), "once new, never old again"
    return seen


def errors_of(folder, limits, steps, fsync=False):
    """Saves with these steps; returns the exception's class, or None."""
    try:
        with steps:
            stn.save_files(NEW, folder, max_shard_size=limits[1], fsync=fsync)
    except (OSError, safetensors.SafetensorError, KeyboardInterrupt) as error:
        return type(error)
    return None


ERRNOS = (errno.ENOSPC, errno.EIO)
