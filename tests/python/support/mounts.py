"""Mounts for a single command, in a mount namespace of its own."""

import shutil
import subprocess

import pytest


def prefix(mount, path):
    """Returns the words that run a command after the shell command `mount`, whose $0 is the path.

    Skips the test if mounting is not allowed here.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare to mount with")
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        words = [unshare, *options, "sh", "-c", f'{mount} && exec "$@"', str(path)]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("mounting is not allowed here")


def overlay(folder):
    """Returns `prefix` of an empty overlayfs on the folder."""
    layers = 'mount -t tmpfs none "$0" && mkdir "$0/lower" "$0/upper" "$0/work"'
    options = "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work"
    return prefix(f'{layers} && mount -t overlay -o "{options}" none "$0"', folder)
