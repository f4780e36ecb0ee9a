"""Opens the files of a sharded model that _shards.py has found.

Shared by all frameworks: imports none.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from . import _core, _extra
from ._checking.absent import needed, refuse_absent
from ._core import safe_open
from ._errors import failure
from ._shards import ShardFile, not_cached, of_one_model

if TYPE_CHECKING:
    from ._range_reader import RangeReader

_HEADERS_AT_ONCE = 16

Opened = tuple[ShardFile, safe_open | None, list[str]]
"""A file; its handle, None if no tensor in it is requested; and the names of its tensors in the
order of their bytes, those that an index assigns to it if there is one."""


def open_tensors(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> tuple[dict[str, safe_open], list[str]]:
    """Opens the files that hold requested tensors.

    Args:
        shards: the files. A file of an index is opened only if a tensor in it is requested.
        wanted: the requested names; None requests all tensors.
        backend: see `safe_open`.
        stack: the files are closed when it exits.

    Returns:
        The open file of each requested tensor, ordered by file and byte offset; and the names of
        the other tensors.

    Raises:
        SafetensorError: two files hold the same name, a file lacks a tensor that its index assigns
            to it, or a file is damaged.
        IntegrityError: a requested tensor is absent, see refuse_absent().
        OSError: a file cannot be opened.
    """
    handles: dict[str, safe_open] = {}
    unwanted: list[str] = []
    for _, handle, names in refuse_repeated(open_shards(shards, wanted, backend, stack)):
        if wanted is not None:
            unwanted += (name for name in names if name not in wanted)
            names = [name for name in names if name in wanted]
        if handle is not None:
            handles.update(dict.fromkeys(names, handle))
    return handles, unwanted


def refuse_repeated(opened: list[Opened]) -> list[Opened]:
    """Returns what open_shards() returned. Raises SafetensorError if two files hold the same name:
    load_files returns one dict, in which the second tensor would replace the first."""
    if len(opened) > 1:
        # A file may have tensors that the index puts into another one.
        names = [
            names if handle is None or len(handle) == len(names) else handle.offset_keys()
            for _, handle, names in opened
        ]
        _extra._refuse_repeated(names, [shard.path for shard, _, _ in opened])
    return opened


def open_shards(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> list[Opened]:
    """Returns the files that open_tensors() opens, and the others without a handle.

    Raises:
        IntegrityError: before anything is opened, as refuse_absent().
        SafetensorError: as open_tensors(); or an index was replaced meanwhile.
    """
    refuse_absent(shards, wanted)
    with of_one_model(shards):
        opened = _open_at_once(shards, wanted, backend, stack)
        return [
            (shard, *_open_shard(shard, wanted, backend, stack, opened.get(i)))
            for i, shard in enumerate(shards)
        ]


def backend_for(shards: Sequence[ShardFile], backend: str) -> str:
    """Returns the backend for all files: "pread" instead of one that maps, if one is not local or
    is compared with digests."""
    if backend in ("mmap", "auto") and any(
        shard.reader is not None or shard.verifier is not None for shard in shards
    ):
        return "pread"
    return backend


def _open_at_once(
    shards: Sequence[ShardFile],
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
) -> dict[int, safe_open]:
    """Opens the files that are not local or are read whole, several at once.

    Returns:
        The open files by their positions.
    """
    readers = {
        i: shard.reader() if shard.reader is not None else None
        for i, shard in enumerate(shards)
        if (shard.reader is not None or (shard.verifier is not None and shard.verifier.reads_all))
        and (shard.names is None or needed(shard, wanted) is not None)
    }
    if not readers:
        return {}
    from concurrent.futures import FIRST_EXCEPTION, Future, wait

    from ._workers import Workers

    opening: dict[int, Future[safe_open]] = {}
    try:
        with Workers(min(_HEADERS_AT_ONCE, len(readers))) as pool:
            try:
                for i, reader in readers.items():
                    name = needed(shards[i], wanted)
                    opening[i] = pool.submit(_open_file, shards[i], reader, name, backend)
                wait(opening.values(), return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C
                for reader in readers.values():
                    getattr(reader, "cancel", lambda: None)()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        ended = [future for future in opening.values() if not future.cancelled()]
        errors = [future.exception() for future in ended]
        for future, error in zip(ended, errors, strict=True):
            if error is None:
                stack.enter_context(future.result())
    for error in errors:
        if error is not None:
            raise error
    return {i: future.result() for i, future in opening.items()}


def _open_file(
    shard: ShardFile, reader: RangeReader | None, name: str | None, backend: str
) -> safe_open:
    """Opens a file. `name` is a requested tensor that the index assigns to it, if any."""
    digests = None
    if shard.verifier is not None:
        digests = shard.verifier.digests(shard.path, shard.index_path, reader is None)
    try:
        # As bytes, because a str could be taken for a URL.
        file = os.fsencode(shard.path) if reader is None else reader
        return _core._open_shard(file, backend, None, digests)
    except FileNotFoundError as error:  # names the index, which the error itself does not
        if shard.cached_for:
            raise not_cached(shard.path) from None
        if name is None:
            raise
        text = f"The index {shard.index_path} puts tensor {name!r} into a file that is missing"
        if reader is None:
            raise FileNotFoundError(errno.ENOENT, text, shard.path) from error
        raise failure(
            "io", f"{text}: {shard.path}", path=shard.path, subject=name, also=FileNotFoundError
        ) from error


def _open_shard(
    shard: ShardFile,
    wanted: Collection[str] | None,
    backend: str,
    stack: contextlib.ExitStack,
    opened: safe_open | None,
) -> tuple[safe_open | None, list[str]]:
    """Returns the open file, or None if no tensor in it is requested, and its tensors' names."""
    names = shard.names
    name = needed(shard, wanted)
    if names is not None and name is None:
        return None, names
    handle = opened or stack.enter_context(_open_file(shard, None, name, backend))
    if names is None:
        return handle, handle.offset_keys()
    return handle, _extra._names_in_order(handle, names, shard.index_path)
