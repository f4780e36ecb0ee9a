"""Permissions of a file that another user replaces, for every way of saving."""

import json
import os
import pathlib
import shutil
import stat
import tempfile

import numpy as np
import pytest

from safetensors.numpy import save_file
from support import children, forked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user"
    ),
    pytest.mark.skipif(not hasattr(os, "setresuid"), reason="changes users as Linux does"),
]

OWNER, SAVER = 1001, 1002
TEAM, STAFF = 2001, 2002

SCRIPT = """
import json, os, shutil, sys
import numpy as np
from safetensors._cli.main import main
from safetensors.numpy import save_file
way, path, other, groups = sys.argv[1:]
def save(path):
    if way == "save_file":
        save_file({"a": np.arange(5)}, path)
    elif way == "meta":
        assert main(["meta", path, "--set", "key=" + "x" * 100]) == 0
    else:
        assert main(["convert", other, path, "--force"]) == 0
# Imports what is imported on first use: another user may not be able to.
shutil.copyfile(path, other + ".safetensors")
save(other + ".safetensors")
os.setgroups(json.loads(groups))
os.setresgid(2002, 2002, 2002)
os.setresuid(1002, 1002, 1002)
save(path)
"""


@pytest.fixture
def path():
    """A file of another user and group, in a folder that everybody may write to."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="safetensors-test-"))
    try:
        folder.chmod(0o777)
        np.savez(folder / "other.npz", b=np.ones(3))
        (folder / "other.npz").chmod(0o644)
        save_file({"a": np.zeros(9)}, folder / "one.safetensors")
        os.chown(folder / "one.safetensors", OWNER, TEAM)
        yield folder / "one.safetensors"
    finally:
        shutil.rmtree(folder)


def save_as(groups, way, path):
    inode = path.stat().st_ino
    words = (way, path, path.parent / "other.npz", json.dumps(groups))
    children.run(SCRIPT, *words, imports=forked.NUMPY)
    found = path.stat()
    assert found.st_ino != inode
    assert found.st_uid == SAVER
    return found.st_gid, stat.S_IMODE(found.st_mode)


every_way = pytest.mark.parametrize("way", ["save_file", "meta", "convert"])


@every_way
def test_a_member_of_the_group_keeps_it(path, way):
    path.chmod(0o6664)
    assert save_as([TEAM], way, path) == (TEAM, 0o664)


@every_way
@pytest.mark.parametrize(("before", "after"), [(0o664, 0o644), (0o604, 0o600)])
def test_without_the_group_both_get_the_rights_that_both_had(path, way, before, after):
    path.chmod(before)
    assert save_as([], way, path) == (STAFF, after)
