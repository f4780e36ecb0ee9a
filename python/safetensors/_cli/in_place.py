"""Changes a few bytes of a file in place, if that is atomic."""

import errno
import os

from .._core import SafetensorError, _remove_sums
from .compare import first_difference
from .header_text import LENGTH_NBYTES

_SECTOR_NBYTES = 512


def change_in_place(path: str, old: bytes, new: bytes) -> bool:
    """Replaces a header by another of the same length, and flushes it to the disk.

    Returns whether it did so. It does only if no one can observe a partial change:

    * after a power failure, because all bytes that change lie in one 512-byte sector, which disks
      write atomically;
    * after a kill, because one write within one page is not interrupted;
    * in a reader, because a write lease is held. The system grants it only while no other process
      has the file open or mapped, and a process that opens the file waits until it is released.
      On overlayfs it grants it also while the file is mapped, so nothing is done there.
    """
    place = _changed_in_one_sector(old, new)
    if place is None:
        return False
    if os.name == "nt":
        return False
    from .._saving.folder import Folder
    from .._saving.lease import leased

    folder, name = os.path.split(path)
    try:
        fd = Folder(folder).open(name, own=False)
    except (OSError, SafetensorError):  # such as a link, which may be a stranger's
        return False
    if fd is None:
        return False
    try:
        with leased(fd) as why:
            if why or os.pread(fd, len(old), LENGTH_NBYTES) != old:
                return False
            _remove_sums(path)
            begin, end = place
            if os.pwrite(fd, new[begin:end], LENGTH_NBYTES + begin) != end - begin:
                raise OSError(errno.EIO, "the header was written only in part", path)
            os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _changed_in_one_sector(old: bytes, new: bytes) -> tuple[int, int] | None:
    """Returns a range with all bytes that differ, or None if they are not in one sector."""
    begin = first_difference(old, new)
    end = begin + _SECTOR_NBYTES - (LENGTH_NBYTES + begin) % _SECTOR_NBYTES
    if old[end:] != new[end:]:
        return None
    return begin, min(end, len(old))
