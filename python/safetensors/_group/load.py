"""Loads tensors by a group of ranks together: see `safetensors.torch.load_files`."""

from __future__ import annotations

import functools
import math
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Generator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch

from .. import _core
from .._errors import failure
from .._torch.wanted import Wanted
from . import exchange
from .agreement import agree, pack, unpack
from .parts import Axes, Taken, byte_shape, index_of_axes, taken_of
from .schedule import Tensor, schedule

if TYPE_CHECKING:
    from .._core import safe_open
    from .communicator import Communicator
    from .opening import Model

# How many steps are read at once. The requests of a server are long under way, and each step of an
# exchange is one.
_FILE_AHEAD, _READER_AHEAD = 4, 16


class _Entry(NamedTuple):
    """A tensor of the files."""

    name: str
    handle: safe_open
    shape: Tuple[int, ...]
    """In elements of the file."""
    bits: int
    """Of an element."""
    gap_nbytes: int

    def tensor(self) -> Tensor:
        """Returns it as the schedule has it."""
        return Tensor(self.name, byte_shape(self.shape, self.bits), self.gap_nbytes)


def load_together(
    comm: Communicator,
    model: Model,
    wanted: Sequence[Wanted],
    destinations: Mapping[str, torch.Tensor],
) -> Generator[Wanted, None, None]:
    """Loads tensors by all ranks of a group, and yields those that this rank takes.

    Args:
        comm: the ranks, which all call this and exhaust it.
        model: the files.
        wanted: what this rank takes.
        destinations: where each tensor goes.

    Raises:
        Lost: another rank has failed.
        SafetensorError: a file cannot be read.
    """
    if sys.byteorder == "big":
        raise failure("invalid_argument", "loads by a group need little-endian machines")
    devices = {each.device for each in destinations.values()}
    comm.use(devices.pop() if len(devices) == 1 else torch.device("cpu"))
    entries = _entries(model)
    numbers = {entry.name: number for number, entry in enumerate(entries)}
    items = {
        numbers[item.name]: item
        for item in wanted
        if item.nbytes and destinations[item.name].device.type != "meta"
    }
    taken = [_taken(entry, items.get(number)) for number, entry in enumerate(entries)]
    tensors = [entry.tensor() for entry in entries]
    shapes = [tensor.shape for tensor in tensors]
    told = agree(comm, "parts", [], pack(taken), functools.partial(unpack, shapes=shapes))
    steps = schedule(tensors, told)
    readers = [file.reader for file in model.files if file.reader is not None]
    targets: List[Optional[torch.Tensor]] = [None] * len(entries)
    for number, item in items.items():
        to = destinations[item.name]
        is_direct = to.device == comm.device
        targets[number] = to if is_direct else torch.empty(to.shape, dtype=to.dtype)
    yield from (item for item in wanted if numbers[item.name] not in items)
    read = _Read(entries, items, readers, comm.device)
    ahead = _READER_AHEAD if readers else _FILE_AHEAD
    for number in exchange.run(steps, comm, read, targets, ahead):
        loaded, targets[number] = targets[number], None
        to = destinations[items[number].name]
        if loaded is not None and loaded is not to:
            _copy(to, loaded)
        del loaded, to
        yield items[number]


class _Read:
    """Reads parts of tensors. Several threads call it at once."""

    def __init__(
        self,
        entries: Sequence[_Entry],
        items: Mapping[int, Wanted],
        readers: Sequence[Any],
        device: torch.device,
    ) -> None:
        self._entries, self._items, self._readers = entries, items, readers
        # Destinations were allocated on this thread's stream, which their readers wait for.
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __call__(self, requests: Sequence[exchange.Request]) -> None:
        """Reads each request to its destination."""
        by_device: Dict[str, List[Any]] = {}
        for request in requests:
            by_device.setdefault(str(request[2].device), []).append(self._request(*request))
        with torch.cuda.stream(self._stream):  # None: no stream
            _core._load_groups(list(by_device.items()))

    def cancel(self) -> None:
        """Ends the reads that are under way soon, where that is possible."""
        for reader in self._readers:
            getattr(reader, "cancel", lambda: None)()

    def _request(self, number: int, axes: Optional[Axes], to: torch.Tensor) -> Tuple[Any, ...]:
        if axes is None:
            return self._items[number].request(to)
        entry = self._entries[number]
        return entry.handle, entry.name, index_of_axes(axes, entry.shape, entry.bits), to


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    if to.element_size() == 1:  # torch does not copy every type of this size
        to, source = to.view(torch.uint8), source.view(torch.uint8)
    with torch.no_grad():
        to.copy_(source)


def _entries(model: Model) -> List[_Entry]:
    """Returns all tensors of the files, in their order."""
    found = []
    for file in model.files:
        for name in file.names:
            meta = file.handle.get_tensor_meta(name)
            begin, end = meta.data_offsets
            shape = tuple(meta.shape)
            bits = (end - begin) * 8 // max(1, math.prod(shape))
            found.append(_Entry(name, file.handle, shape, bits, file.gap_nbytes))
    return found


def _taken(entry: _Entry, item: Optional[Wanted]) -> Taken:
    if item is None:
        return None
    return taken_of(() if item.part is None else item.part, entry.shape, entry.bits)
