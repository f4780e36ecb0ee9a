"""Loads tensors by a group of ranks together: see `safetensors.torch.load_files`."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _core, _extra
from .._errors import failure
from .._regions import byte_shape
from .._torch.wanted import Wanted, gc_paused
from . import exchange
from .agreement import agree, pack, unpack
from .column import Column
from .parts import Axes, Taken, index_of_axes, taken_of
from .schedule import Schedule, Tensor, schedule

if TYPE_CHECKING:
    from .communicator import Communicator
    from .opening import Model

# How many steps are read at once. The requests of a server are long under way, and each step of an
# exchange is one.
_FILE_AHEAD, _READER_AHEAD = 4, 16


class _Form(NamedTuple):
    """What tensors of the files have in common."""

    shape: tuple[int, ...]
    """In elements of the file."""
    bits: int
    """Of an element."""
    gap_nbytes: int

    def tensor(self) -> Tensor:
        """Returns it as the schedule has it."""
        return Tensor(byte_shape(self.shape, self.bits), self.gap_nbytes)


def load_together(
    comm: Communicator,
    model: Model,
    wanted: Sequence[Wanted],
    destinations: Mapping[str, torch.Tensor],
) -> Generator[list[Wanted], None, None]:
    """Loads tensors by all ranks of a group, and yields those that this rank takes, some at once.

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
    comm.use(next(iter(devices)) if len(devices) == 1 else torch.device("cpu"))
    with gc_paused():  # makes objects for each tensor, none of them garbage
        forms = _forms(model)
        numbers = {name: at for at, name in enumerate(_names(model))}
        items = {numbers[item.name]: item for item in wanted if item.nbytes}
        if any(device.type == "meta" for device in devices):
            items = {
                number: item
                for number, item in items.items()
                if destinations[item.name].device.type != "meta"
            }
        steps = _agreed(comm, forms, items)
        staged: dict[int, torch.Tensor] = {}  # what is on another device than the communicator's
        targets: list[torch.Tensor | None] = [None] * len(numbers)
        for number, item in items.items():
            targets[number] = destinations[item.name]
        if devices - {comm.device}:
            for number, to in enumerate(targets):
                if to is not None and to.device != comm.device:
                    staged[number] = to
                    targets[number] = torch.empty(to.shape, dtype=to.dtype)
    if len(items) < len(wanted):
        yield [item for item in wanted if numbers[item.name] not in items]
    del numbers
    read = _Read(model, forms, items, comm.device)
    ahead = _READER_AHEAD if read.readers else _FILE_AHEAD
    for complete in exchange.run(steps, comm, read, targets, ahead):
        for number in complete:
            source, targets[number] = targets[number], None
            if source is not None and number in staged:
                _copy(staged.pop(number), source)
            del source
        yield [items[number] for number in complete]


def _agreed(comm: Communicator, forms: Column[_Form], items: Mapping[int, Wanted]) -> Schedule:
    """Tells the other ranks what this one takes, and returns the schedule of all."""
    tensors = Column([form.tensor() for form in forms.values], forms.numbers)
    shapes = Column([tensor.shape for tensor in tensors.values], forms.numbers)
    taken = pack(_taken(forms, items))
    told = agree(comm, "parts", [], taken, functools.partial(unpack, shapes=shapes))
    return schedule(tensors, told)


class _Read:
    """Reads parts of tensors. Several threads call it at once."""

    def __init__(
        self,
        model: Model,
        forms: Column[_Form],
        items: Mapping[int, Wanted],
        device: torch.device,
    ) -> None:
        self._forms, self._items = forms, items
        self._names = _names(model)
        self._handles = [file.handle for file in model.files for _ in file.names]
        self._indices: dict[tuple[int, Axes], Any] = {}  # by form and part
        # Of files that are not local: reads of these wait for a server, and can be cancelled.
        self.readers = [file.reader for file in model.files if file.reader is not None]
        # Destinations were allocated on this thread's stream, which their readers wait for.
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __call__(self, requests: Sequence[exchange.Request]) -> None:
        """Reads each request to its destination."""
        by_device: dict[torch.device, list[Any]] = {}
        with gc_paused():
            for request in requests:
                by_device.setdefault(request[2].device, []).append(self._request(*request))
        groups = [(str(device), asked) for device, asked in by_device.items()]
        with torch.cuda.stream(self._stream):  # None: no stream
            _core._load_groups(groups)

    def cancel(self) -> None:
        """Ends the reads that are under way soon, where that is possible."""
        for reader in self.readers:
            getattr(reader, "cancel", lambda: None)()

    def _request(self, number: int, axes: Axes | None, to: torch.Tensor) -> tuple[Any, ...]:
        if axes is None:
            return self._items[number].request(to)
        key = (self._forms.numbers[number], axes)
        try:
            index = self._indices[key]
        except KeyError:
            form = self._forms.values[key[0]]
            is_whole = all(
                ranges == ((0, size),)
                for ranges, size in zip(axes, form.tensor().shape, strict=True)
            )
            index = None if is_whole else index_of_axes(axes, form.shape, form.bits)
            self._indices[key] = index
        return self._handles[number], self._names[number], index, to


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    if to.element_size() == 1:  # torch does not copy every type of this size
        to, source = to.view(torch.uint8), source.view(torch.uint8)
    with torch.no_grad():
        to.copy_(source)


def _names(model: Model) -> list[str]:
    """Returns the names of all tensors of the files, in their order."""
    return [name for file in model.files for name in file.names]


def _forms(model: Model) -> Column[_Form]:
    """Returns what is known of all tensors of the files, in their order."""
    known: dict[_Form, int] = {}
    numbers: list[int] = []
    for file in model.files:
        forms, places = _extra._forms(file.handle, file.names)
        of_file = []
        for shape, nbytes in forms:
            bits = nbytes * 8 // max(1, math.prod(shape))
            form = _Form(shape, bits, file.gap_nbytes)
            of_file.append(known.setdefault(form, len(known)))
        numbers += [of_file[place] for place in places]
    return Column(list(known), numbers)


def _taken(forms: Column[_Form], items: Mapping[int, Wanted]) -> Column[Taken]:
    """Returns what this rank takes of each tensor. Tensors of one form whose parts are one object
    are looked at once."""
    parts: dict[Taken, int] = {}
    if len(items) < len(forms.numbers):
        parts[None] = 0
    known: dict[tuple[int, int], int] = {}
    places = [0] * len(forms.numbers)
    for number, item in items.items():
        key = (forms.numbers[number], id(item.part))
        place = known.get(key)
        if place is None:
            form = forms.values[key[0]]
            part = taken_of(() if item.part is None else item.part, form.shape, form.bits)
            place = known[key] = parts.setdefault(part, len(parts))
        places[number] = place
    return Column(list(parts), places)
