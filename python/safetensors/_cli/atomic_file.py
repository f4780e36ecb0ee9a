"""Writing a file whole or not at all, as the core does: docs/format.md, "Saving"."""

import contextlib
import errno
import os
import stat

from .errors import CliError
from .text import shown_path

_MOST_NAME_BYTES = 200  # of the usual 255, to leave room for the rest
_ACCESS_LIST = "system.posix_acl_access"


class AtomicFile:
    """A temporary file beside `path`, which replaces it on commit and else disappears.

    A symbolic link is followed. Of a file that is replaced, mode, owner, group and access list are
    kept as far as the system allows, and nobody gets a right that they lacked. Unlike the core
    this refuses where it cannot replace, rather than write in place.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._temporary = ""
        self.target = os.path.realpath(path)
        old = None
        with contextlib.suppress(FileNotFoundError):
            old = os.stat(path)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise CliError(f"{shown_path(path)}: not a file, and only files are written")
        if old is not None and not self._is_target(old):
            # As /proc/self/fd/3 of a file that was removed: to replace it means nothing.
            raise CliError(f"{shown_path(path)}: an open file without a name cannot be replaced")
        folder, name = os.path.split(self.target)
        start = os.fsdecode(os.fsencode(name)[:_MOST_NAME_BYTES])
        try:
            # Known before it is there, and removed even if Ctrl-C comes before open returns.
            self._temporary = os.path.join(folder, f".{start}.{os.urandom(8).hex()}.tmp")
            self._create(path, 0o666 if old is None else 0o600)
            if old is not None:
                self._take_over(old)
        except BaseException:
            self.discard()
            raise

    def __del__(self) -> None:
        self.discard()  # Ctrl-C may come before the with statement has it

    def _is_target(self, file: os.stat_result) -> bool:
        try:
            return os.path.samestat(file, os.stat(self.target))
        except FileNotFoundError:
            return False

    def _create(self, path: str, mode: int) -> None:
        """A replacement starts closed to others: the old file may have been private."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(self._temporary, flags, mode)
        except OSError as error:
            # The user does not know of a temporary file.
            raise OSError(error.errno, error.strerror, path) from None

    @property
    def temporary(self) -> str:
        """Its name until it is committed."""
        return self._temporary

    def fileno(self) -> int:
        return self._fd

    def write(self, data: "bytes | memoryview") -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self, fsync: bool) -> None:
        """Gives the file its name; with `fsync` it survives a power failure from then on."""
        if fsync:
            os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)
        os.replace(self._temporary, self.target)
        self._temporary = ""
        if fsync and hasattr(os, "O_DIRECTORY"):
            folder = os.open(os.path.dirname(self.target), os.O_RDONLY | os.O_DIRECTORY)
            # The file is whole and in place; some file systems cannot flush folders.
            with contextlib.suppress(OSError):
                os.fsync(folder)
            os.close(folder)

    def discard(self) -> None:
        """Removes what is not committed."""
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
        """Carries over mode, owner, group and access list by the core's rule: nobody gets a right
        that they lacked (src/io/posix/atomic_file.cpp says why it is so)."""
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
        """Whether the new file has the access list of the old one, or none if that has none."""
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
            else:  # the new file may have one: from the default list of the folder
                os.removexattr(self._fd, _ACCESS_LIST)
        except OSError as error:
            return not access_list and error.errno in without
        return True
