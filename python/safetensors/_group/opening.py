"""Opens the files of a load by a group: rank 0 reads indexes and headers of URLs for all."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core, _extra
from .._load_arguments import LoadArguments
from .._model_folder import Choice
from .._open_shards import open_shards, refuse_repeated
from .._paths import is_url
from .._shards import ShardFile, shards_of_url, sources_of
from .agreement import agree, understood
from .message import MAX_NBYTES, Message, expect

if TYPE_CHECKING:
    from .._core import safe_open
    from .._remote.shared import Start
    from .communicator import Communicator

_GAP_END = 1 << 63
# A file without tensors that an index assigns to it, or without a size.
_NONE = -1
# Of the data of all local files together: how many blocks are compared, but one of each file at
# least, and their bytes.
_SAMPLES = 64
_SAMPLE_NBYTES = 4096


class GroupFile(NamedTuple):
    """An open file."""

    handle: safe_open
    names: list[str]
    """Its tensors, in the order of their bytes."""
    gap_nbytes: int
    """A shorter gap between wanted bytes is read."""
    reader: Any
    """Reads it; None for a local file."""


class Model(NamedTuple):
    """The files of a load by a group."""

    files: list[GroupFile]
    """Those that some rank takes tensors of: the same on all ranks."""
    unopened: list[str]
    """The tensors of the others."""

    def handles(self) -> dict[str, safe_open]:
        """Returns the open file of each tensor, in the order of the files and of their bytes."""
        return {name: file.handle for file in self.files for name in file.names}


def open_model(
    comm: Communicator,
    options: LoadArguments,
    needed: Callable[[list[ShardFile]], Iterable[int]],
    stack: ExitStack,
) -> Model:
    """Finds the files, and opens those that some rank needs.

    Local files are opened by every rank. Of URLs, rank 0 reads the index and the headers; the
    other ranks make sure that they reach the same version.

    Args:
        comm: the ranks, which all call this.
        options: `backend` "auto" is "pread".
        needed: returns the positions of the files that this rank takes tensors of.
        stack: the files are closed when it exits.

    Raises:
        Disagreement: the ranks do not load the same files.
        OSError, SafetensorError: as find_shards() and open_tensors().
    """
    sources = sources_of(options.filenames)
    choice = options.choice
    version = f"version {_core.__version__} of safetensors"
    chosen_model = f"name {choice.name!r} and variant {choice.variant!r} of a model"
    agree(comm, "sources", [version, chosen_model, *map(_described, sources)], (), list)
    of_url = functools.partial(_shards_of_url, comm)
    shards = options._replace(filenames=sources).find(of_url)
    _refuse_absent_files(shards)
    positions = functools.partial(_integers, below=len(shards))
    names = [_name(shard) for shard in shards]
    told = agree(comm, "files", names, sorted(needed(shards)), positions)
    chosen = {at: shards[at] for at in sorted(set().union(*told))}
    backend = "pread" if options.backend == "auto" else options.backend
    files = _open(comm, [*chosen.values()], backend, stack)
    own_gaps = [file.gap_nbytes for file in files]
    lengths = functools.partial(_integers, below=_GAP_END, count=len(files))
    lines = [_line(file, max(_SAMPLES // len(files), 1)) for file in files]
    gaps = agree(comm, "opened", lines, own_gaps, lengths)[0]
    unopened = [
        name for at, shard in enumerate(shards) if at not in chosen for name in shard.names or ()
    ]
    return Model([f._replace(gap_nbytes=gap) for f, gap in zip(files, gaps, strict=True)], unopened)


def _refuse_absent_files(shards: Sequence[ShardFile]) -> None:
    """Raises the error of opening a file that the caller named and that cannot be found.

    Such a path may be meant as a folder. Without this, the ranks would seem to load other files.
    """
    for shard in shards:
        is_named = shard.reader is None and shard.names is None and not shard.absent_from
        if is_named and not os.path.exists(shard.path):
            _core._open_shard(shard.path, "pread").close()


def _open(
    comm: Communicator, shards: list[ShardFile], backend: str, stack: ExitStack
) -> list[GroupFile]:
    from .._remote.shared import Follower, Leader

    readers: list[Any] = [None if shard.reader is None else shard.reader() for shard in shards]
    found: list[tuple[safe_open, list[str]]] = []

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

        def lead() -> Message:
            open_all()
            begins = [_core._data_begin(found[at][0]) for at in leaders]
            return _told_starts([leader.start() for leader in leaders.values()], begins)

        comm.share("headers", lead)
    else:
        remote = [at for at, shard in enumerate(shards) if shard.url]
        starts = understood(0, _starts, comm.share("headers", Message), len(remote))
        for at, start in zip(remote, starts, strict=True):
            readers[at] = Follower(readers[at], start)
        open_all()
    return [
        GroupFile(handle, names, _extra._read_gap(handle), reader)
        for (handle, names), reader in zip(found, readers, strict=True)
    ]


def _shards_of_url(
    comm: Communicator, url: str, storage_options: Mapping[str, Any] | None, choice: Choice
) -> list[ShardFile]:
    """Returns the files of a URL, of which rank 0 alone reads the index."""
    from .._remote.open import reopen

    own: list[ShardFile] = []

    def find() -> Message:
        own.extend(shards_of_url(url, storage_options, choice))
        return _told_shards(own)

    told = comm.share("shards", find)
    if comm.rank == 0:
        return own
    found = understood(0, _shards, told)
    readers = reopen(url, [shard.url for shard in found], storage_options)
    return [shard._replace(reader=make) for shard, make in zip(found, readers, strict=True)]


def _told_shards(shards: Sequence[ShardFile]) -> Message:
    """Returns the files of a URL as a message.

    of each file, strings: its path, its index, its URL; the names of its tensors
    of each file, integers: how many names, the bytes of all tensors of the model
    """
    texts: list[str] = []
    numbers: list[int] = []
    for shard in shards:
        texts += (shard.path, shard.index_path, shard.url, *(shard.names or ()))
        numbers.append(_NONE if shard.names is None else len(shard.names))
        numbers.append(_NONE if shard.total_size is None else shard.total_size)
    return Message(texts, numbers)


def _shards(told: Message) -> list[ShardFile]:
    """Returns the files of a message, without what makes their readers. Raises Malformed."""
    texts, numbers = told.texts, told.numbers
    count = len(numbers) // 2
    expect(len(numbers) == 2 * count and not told.data, "files with other integers than two each")
    most = _extra._MAX_INDEX_FILES
    expect(count <= most, f"{count} files; a model has at most {most}")
    expect(min(numbers, default=0) >= _NONE, "files with negative counts")
    found: list[ShardFile] = []
    at = 0
    for names, total_size in zip(numbers[::2], numbers[1::2], strict=True):
        first, last = at + 3, at + 3 + max(names, 0)
        expect(last <= len(texts), f"{len(texts)} strings, too few for the files and their tensors")
        path, index_path, url = texts[at:first]
        listed = None if names == _NONE else list(texts[first:last])
        total = None if total_size == _NONE else total_size
        found.append(ShardFile(path, listed, index_path, total_size=total, url=url))
        at = last
    expect(at == len(texts), f"{len(texts)} strings, {len(texts) - at} too many for the files")
    return found


def _told_starts(starts: Sequence[Start], begins: Sequence[int]) -> Message:
    """Returns the starts of files, whose data begins at these offsets, as a message: of each the
    version, the size, how many bytes; then the bytes."""
    if sum(len(start.first) for start in starts) > MAX_NBYTES // 2:  # no bytes of tensors then
        starts = [
            s._replace(first=s.first[:begin]) for s, begin in zip(starts, begins, strict=True)
        ]
    numbers = [number for start in starts for number in (start.size, len(start.first))]
    data = b"".join(start.first for start in starts)
    return Message([start.version for start in starts], numbers, data)


def _starts(told: Message, count: int) -> list[Start]:
    """Returns the starts of so many files. Raises Malformed."""
    from .._remote.shared import Start

    texts, numbers, data = told
    expect(len(texts) == count, f"the starts of {len(texts)} files, not of {count}")
    expect(len(numbers) == 2 * count, f"{len(numbers)} integers for {count} files")
    found: list[Start] = []
    at = 0
    for version, size, nbytes in zip(texts, numbers[::2], numbers[1::2], strict=True):
        expect(0 <= nbytes <= size, f"{nbytes} first bytes of a file with {size}")
        expect(nbytes <= len(data) - at, f"{len(data)} bytes, too few for the starts of the files")
        found.append(Start(size, version, data[at : at + nbytes]))
        at += nbytes
    expect(at == len(data), f"{len(data) - at} bytes more than the starts of the files have")
    return found


def _integers(numbers: Sequence[int], *, below: int, count: int | None = None) -> Sequence[int]:
    """Returns what a rank has sent, not negative integers. Raises Malformed."""
    expect(count is None or len(numbers) == count, f"{len(numbers)} integers instead of {count}")
    expect(all(0 <= each < below for each in numbers), f"integers outside of 0 to {below}")
    return numbers


def _same(reader: Any) -> Any:
    return reader


def _described(source: object) -> str:
    """Returns what has to be the same of an entry of `filenames`."""
    if isinstance(source, str) and is_url(source):
        from .._redact import redact
        from .._remote.open import is_cached

        return redact(source) + (" in the Hub's cache" if is_cached(source) else "")
    return "a path" if isinstance(source, (str, bytes, os.PathLike)) else "a RangeReader"


def _name(shard: ShardFile) -> str:
    if shard.absent_from:
        return f"missing tensor {min(shard.names or ())}"
    # Paths may differ from machine to machine.
    return shard.path if shard.reader is not None else os.path.basename(shard.path)


def _line(file: GroupFile, samples: int) -> str:
    """Returns what has to be the same of a file: its length, its header, and of a local file so
    many blocks of its data."""
    begin = _core._data_begin(file.handle)
    header = _core._read_range(file.handle, 8, begin - 8)
    names = file.handle.offset_keys()
    end = file.handle.get_tensor_meta(names[-1]).data_offsets[1] if names else 0
    digest = hashlib.sha256(header).hexdigest()[:16]
    text = f"a file of {begin + end} bytes whose header has the checksum {digest}"
    if file.reader is not None:
        return text
    return f"{text} and samples of its data {_sampled(file.handle, begin, end, samples)}"


def _sampled(handle: safe_open, begin: int, nbytes: int, count: int) -> str:
    """Returns the digest of blocks that are spread over a file's data; of all of it if it is short.

    Args:
        handle: the file.
        begin, nbytes: of the data.
        count: of the blocks.
    """
    if nbytes <= count * _SAMPLE_NBYTES:
        return _extra._xxh3_128(_core._read_range(handle, begin, nbytes, verify=False))
    step = nbytes // count
    places = range(begin + (step - _SAMPLE_NBYTES) // 2, begin + step * count, step)
    # Without `verify`, which would read all of the tensors around the blocks.
    blocks = (_core._read_range(handle, at, _SAMPLE_NBYTES, verify=False) for at in places)
    return _extra._xxh3_128(b"".join(blocks))
