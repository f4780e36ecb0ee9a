"""Files behind URLs, read as local files are."""

import contextlib

from .. import _core
from .._core import safe_open
from .._shards import ShardFile
from .._workers import Workers
from .diagnose import START_NBYTES
from .reader import File

_HEADERS_AT_ONCE = 16


class RemoteFile(File):
    """An open file. Raises the errors of safe_open, which name it."""

    is_whole = False

    def __init__(self, shard: ShardFile) -> None:
        self.path = shard.path
        self._shard = shard
        self._handle = self.handle()
        try:
            self._describe(self._handle)
            ends = [tensor.begin + tensor.nbytes for tensor in self.tensors]
            self.nbytes = max(ends, default=self.data_begin)
        except BaseException:
            self.close()
            raise

    def handle(self) -> safe_open:
        assert self._shard.reader is not None
        return safe_open(self._shard.reader(), "np")

    def close(self) -> None:
        self._handle.close()

    def _read_some(self, begin: int, nbytes: int) -> bytes:
        return _core._read_range(self._handle, begin, nbytes)


def open_all(shards: list[ShardFile]) -> list[File]:
    """Opens the files, several at once. Opens none if one of them fails."""
    with Workers(_HEADERS_AT_ONCE) as pool:
        opening = [pool.submit(RemoteFile, shard) for shard in shards]
        try:
            return [future.result() for future in opening]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for future in opening:
                if not future.cancelled() and future.exception() is None:
                    future.result().close()
            raise


def start_of(shard: ShardFile) -> bytes:
    """Returns the first bytes of a file that is no safetensors file; none if it cannot be read."""
    assert shard.reader is not None
    with contextlib.suppress(Exception):
        return bytes(shard.reader().open(START_NBYTES)[1])
    return b""
