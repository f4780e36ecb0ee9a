"""File systems that share blocks between files, in images mounted for a test."""

import contextlib
import os
import shutil
import subprocess

import pytest

KINDS = ("btrfs", "xfs")


@contextlib.contextmanager
def mounted(kind, folder, nbytes=1 << 29):
    """Gives the root of a new file system. Skips the test if it cannot be made or mounted."""
    make = shutil.which(f"mkfs.{kind}") or shutil.which(f"mkfs.{kind}", path="/sbin:/usr/sbin")
    if make is None:
        pytest.skip(f"there is no mkfs.{kind}")
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    image, root = folder / f"{kind}.image", folder / kind
    with open(image, "wb") as file:
        file.truncate(nbytes)
    root.mkdir()
    subprocess.run([make, "-q", str(image)], check=True, capture_output=True)
    mount = ["mount", "-o", "loop", str(image), str(root)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
    try:
        yield root
    finally:
        # Lazily, as a test that failed may still have files mapped.
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def used_nbytes(root):
    """Returns the bytes of a file system that are in use, after everything was written."""
    os.sync()
    status = os.statvfs(root)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
