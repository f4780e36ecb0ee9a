"""Every function that writes, while another user of the folder puts things in its way."""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from support import children, saves, strangers

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"),
    reason="only root can become another user, and only Linux has inotify",
)
MODES = {"setgid": "2775", "sticky": "1777", "plain": "0755"}
PROTECTED = [
    pathlib.Path("/proc/sys/fs") / f"protected_{kind}" for kind in ("symlinks", "fifos", "regular")
]


@pytest.fixture
def top():
    """A folder that other users can reach, which pytest's own is not."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="strangers-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def outcome(top, mode, act, save, rounds):
    """Returns how many rounds saved. What may not happen ends the script with an error."""
    needed = {"save_checkpoint": "torch", "sign": "model_signing"}.get(save)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    script = strangers.__file__
    words = [sys.executable, script, top, MODES[mode], act, save, rounds]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd="/")
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("saved ")[1].split()[0])


@pytest.mark.parametrize("save", saves.SAVES)
def test_nobody_in_the_way(top, save):
    """In a folder of this user's own, each save succeeds: the table calls what it should."""
    assert outcome(top, "plain", "link", save, 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["setgid", "sticky"])
@pytest.mark.parametrize("save", saves.SAVES)
def test_a_stranger(top, save, mode):
    outcome(top, mode, ",".join(strangers.ACTS), save, 2)


@contextlib.contextmanager
def protected(value):
    """Sets what the kernel itself refuses in sticky folders."""
    old = {path: path.read_text() for path in PROTECTED if path.exists()}
    try:
        for path in old:
            path.write_text(value)
        yield
    finally:
        for path, text in old.items():
            path.write_text(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("value", ["0", "1"])
@pytest.mark.parametrize("act", strangers.ACTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("save", saves.SAVES)
def test_many_rounds(top, save, mode, act, value):
    with protected(value):
        outcome(top, mode, act, save, 20)


SUMS_OF_ANOTHER = """
    import os, shutil
    import numpy as np
    from safetensors import SafetensorError
    from safetensors import numpy as stn
    from support import strangers

    top, kind = sys.argv[1:]
    folder = top + "/shared"

    def save(folder, value, sums):
        arrays = {"a": np.full(9, value), "b": np.full(9, value)}
        if kind == "file":
            stn.save_file(arrays, folder + "/model.safetensors", sums=sums)
        else:
            stn.save_files(arrays, folder, max_shard_size=80, sums=sums)

    def found():
        return {name: os.stat(f"{folder}/{name}").st_ino for name in os.listdir(folder)}

    os.mkdir(top + "/first")
    save(top + "/first", 1, True)  # imports what another user may not be able to read
    os.mkdir(folder)
    os.chmod(folder, 0o1777)
    child = os.fork()
    if child == 0:
        strangers.become(strangers.ALICE)
        save(folder, 1, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(len(found()))
    with open(folder + "/model.sums.json", "x") as file:
        os.fchown(file.fileno(), strangers.BOB, strangers.GROUP)
    before = found()
    strangers.become(strangers.ALICE)
    for sums in (None, True):
        try:
            save(folder, 2, sums)
        except SafetensorError as error:
            print(error)
        print(found() == before)
"""


@pytest.mark.parametrize("kind", ["file", "model"])
def test_sums_of_another_user(top, kind):
    """Which this user may not remove, and which are not of the new file: nothing is replaced."""
    first, *rest = children.run(SUMS_OF_ANOTHER, top, kind).splitlines()
    assert first == ("1" if kind == "file" else "3")
    assert rest[1::2] == ["True", "True"]
    why = "the sums of the old file cannot be removed" if kind == "file" else "it belongs to user"
    for text in rest[::2]:
        assert f'model.sums.json": {why}' in text


def test_a_model_is_saved_beside_a_stranger(top):
    """Who can rename everything in the folder does not stop it: the parts are out of reach."""
    assert outcome(top, "setgid", "swap", "save_files", 5) == 5
