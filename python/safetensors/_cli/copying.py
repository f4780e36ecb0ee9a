"""Copies parts of files: by sharing blocks if the file system can, else in the kernel."""

import errno
import os

from .errors import CliError
from .output import Advance
from .reader import CHUNK_NBYTES, File

_FICLONE = 0x40049409  # from linux/fs.h
_BLOCK_NBYTES = 4096
_MOST_AT_ONCE = 64 << 20  # so that Ctrl-C and the progress bar are handled in between

# The operation is not supported for these two files; it did not fail.
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
    """Makes the empty file `target` share all blocks of `source` (btrfs, XFS and others).

    Returns whether the file system did so.
    """
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
    """Copies a part of a file to the current position of `target`."""
    if hasattr(os, "copy_file_range"):
        # File systems can share whole blocks if source and target have the same offset in them,
        # so the first, partial block is copied separately.
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
    """Returns the number of bytes copied; fewer than `nbytes` if the kernel cannot copy them."""
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
                raise CliError(f"{source.path}: the file became shorter while it was read")
            break
        done += copied
        advance(copied)
    return done
