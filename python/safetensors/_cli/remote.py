"""Files behind URLs, read as local files are."""

import contextlib

from .. import _core
from .._core import safe_open
from .._open_shards import open_shards
from .._shards import ShardFile
from .diagnose import START_NBYTES
from .reader import File


class RemoteFile(File):
    """An open file. Raises the errors of safe_open, which name it."""

    is_whole = False

    def __init__(self, shard: ShardFile, handle: safe_open) -> None:
        """`handle` is that of the file, which this object closes."""
        self.path = shard.path
        self._shard = shard
        self._handle = handle
        self._describe(handle)
        ends = [tensor.begin + tensor.nbytes for tensor in self.tensors]
        self.nbytes = max(ends, default=self.data_begin)

    def handle(self) -> safe_open:
        assert self._shard.reader is not None
        return safe_open(self._shard.reader(), "np")

    def refuse_changed(self) -> None:
        """Does nothing: the reader of the bytes raises."""

    def close(self) -> None:
        self._handle.close()

    def _read_some(self, begin: int, nbytes: int) -> bytes:
        return _core._read_range(self._handle, begin, nbytes)


def open_all(shards: list[ShardFile]) -> list[File]:
    """Opens the files, several at once. Opens none if one of them fails."""
    with contextlib.ExitStack() as stack:
        # Without the names of an index, of which a file may lack some: that is for the caller.
        bare = [shard._replace(names=None) for shard in shards]
        files: list[File] = []
        for shard, handle, _ in open_shards(bare, None, "pread", stack):
            assert handle is not None, "all files are opened"
            files.append(RemoteFile(shard, handle))
        stack.pop_all()  # the handles are the files' now
        return files


def start_of(shard: ShardFile) -> bytes:
    """Returns the first bytes of a file that is no safetensors file; none if it cannot be read."""
    assert shard.reader is not None
    with contextlib.suppress(Exception):
        return bytes(shard.reader().open(START_NBYTES)[1])
    return b""
