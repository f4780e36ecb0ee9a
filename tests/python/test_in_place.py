"""update_file(in_place=True): changes tensors of a file itself, so that a crash loses nothing."""

import fcntl
import mmap
import os
import subprocess

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open, sums, update_file
from safetensors import numpy as stn
from support import children, libc_calls, mounts
from support.in_place_changes import (
    CHANGES,
    OLD,
    change,
    make,
    names_in,
    state,
)

pytestmark = pytest.mark.usefixtures("leases")


def test_the_bytes_are_those_of_a_new_file(tmp_path):
    path, copy = make(tmp_path / "a"), make(tmp_path / "b")
    number = path.stat().st_ino
    change(path)
    update_file(copy, CHANGES)
    assert path.read_bytes() == copy.read_bytes()
    assert path.stat().st_ino == number
    assert names_in(path) == {path.name}


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "c8", "f8", "?"])
@pytest.mark.parametrize("count", [0, 1, 65_535, 65_537, 200_000])
def test_dtypes_and_sizes(tmp_path, dtype, count):
    random = np.random.default_rng(count)
    old = random.integers(0, 2, count).astype(dtype)
    new = np.where(random.random(count) < 0.1, ~old if dtype == "?" else old + 1, old).astype(dtype)
    path = tmp_path / "m.safetensors"
    stn.save_file({"t": old, "rest": np.ones(3)}, path)
    update_file(path, {"t": new}, in_place=True)
    assert np.array_equal(stn.load_file(path)["t"], new)
    assert np.array_equal(stn.load_file(path)["rest"], np.ones(3))


def test_bytes_of_another_size(tmp_path):
    path = make(tmp_path / "a")
    with pytest.raises(SafetensorError, match="tensor `b` has 7 bytes, but 8 were given"):
        update_file(path, {"a": OLD["a"] * 3, "b": bytes(8)}, in_place=True)
    assert state(path) == "old"
    assert names_in(path) == {path.name}


def test_nothing_changes(tmp_path):
    path = make(tmp_path / "a")
    before = path.stat().st_mtime_ns
    update_file(path, {"a": OLD["a"]}, in_place=True)
    update_file(path, {}, in_place=True)
    assert path.stat().st_mtime_ns == before
    assert names_in(path) == {path.name}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"add": True}, ValueError, "need a new file"),
        ({"remove": ["a"]}, ValueError, "need a new file"),
        ({"metadata": None}, ValueError, "need a new file"),
    ],
)
def test_what_needs_a_new_file(tmp_path, options, error, words):
    path = make(tmp_path / "a")
    with pytest.raises(error, match=words):
        update_file(path, CHANGES, in_place=True, **options)
    assert state(path) == "old"


def test_names_and_dtypes_are_checked(tmp_path):
    path = make(tmp_path / "a")
    with pytest.raises(SafetensorError, match="there is no tensor `x`"):
        update_file(path, {"x": OLD["a"]}, in_place=True)
    with pytest.raises(SafetensorError, match="tensor `a` is F32"):
        update_file(path, {"a": OLD["a"].astype("f8")}, in_place=True)
    assert state(path) == "old"


def test_arrays_of_this_process_keep_their_values(tmp_path):
    for shared in (False, True):
        path = make(tmp_path / str(shared))
        with safe_open(path, framework="np") as file:
            view = file.get_tensor("a")
            update_file(path, CHANGES, in_place=True, shared=shared)
            assert np.array_equal(file.get_tensor("a"), OLD["a"])
        assert state(path) == "new"
        assert np.array_equal(view, OLD["a"])


def test_a_file_in_use_is_refused(tmp_path):
    path = make(tmp_path / "a")
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        with pytest.raises(SafetensorError, match="it is open or mapped"):
            change(path)
    with pytest.raises(SafetensorError, match="it is open or mapped"):
        change(path)  # the mapping is still there
    assert state(path) == "old"
    update_file(path, CHANGES, in_place=True, shared=True)
    assert state(path) == "new"
    assert pages[:] == path.read_bytes()


def test_another_process_has_it_open(tmp_path):
    path = make(tmp_path / "a")
    with path.open("rb") as file, subprocess.Popen(["sleep", "60"], stdin=file) as other:
        file.close()
        try:
            with pytest.raises(SafetensorError, match="it is open or mapped"):
                change(path)
        finally:
            other.kill()
    change(path)
    assert state(path) == "new"


ON_OVERLAYFS = """
    import pathlib
    import numpy as np
    from safetensors import SafetensorError, update_file
    from safetensors.numpy import load_file
    from support.in_place_changes import OLD, change, CHANGES, make, state

    path = make(pathlib.Path(sys.argv[1]) / "a")
    views = load_file(path, backend="mmap")
    try:
        change(path)
    except SafetensorError as error:
        print(error)
    print(all(np.array_equal(views[name], OLD[name]) for name in OLD), state(path))
    update_file(path, CHANGES, in_place=True, shared=True)
    print(state(path))
"""


def test_overlayfs_does_not_tell_who_maps_a_file(tmp_path):
    out = children.run(ON_OVERLAYFS, tmp_path, prefix=mounts.overlay(tmp_path))
    refused, kept, changed = out.splitlines()
    assert (
        "the system does not tell whether it is in use, and the option `shared` is not set"
        in refused
    )
    assert kept == "True old"
    assert changed == "new"


def test_links_are_refused(tmp_path):
    path = make(tmp_path / "a")
    (tmp_path / "soft.safetensors").symlink_to(path)
    with pytest.raises(SafetensorError, match="it is a symbolic link"):
        change(tmp_path / "soft.safetensors")
    os.link(path, tmp_path / "hard.safetensors")
    with pytest.raises(SafetensorError, match="it has several names"):
        change(path)
    assert state(path) == "old"


def test_a_reader_that_came_in_meanwhile(tmp_path):
    """A lease that was broken before the mark: nothing is changed."""
    path = make(tmp_path / "a")

    def broken(function, args):
        return fcntl.F_UNLCK if args[1] == fcntl.F_GETLEASE else function(*args)

    with (
        libc_calls.replaced({"fcntl": broken}),
        pytest.raises(SafetensorError, match="opened it while the change was prepared"),
    ):
        change(path)
    assert state(path) == "old"
    assert names_in(path) == {path.name}


def test_old_sums_are_removed(tmp_path):
    path = make(tmp_path / "a")
    stn.save_file({"x": np.ones(3)}, path.parent / "x.safetensors")
    for place in (path, path.parent):  # of the file, and of the folder
        sums.write(place)
    assert {"m.sums.json", "model.sums.json"} <= names_in(path)
    change(path)
    assert names_in(path) == {path.name, "x.safetensors"}
