"""Loads tensors from several files one at a time: stream_files."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .. import _core
from .._core import SafetensorError, safe_open
from .._load_arguments import LoadArguments
from .._model_folder import choice_of
from .._progress import Report, reported
from .._shards import with_hashes
from .._typing import ProgressOption, Sources, Verify
from ..plan import Keys, Rule
from . import AnyDevice, torch
from .devices import device_of
from .load_files import open_files
from .wanted import IndexPart, Wanted, wanted_of

if TYPE_CHECKING:
    from .._core import PrefetchLoader

# Bytes that are loaded at a time to devices that the compiled module cannot load to itself.
_BATCH_NBYTES = 64 << 20


def stream_files(
    filenames: Sources,
    device: AnyDevice = "cpu",
    *,
    backend: str = "auto",
    keys: Keys = None,
    plan: Mapping[str, Rule] | None = None,
    budget_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: Verify = None,
    expected_hashes: Mapping[str, str] | None = None,
    progress: ProgressOption = None,
    name: str | None = None,
    variant: str | None = None,
) -> LoadStream:
    """Loads tensors from several files one at a time, so that few are in memory at once.

    On the CPU and CUDA, a file is loaded in the background while its tensors are yielded. Leaving
    the loop early stops the load; the iterator's `close()` stops it at once.

    Args:
        filenames: as for `load_files`. Files are loaded one after the other.
        device: the device of the tensors.
        backend, storage_options, verify, expected_hashes, keys, plan, name, variant: as for
            `load_files`. A damaged tensor is not yielded.
        budget_bytes: the limit of bytes that are loaded and not yet yielded; one tensor is always
            allowed. None selects the default of `safe_open.prefetch`.
        progress: as for `load_files`, after each tensor. Leaving the loop early is no error.

    Returns:
        An iterator of pairs of name and tensor, whose length is the number of tensors that are
        left. Within a file, the order is undefined.

    Raises:
        FileNotFoundError, SafetensorError: as `load_files`.
    """
    options = LoadArguments(
        filenames, storage_options, with_hashes(verify, expected_hashes), choice_of(name, variant),
        backend, keys, plan,
    )  # fmt: skip
    target = device_of(device).name
    with ExitStack() as stack:
        handles, parts = open_files(options.find(), options, stack)
        plans: dict[safe_open, dict[str, Wanted]] = {}
        for item in wanted_of(handles, parts):
            plans.setdefault(item.handle, {})[item.name] = item
        stream = _stream(plans, target, budget_bytes, stack.pop_all())
    sizes = {name: item.nbytes for items in plans.values() for name, item in items.items()}
    return LoadStream(stream, sizes, progress)


class LoadStream(Iterator[tuple[str, torch.Tensor]]):
    """The tensors that `stream_files` loads, one at a time."""

    def __init__(
        self,
        stream: Generator[tuple[str, torch.Tensor], None, None],
        sizes: Mapping[str, int],
        progress: ProgressOption,
    ) -> None:
        self._stream = stream
        self._sizes = sizes
        self._left = len(sizes)
        self._bar = ExitStack()
        report = self._bar.enter_context(reported(progress, "loading"))
        self._report = Report(sum(sizes.values()), report)

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> tuple[str, torch.Tensor]:
        try:
            pair = next(self._stream)
            self._left -= 1
            self._report.add(self._sizes[pair[0]])
            if self._left == 0:
                self._report.finish()
        except BaseException:
            self.close()
            raise
        return pair

    def close(self) -> None:
        """Stops the load."""
        self._left = 0
        self._stream.close()
        self._bar.close()


def _stream(
    plans: dict[safe_open, dict[str, Wanted]],
    device: str,
    budget_bytes: int | None,
    stack: ExitStack,
) -> Generator[tuple[str, torch.Tensor], None, None]:
    with stack:
        for handle, plan in plans.items():
            loader = _prefetch(handle, plan, device, budget_bytes)
            if loader is None:
                yield from _in_turn(plan, device, budget_bytes or _BATCH_NBYTES)
            else:
                with loader:  # map keeps no reference to what it yields
                    yield from map(functools.partial(_finished, plan), loader)
            handle.close()


def _prefetch(
    handle: safe_open, plan: dict[str, Wanted], device: str, budget_bytes: int | None
) -> PrefetchLoader | None:
    """Returns a background loader; None if the compiled module cannot load to the device."""
    kind = device_of(device).kind
    if kind not in ("cpu", "cuda"):
        return None
    parts: dict[str, Any] = {
        name: None if item.part is None else IndexPart(item.part) for name, item in plan.items()
    }
    try:
        return handle.prefetch(parts, device=device, budget_bytes=budget_bytes)
    except SafetensorError:
        if kind == "cpu":
            raise
        return None  # probably no driver; for any other cause, _in_turn() raises the same error


def _in_turn(
    plan: dict[str, Wanted], device: str, budget_bytes: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Loads and yields batches of at most `budget_bytes`, or of one larger tensor."""
    items = list(plan.values())
    while items:
        count = nbytes = 0
        for item in items:
            nbytes += item.nbytes
            if count != 0 and nbytes > budget_bytes:
                break
            count += 1
        batch, items = items[:count], items[count:]
        (tensors,) = _core._load_groups([(device, [item.request() for item in batch])])
        pairs = [(item.name, tensor) for item, tensor in zip(batch, tensors, strict=True)][::-1]
        del tensors
        while pairs:  # pop() takes from the end, so that tensors are yielded in order
            yield _finished(plan, pairs.pop())


def _finished(plan: dict[str, Wanted], pair: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
    return pair[0], plan[pair[0]].finished(pair[1])
