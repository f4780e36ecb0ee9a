"""Temporary files of killed saves: the next save of the file, and recover, remove them."""

import fcntl
import os
import signal
import subprocess
import time

import numpy as np
import pytest

import safetensors
from safetensors import _core, safe_create, update_file
from safetensors.numpy import save_file, save_file_async
from support import children

RANDOM = "0123456789abcdef"
NEW = {"a": np.ones(4, "f4")}

# Stops when the temporary file has a part of the bytes.
KILLED = """
    import os, signal
    import numpy as np
    from safetensors.numpy import save_file

    def stop(done, total):
        if done:
            print("stopped", flush=True)
            signal.pause()

    save_file({"a": np.zeros(9 << 20, "u1")}, sys.argv[1], progress=stop)
"""


def start(path):
    """Starts a process that is in the midst of a save."""
    process = subprocess.Popen(children.command(KILLED, path), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"stopped\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def left_in(folder):
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


def wait_for_next_look():
    """A save looks for stale files if that takes at most a fiftieth of the time."""
    time.sleep(0.2)


def by_safe_create(path):
    with safe_create(path) as writer:
        writer["a"] = NEW["a"]


WRITERS = {
    "save_file": lambda path: save_file(NEW, path),
    "sums": lambda path: save_file(NEW, path, sums=True),
    "save_file_async": lambda path: save_file_async(NEW, path).result(),
    "safe_create": by_safe_create,
    "update_file": lambda path: update_file(path, NEW, add=True),
}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("length", [0, 150])
def test_the_next_save_removes_them(tmp_path, write, length):
    """Those of its name only, and none of a process that still saves."""
    path = tmp_path / ("n" * length + "m.safetensors")
    save_file({"z": np.ones(1)}, path)
    killed, running = start(path), start(path)
    kill(killed)
    other = tmp_path / f".other.safetensors.{RANDOM}.tmp"
    other.write_bytes(b"half")
    assert len(left_in(tmp_path)) == 3
    wait_for_next_look()
    WRITERS[write](path)
    assert len(left_in(tmp_path)) == 2
    assert other.exists()
    kill(running)
    wait_for_next_look()
    WRITERS["save_file"](path)
    assert left_in(tmp_path) == [other.name]


def test_recover_removes_them_at_once(tmp_path):
    path = tmp_path / "m.safetensors"
    process = start(path)
    assert safetensors.recover(tmp_path) == "clean"
    kill(process)
    assert len(left_in(tmp_path)) == 1
    assert safetensors.recover(tmp_path) == "rolled back"
    assert left_in(tmp_path) == []


def test_a_complete_file_is_locked_until_it_has_its_name(tmp_path):
    """Its sums are made then, and a folder that is flushed takes long."""
    path, seen = tmp_path / "m.safetensors", []

    def collect(temporary, known):
        seen.append(safetensors.recover(tmp_path))
        return b"{}"

    _core._save_specs_file({}, path, None, True, None, collect)
    assert seen == ["clean"]
    assert path.exists()
    assert left_in(tmp_path) == []


def test_the_final_file_is_not_locked(tmp_path):
    path = tmp_path / "m.safetensors"
    writer = safe_create(path)
    writer["a"] = NEW["a"]
    writer.close()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_a_recovery_takes_as_it_is_made(tmp_path, monkeypatch):
    """Another process may look between the calls that make a file and lock it: see try_lock()."""
    path = tmp_path / "m.safetensors"
    script = """
        import safetensors
        while True:
            safetensors.recover(sys.argv[1])
    """
    process = subprocess.Popen(children.command(script, tmp_path), stdout=subprocess.PIPE)
    try:
        for _ in range(2000):
            save_file(NEW, path)
    finally:
        kill(process)
    assert left_in(tmp_path) == []


def test_links_and_files_of_others_stay(tmp_path):
    name = f".m.safetensors.{RANDOM}.tmp"
    target = tmp_path / "target"
    target.write_bytes(b"x")
    for make in (lambda path: path.symlink_to(target), os.mkfifo, os.mkdir):
        make(tmp_path / name)
        wait_for_next_look()
        save_file(NEW, tmp_path / "m.safetensors")
        assert os.path.lexists(tmp_path / name)
        (os.rmdir if make is os.mkdir else os.unlink)(tmp_path / name)
    assert target.read_bytes() == b"x"


def test_locks_of_one_machine(tmp_path, monkeypatch):
    """Where locks may not show other machines, what is young stays."""
    folder = _core._Folder(tmp_path)
    assert isinstance(folder.sees_all_locks(), bool)
    assert not _core._Folder("/proc").sees_all_locks()
