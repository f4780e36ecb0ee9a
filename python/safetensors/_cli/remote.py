"""Files behind URLs, read as local files are."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

from .. import _core
from .._core import safe_open
from .._shards import Shard, find_shards
from .diagnose import START_NBYTES
from .errors import CliError
from .model import Index
from .reader import File

_HEADERS_AT_ONCE = 16


class RemoteFile(File):
    """An open file. Raises the errors of safe_open, which name it."""

    def __init__(self, shard: Shard) -> None:
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


def files_of(url: str) -> tuple[list[Shard], Index | None]:
    """Returns the files to open for a URL, and the index that names them, if any."""
    shards = find_shards(url)
    index_path = shards[0].index_path
    if not index_path:
        return shards, None
    weight_map = {name: shard.path for shard in shards for name in shard.names or ()}
    if not weight_map:
        raise CliError(f"{index_path}: not an index of shards: it names no tensor")
    return shards, Index(index_path, weight_map, None, is_remote=True)


def open_all(shards: list[Shard]) -> list[File]:
    """Opens the files, several at once."""
    with ThreadPoolExecutor(_HEADERS_AT_ONCE) as pool:
        return list(pool.map(RemoteFile, shards))


def start_of(shard: Shard) -> bytes:
    """Returns the first bytes of a file that is no safetensors file; none if it cannot be read."""
    assert shard.reader is not None
    with contextlib.suppress(Exception):
        return bytes(shard.reader().open(START_NBYTES)[1])
    return b""
