"""A user who saves, and another one who watches the folder and puts things in the way.

    python strangers.py FOLDER MODE ACT,... SAVE ROUNDS

As root. In each round of each ACT, FOLDER is made anew with this mode, for two users of one group.
One calls a function of saves.py; the other one acts on each name that appears.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import stat
import struct
import sys

ALICE, BOB, GROUP = 65001, 65002, 65000
PRIVATE = b"a thesis"
_MINE = "mine"
_SECONDS = 30
_IN_CREATE, _IN_MOVED_TO, _IN_OPEN = 0x100, 0x80, 0x20


def become(user):
    os.setgroups([GROUP])
    os.setgid(GROUP)
    os.setuid(user)
    os.umask(0o002)


def link(path, private):
    os.unlink(path)
    os.symlink(private, path)


def swap(path, private):
    os.rename(path, path.parent / f"taken-{path.name}")
    if path.name.endswith((".save", ".journal")):
        os.mkdir(path)
        os.chmod(path, 0o777)
        for name in ("switch", "00001", "00002", "index", "sums", "new", "journal"):
            os.symlink(private, path / name)
    else:
        path.write_bytes(b"planted")


def pipe(path, private):
    os.unlink(path)
    os.mkfifo(path, 0o666)


def mine(path, private):
    """Puts a folder of the user who saves in the place of a private one, which is still empty."""
    os.rename(path.parent / _MINE, path)


def final(path, private):
    """Links under the names that a save ends with."""
    for name in (
        *(f"model-{i:05}-of-{n:05}.safetensors" for n in (2, 3, 4) for i in range(1, n + 1)),
        *("model.safetensors.index.json", "model.sums.json", "model.sums.sig"),
        *("config.json", "out.sums.json", "model.sig"),
    ):
        if not os.path.lexists(path.parent / name):
            os.symlink(private, path.parent / name)


ACTS = {act.__name__: act for act in (link, swap, pipe, mine, final)}


def attack(folder, private, act, ready):
    """Acts on each name that appears, until it is killed."""
    become(BOB)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(0)
    libc.inotify_add_watch(fd, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO | _IN_OPEN)
    os.write(ready, b"x")
    while True:
        events = os.read(fd, 1 << 16)
        while events:
            nbytes = struct.unpack_from("iIII", events)[3]
            name = events[16 : 16 + nbytes].rstrip(b"\0").decode()
            events = events[16 + nbytes :]
            if name.startswith(".") or act is final:
                with contextlib.suppress(OSError):  # it is gone, or the folder is sticky
                    act(folder / name, private)


def save(folder, private, function, wait):
    """Calls the function as the user who saves. Returns the exit status: 0 saved, 1 refused."""
    become(ALICE)
    signal.alarm(_SECONDS)  # a save that hangs ends by the signal
    os.read(wait, 1)
    from safetensors import SafetensorError

    try:
        made = function(folder)
    except (SafetensorError, OSError, SystemExit) as error:
        print(f"refused: {error!r}"[:300], flush=True)
        return 1
    for path in made:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != ALICE:
            print(f"{path} is said to be saved, and is another user's", flush=True)
            return 3
    return 0


def in_child(work, *args):
    child = os.fork()
    if child == 0:
        try:
            status = work(*args) or 0
        except BaseException as error:
            print(f"failed: {error!r}", flush=True)
            status = 4
        os._exit(status)
    return child


def make_mine(folder):
    """Makes a folder that nobody else can enter, as a private one."""
    (folder / _MINE).mkdir(0o700)
    for name in ("thesis.txt", "00001"):
        (folder / _MINE / name).write_bytes(PRIVATE)


def is_whole(folder):
    """Returns whether that folder still has its files, and no others, whatever its name is."""
    folders = [path.parent for path in folder.glob("**/thesis.txt")]
    found = {path.name: path.read_bytes() for each in folders for path in each.iterdir()}
    return found == {"thesis.txt": PRIVATE, "00001": PRIVATE}


def round_of(top, mode, act, prepare, function):
    folder, home = top / "shared", top / "home"
    for each in (folder, home):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
        os.chown(each, ALICE, GROUP)
    folder.chmod(mode)
    home.chmod(0o711)
    private = home / "private"
    private.write_bytes(PRIVATE)
    os.chown(private, ALICE, GROUP)
    private.chmod(0o600)
    os.waitpid(in_child(lambda: become(ALICE) or prepare(folder) or make_mine(folder)), 0)
    ready, wait = os.pipe()[::-1]
    attacker = in_child(attack, folder, private, act, ready)
    saver = in_child(save, folder, private, function, wait)
    status = os.waitstatus_to_exitcode(os.waitpid(saver, 0)[1])
    os.kill(attacker, signal.SIGKILL)
    os.waitpid(attacker, 0)
    os.close(ready)
    os.close(wait)
    if private.read_bytes() != PRIVATE:
        sys.exit("a private file was overwritten")
    if not is_whole(folder):
        sys.exit("another folder was emptied or filled")
    if status not in (0, 1):
        sys.exit(f"the save ended with {status}")
    return status


def main():
    top, mode = pathlib.Path(sys.argv[1]), int(sys.argv[2], 8)
    acts = [ACTS[name] for name in sys.argv[3].split(",")] * int(sys.argv[5])
    from support import saves

    prepare, function = saves.SAVES[sys.argv[4]]
    # Imports what the function needs: other users may not be able to read the interpreter.
    for name in ("shared", "home"):
        (top / "first" / name).mkdir(parents=True)
    prepare(top / "first" / "shared")
    function(top / "first" / "shared")
    shutil.rmtree(top / "first")
    outcomes = [round_of(top, mode, act, prepare, function) for act in acts]
    print("saved", outcomes.count(0), "refused", outcomes.count(1))


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    main()
