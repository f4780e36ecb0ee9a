"""Replaces files atomically, by the rules of the core: docs/format.md, "Saving"."""

import contextlib
import errno
import os
import stat

from .errors import CliError

_MOST_NAME_BYTES = 200  # a temporary name adds to them, and the usual limit is 255
_ACCESS_LIST = "system.posix_acl_access"


class AtomicFile:
    """A temporary file beside `path` that replaces it on commit(), and is otherwise removed.

    Symbolic links are followed. If a file is replaced, its mode, owner, group and access list are
    kept as far as the system allows, and no one else gains an access right. Unlike the core, this
    class raises if the file cannot be replaced, instead of writing in place.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._temporary = ""
        self.target = os.path.realpath(path)
        old = None
        with contextlib.suppress(FileNotFoundError):
            old = os.stat(path)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise CliError(f"{path}: not a regular file, so it cannot be replaced")
        if old is not None and not self._is_target(old):
            # For example /proc/self/fd/3, if the file of descriptor 3 was deleted.
            raise CliError(f"{path}: an open file without a name cannot be replaced")
        folder, name = os.path.split(self.target)
        start = os.fsdecode(os.fsencode(name)[:_MOST_NAME_BYTES])
        try:
            # The name is stored first, so that the file is removed even if Ctrl-C comes before
            # os.open returns.
            self._temporary = os.path.join(folder, f".{start}.{os.urandom(8).hex()}.tmp")
            self._create(path, 0o666 if old is None else 0o600)
            if old is not None:
                self._take_over(old)
        except BaseException:
            self.discard()
            raise

    def __del__(self) -> None:
        self.discard()  # Ctrl-C may come before the with statement is entered

    def _is_target(self, file: os.stat_result) -> bool:
        try:
            return os.path.samestat(file, os.stat(self.target))
        except FileNotFoundError:
            return False

    def _create(self, path: str, mode: int) -> None:
        """Creates the temporary file. A replacement starts private: the old file may be private."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(self._temporary, flags, mode)
        except OSError as error:
            # The message names the target: the user does not know the temporary file.
            raise OSError(error.errno, error.strerror, path) from None

    @property
    def temporary(self) -> str:
        """The path of the temporary file; empty after commit()."""
        return self._temporary

    def fileno(self) -> int:
        return self._fd

    def write(self, data: "bytes | memoryview") -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self, fsync: bool) -> None:
        """Renames the file to the target. With `fsync` it then survives a power failure."""
        if fsync:
            os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)
        os.replace(self._temporary, self.target)
        self._temporary = ""
        if fsync and hasattr(os, "O_DIRECTORY"):
            folder = os.open(os.path.dirname(self.target), os.O_RDONLY | os.O_DIRECTORY)
            # Ignored, because the file is complete and in place; some file systems cannot flush
            # folders.
            with contextlib.suppress(OSError):
                os.fsync(folder)
            os.close(folder)

    def discard(self) -> None:
        """Removes the temporary file if it was not committed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""

    def __enter__(self) -> "AtomicFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _take_over(self, old: os.stat_result) -> None:
        """Copies mode, owner, group and access list so that no one gains an access right.

        The rules are those of the core; src/io/posix/atomic_file.cpp explains them.
        """
        if not hasattr(os, "fchmod"):  # Windows
            return
        now = os.fstat(self._fd)
        same_group = now.st_gid == old.st_gid or self._chown(-1, old.st_gid)
        same_owner = now.st_uid == old.st_uid or self._chown(old.st_uid, -1)
        mode = stat.S_IMODE(old.st_mode)
        if not (same_owner and same_group):
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if not same_group:
            common = mode >> 3 & mode & 0o7
            mode = mode & ~0o77 | common << 3 | common
        if not self._take_access_list(same_group):
            mode &= ~0o77
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(self._fd, mode)

    def _chown(self, user: int, group: int) -> bool:
        try:
            os.fchown(self._fd, user, group)
        except OSError:
            return False
        return True

    def _take_access_list(self, same_group: bool) -> bool:
        """Copies the access list, if any. Returns whether the new file now has the old one's."""
        if not hasattr(os, "getxattr"):
            return True
        without = (errno.ENODATA, errno.ENOTSUP)
        try:
            access_list = os.getxattr(self.target, _ACCESS_LIST)
        except OSError as error:
            if error.errno not in without:
                return False
            access_list = b""
        if access_list and not same_group:
            return False
        try:
            if access_list:
                os.setxattr(self._fd, _ACCESS_LIST, access_list)
            else:  # the new file may have inherited one from the folder's default list
                os.removexattr(self._fd, _ACCESS_LIST)
        except OSError as error:
            return not access_list and error.errno in without
        return True
