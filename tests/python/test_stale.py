"""Temporary files of killed saves: the next save of the file, and recover, remove them."""

import fcntl
import os
import signal
import subprocess
import textwrap
import time

import numpy as np
import pytest

import safetensors
from safetensors import safe_create, update_file
from safetensors.numpy import save_file, save_file_async
from support import children, shims

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
    """A save looks for stale files if that takes at most a hundredth of the time."""
    time.sleep(0.5)


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


# Ends the process that renames a file which somebody else can lock.
LOCKED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>
int renameat(int from, const char* old, int to, const char* name) {
  int fd = openat(from, old, O_RDWR);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) abort();
  close(fd);
  write(1, "locked\n", 7);
  return ((int (*)(int, const char*, int, const char*))dlsym(RTLD_NEXT, "renameat"))(
      from, old, to, name);
}
int fcntl64(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
  int is_full = getenv("FULL") && command == F_DUPFD_CLOEXEC;
  if (is_full && (real(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) { errno = EMFILE; return -1; }
  return real(fd, command, argument);
}
int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return fcntl64(fd, command, argument);
}
"""


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("sums", [False, True])
def test_a_file_is_locked_until_it_has_its_name(tmp_path, is_full, sums):
    """Also if no descriptor is left for a file that was written. Sums need one to read it."""
    env = shims.environment(tmp_path, LOCKED)
    if is_full:
        env["FULL"] = "1"
    script = """
        import numpy as np
        from safetensors.numpy import save_file
        save_file({"a": np.ones(4, "f4")}, sys.argv[1], sums=len(sys.argv) > 2)
    """
    printed = children.run(script, tmp_path / "m.safetensors", *["sums"] * sums, env=env)
    assert printed.split() == ["locked"] * (2 if sums else 1)


def test_the_final_file_is_not_locked(tmp_path):
    path = tmp_path / "m.safetensors"
    writer = safe_create(path)
    writer["a"] = NEW["a"]
    writer.close()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_a_recovery_takes_as_it_is_made(tmp_path):
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


SAVES = """
    import os, threading
    import numpy as np
    import safetensors
    from safetensors import safe_create
    from safetensors.numpy import save_file

    new = {"a": np.ones(4, "f4")}
    writer = safe_create("m.safetensors")  # stays open meanwhile
    writer["a"] = new["a"]
    save_file(new, "m.safetensors")
    child = os.fork()
    if child == 0:
        save_file(new, "m.safetensors")
        safetensors.recover(".")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread = threading.Thread(target=save_file, args=(new, "m.safetensors"))
    thread.start()
    thread.join()
    assert safetensors.recover(".") == "clean"
    writer.close()
"""


def run_beside_old_files(tmp_path, env=None, held=()):
    """Saves, and recovers, in a folder with temporary files. Returns the ages, in seconds, of those
    that stay. Those in `held` are locked."""
    ages = {30: "1" * 16, 3600: "2" * 16, 2 * 86400: "3" * 16, 3 * 86400: "4" * 16}
    files = {age: tmp_path / f".m.safetensors.{random}.tmp" for age, random in ages.items()}
    for age, path in files.items():
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    locked = [files[age].open("rb+") for age in held]
    for file in locked:
        fcntl.flock(file, fcntl.LOCK_EX)
    script = f"import os\nos.chdir({str(tmp_path)!r})\n" + textwrap.dedent(SAVES)
    children.run(script, env=env)
    for file in locked:
        file.close()
    assert (tmp_path / "m.safetensors").exists()
    left = {age for age, path in files.items() if path.exists()}
    assert len(left_in(tmp_path)) == len(left)
    return left


def test_saves_of_one_process(tmp_path):
    """None removes the file of another one: of a thread, a forked process, or one that waits."""
    assert run_beside_old_files(tmp_path, held=[30, 2 * 86400]) == {30, 2 * 86400}


def test_locks_of_one_machine(tmp_path):
    """On NFS, what may be another machine's stays for a day, and recover leaves what is young."""
    env = shims.environment(tmp_path, shims.NETWORK)
    script = """
        import numpy as np
        from safetensors.numpy import save_file
        save_file({"a": np.ones(4, "f4")}, sys.argv[1])
    """
    path = tmp_path / f".m.safetensors.{RANDOM}.tmp"
    for age, stays in ((3600, True), (23 * 3600, True), (25 * 3600, False)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
        children.run(script, tmp_path / "m.safetensors", env=env)
        assert path.exists() is stays
    assert run_beside_old_files(tmp_path, env, held=[3 * 86400]) == {30, 3 * 86400}


def test_a_file_system_without_locks(tmp_path):
    """Nothing says there whether a process has ended: all stays."""
    env = shims.environment(tmp_path, shims.NO_LOCKS)
    assert len(run_beside_old_files(tmp_path, env)) == 4


@pytest.mark.parametrize("is_network", [False, True])
@pytest.mark.parametrize("locked", [".", "new", None])
def test_a_private_folder_that_is_used(tmp_path, is_network, locked):
    """A process has it locked, or on NFS, which shows no locks of folders, a file in it."""
    env = shims.environment(tmp_path, shims.NETWORK) if is_network else None
    room = tmp_path / f".m.safetensors.{RANDOM}.journal"
    room.mkdir(0o700)
    (room / "new").touch()
    os.utime(room, (0, 0))
    held = locked and os.open(room / locked, os.O_RDONLY)
    if locked:
        fcntl.flock(held, fcntl.LOCK_EX)
    script = "import safetensors\nprint(safetensors.recover(sys.argv[1]))"
    outcome = children.run(script, tmp_path, env=env).strip()
    assert (outcome, room.exists()) == (("clean", True) if locked else ("rolled back", False))
    if locked:
        os.close(held)
