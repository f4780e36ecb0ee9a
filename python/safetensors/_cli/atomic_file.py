"""Writing a file whole or not at all, as the core does: docs/format.md, "Saving"."""

import contextlib
import os
import stat

from .errors import CliError
from .text import shown_path

_MOST_NAME_BYTES = 200  # of the usual 255, to leave room for the rest
_ACCESS_LIST = "system.posix_acl_access"


class AtomicFile:
    """A temporary file beside `path`, which replaces it on commit and else disappears.

    A symbolic link is followed. Of a file that is replaced, the mode, the access list, and the
    owner as far as the system allows, are kept. Unlike the core this refuses where it cannot
    replace, rather than write in place.
    """

    def __init__(self, path: str) -> None:
        self.target = os.path.realpath(path)
        old = None
        with contextlib.suppress(FileNotFoundError):
            old = os.stat(self.target)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise CliError(f"{shown_path(path)}: not a file, and only files are written")
        folder, name = os.path.split(self.target)
        start = os.fsdecode(os.fsencode(name)[:_MOST_NAME_BYTES])
        self._temporary = os.path.join(folder, f".{start}.{os.urandom(8).hex()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            # A replacement starts closed to others: the old file may have been private.
            self._fd = os.open(self._temporary, flags, 0o666 if old is None else 0o600)
        except OSError as error:
            # The user does not know of a temporary file.
            raise OSError(error.errno, error.strerror, path) from None
        try:
            if old is not None:
                self._take_over(old)
        except BaseException:
            self.discard()
            raise

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
        if not hasattr(os, "fchmod"):  # Windows
            return
        mode = stat.S_IMODE(old.st_mode)
        now = os.fstat(self._fd)
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self._fd, old.st_uid, old.st_gid)
            except OSError:
                # Rights that were given to another owner or group must not go to ours.
                mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if not self._copy_access_list():
            # With a list the group bits are its mask: without it they would grant too much.
            mode &= ~stat.S_IRWXG
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(self._fd, mode)

    def _copy_access_list(self) -> bool:
        if not hasattr(os, "getxattr"):
            return True
        try:
            access_list = os.getxattr(self.target, _ACCESS_LIST)
        except OSError:
            return True
        try:
            os.setxattr(self._fd, _ACCESS_LIST, access_list)
        except OSError:
            return False
        return True
