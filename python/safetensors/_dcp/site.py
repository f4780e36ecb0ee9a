"""Which machine and which file system a process sees in a folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import NamedTuple

from .._paths import absolute

# Parallel file systems that keep ranges of a file coherent among machines, by f_type of statfs(2).
_COHERENT = {
    0x0BD00BD0,  # Lustre
    0x47504653,  # GPFS
    0x19830326,  # BeeGFS
    0x00C36400,  # CephFS
}


class Site(NamedTuple):
    """Where a rank finds the folder."""

    boot_id: str
    """Identifies the running kernel; empty if the system does not say."""
    device: int
    inode: int
    rest: str
    """What of the folder's path does not exist: the numbers are those of what does."""
    type: int
    """The file system's type, as statfs(2) gives it; 0 if the system does not say."""


def site_of(folder: str) -> Site:
    """Returns the site of a folder that need not exist."""
    path, rest = absolute(folder), ""
    while True:
        try:
            status = os.stat(path)
            break
        except FileNotFoundError:
            path, last = os.path.split(path)
            rest = os.path.join(last, rest)
    boot_id = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    return Site(boot_id, status.st_dev, status.st_ino, rest, _type_of(path))


def can_share_files(sites: list[Site]) -> bool:
    """Returns whether processes at these sites may write to different ranges of one file."""
    first = sites[0]
    if len(sites) == 1:
        return True
    if any((site.inode, site.rest) != (first.inode, first.rest) for site in sites):
        return False
    if first.boot_id and all(site[:2] == first[:2] for site in sites):
        return True
    return first.type in _COHERENT and all(site.type == first.type for site in sites)


def one_machine(sites: list[Site]) -> bool:
    """Returns whether one process can flush what all of them wrote."""
    return len(sites) == 1 or all(site[:2] == sites[0][:2] for site in sites)


def _type_of(path: str) -> int:
    with contextlib.suppress(OSError, AttributeError):
        # struct statfs has at most 120 bytes on Linux and begins with the type. That of macOS
        # begins otherwise, and has none of these file systems.
        buffer = ctypes.create_string_buffer(4096)
        if ctypes.CDLL(None).statfs(os.fsencode(path), buffer) == 0:
            return ctypes.c_uint32.from_buffer(buffer).value
    return 0
