"""load_files by a group of ranks, and a stream of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._checking.absent import refuse_absent, with_absent
from .._load_arguments import LoadArguments
from .._progress import Report
from .._rules import source_of
from .._torch.devices import device_of
from .._torch.wanted import Wanted, gc_paused, refuse_excess, wanted_of
from ..plan import SKIP, Rule, apply, select
from .communicator import Communicator, checked, communicator
from .load import load_together
from .opening import Model, open_model

__all__ = ["checked", "communicator", "load_files", "open_named", "load_together", "stream"]

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .._core import safe_open
    from .._shards import ShardFile
    from .._torch import AnyDevice


def load_files(
    group: ProcessGroup,
    timeout: timedelta | None,
    problem: Exception | None,
    device: Any,
    options: LoadArguments,
) -> dict[str, torch.Tensor]:
    """Returns the tensors of this rank; see `safetensors.torch.load_files`.

    Args:
        group, timeout, problem: see `communicator`.
        device: as for `safetensors.torch.load_files`.
    """
    with communicator(group, timeout, problem) as comm, ExitStack() as stack:
        model, wanted = _open(comm, options, stack)
        nbytes = sum(item.nbytes for item in wanted)
        refuse_excess(nbytes, device, options.budget_bytes)
        report = Report(nbytes, options.progress)
        # Else the traceback of what `progress` raises keeps the reads under way.
        tensors = _made(wanted, device)
        with closing(load_together(comm, model, wanted, tensors)) as batches:
            for items in batches:
                report.add(sum(item.nbytes for item in items))
        report.finish()
    return {item.name: item.finished(tensors[item.name]) for item in wanted}


def stream(
    group: ProcessGroup,
    options: LoadArguments,
    device: AnyDevice = "cpu",
    timeout: timedelta | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors as they are loaded, in the same order on all ranks.

    All ranks call it and exhaust it. A rank that leaves the loop early ends it on all ranks.

    Args:
        group: the ranks.
        device, timeout: as for `load_files`.
    """
    with communicator(group, timeout) as comm, ExitStack() as stack:
        model, wanted = _open(comm, options, stack)
        tensors = _made(wanted, device)
        with closing(load_together(comm, model, wanted, tensors)) as batches:
            for items in batches:
                for item in items:
                    yield item.name, item.finished(tensors.pop(item.name))


def open_named(
    comm: Communicator, options: LoadArguments, names: Collection[str], stack: ExitStack
) -> tuple[Model, dict[str, safe_open], list[str]]:
    """Opens files as `open_tensors` of _shards does.

    Returns:
        The files that some rank needs; the open file of each of these names, as far as the files
        have them; and the other names of the files.
    """

    def needed(shards: list[ShardFile]) -> list[int]:
        return [
            at
            for at, shard in enumerate(shards)
            if shard.names is None or any(name in names for name in shard.names)
        ]

    model = open_model(comm, options, needed, stack)
    handles = model.handles()
    others = [name for name in [*handles, *model.unopened] if name not in names]
    return model, {name: handles[name] for name in handles if name in names}, others


def _open(
    comm: Communicator, options: LoadArguments, stack: ExitStack
) -> tuple[Model, list[Wanted]]:
    """Returns the files that some rank needs, and the tensors that this one takes."""
    rules: dict[str, Rule] | None = None
    found_shards: list[ShardFile] = []

    def needed(shards: list[ShardFile]) -> list[int]:
        nonlocal rules
        found_shards.extend(shards)
        if any(shard.names is None for shard in shards):
            return [at for at, shard in enumerate(shards) if not shard.absent_from]
        names = dict.fromkeys(name for shard in shards for name in shard.names or ())
        rules = found = select(names, options.plan, options.keys, source_of(shards))
        return [
            at
            for at, shard in enumerate(shards)
            if any(name in found for name in shard.names or ())
        ]

    model = open_model(comm, options, needed, stack)
    handles = model.handles()
    if rules is None:
        source = source_of(found_shards)
        rules = select(with_absent(handles, found_shards), options.plan, options.keys, source)
        refuse_absent(found_shards, rules)
    parts = apply(rules, handles)
    handles = {name: handles[name] for name in handles if parts.get(name, SKIP) is not SKIP}
    return model, wanted_of(handles, parts)


@gc_paused()  # makes objects for each tensor, none of them garbage
def _made(wanted: list[Wanted], device: AnyDevice) -> dict[str, torch.Tensor]:
    """Returns new tensors on a device, to load to."""
    name = device_of(device).name
    made = _core._make_empty(name, [(i.handle, i.name, i.part, None) for i in wanted])
    return dict(zip((item.name for item in wanted), made, strict=True))
