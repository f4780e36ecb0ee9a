"""Copying parts of files: shared on disk where the file system can, else by the kernel."""

import errno
import os

from .errors import CliError
from .output import Advance
from .reader import CHUNK_NBYTES, File
from .text import shown_path

_FICLONE = 0x40049409  # of linux/fs.h
_BLOCK_NBYTES = 4096
_MOST_AT_ONCE = 64 << 20  # so that Ctrl-C and the progress bar get their turn

# Not supported for these two files, rather than failed.
_CANNOT = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EBADF,
    errno.ETXTBSY,
}


def clone(source: File, target: int) -> bool:
    """Whether the empty file `target` now shares all blocks of `source`: btrfs, XFS and others."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def copy_range(source: File, begin: int, nbytes: int, target: int, advance: Advance) -> None:
    """Appends a part of a file to `target`, at its position."""
    if hasattr(os, "copy_file_range"):
        # Whole blocks are shared where the file system can and both lie alike.
        head = min(nbytes, -begin % _BLOCK_NBYTES)
        done = _copy_by_kernel(source, begin, head, target, advance)
        if done == head:
            done += _copy_by_kernel(source, begin + head, nbytes - head, target, advance)
        begin, nbytes = begin + done, nbytes - done
    while nbytes > 0:
        chunk = memoryview(source.read(begin, min(CHUNK_NBYTES, nbytes)))
        begin, nbytes = begin + len(chunk), nbytes - len(chunk)
        advance(len(chunk))
        while chunk:
            chunk = chunk[os.write(target, chunk) :]


def _copy_by_kernel(source: File, begin: int, nbytes: int, target: int, advance: Advance) -> int:
    """How much was copied: all, or less where the system cannot."""
    done = 0
    while done < nbytes:
        count = min(_MOST_AT_ONCE, nbytes - done)
        try:
            copied = os.copy_file_range(source.fileno(), target, count, begin + done)
        except OSError as error:
            if error.errno in _CANNOT:
                break
            raise
        if copied == 0:
            if os.fstat(source.fileno()).st_size < begin + nbytes:
                raise CliError(f"{shown_path(source.path)}: it became shorter while it was read")
            break
        done += copied
        advance(copied)
    return done
