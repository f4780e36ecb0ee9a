"""Opens the files of a load by a group: rank 0 reads indexes and headers of URLs for all."""

from __future__ import annotations

import functools
import hashlib
import os
from contextlib import ExitStack
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
)

from .. import _core
from .._paths import is_url
from .._shards import (
    Shard,
    find_shards,
    open_shards,
    refuse_repeated,
    shards_of_url,
    sources_of,
)
from .agreement import agree

if TYPE_CHECKING:
    from .._core import safe_open
    from .._typing import Sources, Verify
    from .communicator import Communicator

# As of the core's reads of local files, and of readers that name none.
_FILE_GAP = 64 << 10
_READER_GAP = 1 << 20


class File(NamedTuple):
    """An open file."""

    handle: safe_open
    names: List[str]
    """Its tensors, in the order of their bytes."""
    gap_nbytes: int
    """A shorter gap between wanted bytes is read."""
    reader: Any
    """Reads it; None for a local file."""


class Model(NamedTuple):
    """The files of a load by a group."""

    files: List[File]
    """Those that some rank takes tensors of: the same on all ranks."""
    unopened: List[str]
    """The tensors of the others."""

    def handles(self) -> Dict[str, safe_open]:
        """Returns the open file of each tensor, in the order of the files and of their bytes."""
        return {name: file.handle for file in self.files for name in file.names}


def open_model(
    comm: Communicator,
    filenames: Sources,
    storage_options: Optional[Mapping[str, Any]],
    verify: Verify,
    needed: Callable[[List[Shard]], Iterable[int]],
    backend: str,
    stack: ExitStack,
) -> Model:
    """Finds the files, and opens those that some rank needs.

    Local files are opened by every rank. Of URLs, rank 0 reads the index and the headers; the
    other ranks make sure that they reach the same version.

    Args:
        comm: the ranks, which all call this.
        filenames, storage_options, verify: as for `load_files`.
        needed: returns the positions of the files that this rank takes tensors of.
        backend: see `safe_open`; "auto" is "pread".
        stack: the files are closed when it exits.

    Raises:
        Disagreement: the ranks do not load the same files.
        OSError, SafetensorError: as find_shards() and open_tensors().
    """
    sources = sources_of(filenames)
    agree(comm, [f"version {_core.__version__} of safetensors", *map(_described, sources)], None)
    shards = find_shards(sources, storage_options, lambda *url: _shards_of_url(comm, *url), verify)
    told = agree(comm, [_name(shard) for shard in shards], sorted(needed(shards)))
    chosen = {at: shards[at] for at in sorted(set().union(*told))}
    backend = "pread" if backend == "auto" else backend
    files = _open(comm, [*chosen.values()], backend, stack)
    gaps = agree(comm, [_line(file) for file in files], [file.gap_nbytes for file in files])[0]
    unopened = [
        name for at, shard in enumerate(shards) if at not in chosen for name in shard.names or ()
    ]
    return Model([f._replace(gap_nbytes=gap) for f, gap in zip(files, gaps, strict=True)], unopened)


def _open(comm: Communicator, shards: List[Shard], backend: str, stack: ExitStack) -> List[File]:
    from .._remote.shared import Follower, Leader, Start

    readers: List[Any] = [None if shard.reader is None else shard.reader() for shard in shards]
    found: List[Tuple[safe_open, List[str]]] = []

    def open_all() -> None:
        given = [
            shard if reader is None else shard._replace(reader=functools.partial(_same, reader))
            for shard, reader in zip(shards, readers, strict=True)
        ]
        for _, handle, names in refuse_repeated(open_shards(given, None, backend, stack)):
            assert handle is not None, "all files are opened"
            found.append((handle, names))

    if not any(shard.url for shard in shards):
        open_all()
    elif comm.rank == 0:
        leaders = {at: Leader(readers[at]) for at, shard in enumerate(shards) if shard.url}
        for at, leader in leaders.items():
            readers[at] = leader

        def lead() -> Dict[int, Start]:
            open_all()
            return {at: leader.start() for at, leader in leaders.items()}

        comm.share(lead)
    else:
        starts: Dict[int, Start] = comm.share(dict)
        for at, start in starts.items():
            readers[at] = Follower(readers[at], start)
        open_all()
    return [
        File(handle, names, _gap(reader), reader)
        for (handle, names), reader in zip(found, readers, strict=True)
    ]


def _shards_of_url(
    comm: Communicator, url: str, storage_options: Optional[Mapping[str, Any]]
) -> List[Shard]:
    """Returns the files of a URL, of which rank 0 alone reads the index."""
    from .._remote.open import reopen

    own: List[Shard] = []

    def find() -> List[Shard]:
        own.extend(shards_of_url(url, storage_options))
        return [shard._replace(reader=None) for shard in own]

    found = comm.share(find)
    if comm.rank == 0:
        return own
    readers = reopen([shard.url for shard in found], storage_options)
    return [shard._replace(reader=make) for shard, make in zip(found, readers, strict=True)]


def _same(reader: Any) -> Any:
    return reader


def _described(source: object) -> str:
    """Returns what has to be the same of an entry of `filenames`."""
    if isinstance(source, str) and is_url(source):
        from .._remote.redact import redact

        return redact(source)
    return "a path" if isinstance(source, (str, bytes, os.PathLike)) else "a RangeReader"


def _name(shard: Shard) -> str:
    if shard.absent_from:
        return f"missing tensor {min(shard.names or ())}"
    # Paths may differ from machine to machine.
    return shard.path if shard.reader is not None else os.path.basename(shard.path)


def _line(file: File) -> str:
    size = int.from_bytes(_core._read_range(file.handle, 0, 8), "little")
    header = _core._read_range(file.handle, 8, size)
    ends = (file.handle.get_tensor_meta(name).data_offsets[1] for name in file.names)
    nbytes = 8 + size + max(ends, default=0)
    digest = hashlib.sha256(header).hexdigest()[:16]
    return f"a file of {nbytes} bytes whose header has the checksum {digest}"


def _gap(reader: Any) -> int:
    return _FILE_GAP if reader is None else int(getattr(reader, "gap_bytes", _READER_GAP))
