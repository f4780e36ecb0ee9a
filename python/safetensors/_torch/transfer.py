"""What loads ask of torch, and loads to devices that have no engine of their own.

Whoever loads looks functions up in this module each time, so that tests can replace them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import torch

from .. import _core
from .._core import SafetensorError, safe_open
from .devices import Device, known_device
from .dtypes import form_of, nbytes_of
from .pieces import pieces_of

Request = Tuple[safe_open, str, Any, Optional[torch.Tensor]]
"""A file, a tensor's name, the part of it that is wanted or None for all, and where it goes or None
for a tensor that is to be made."""
Progress = Callable[[int, int], object]

empty = torch.empty

_WARM_FROM = 64 << 20
_STAGING_NBYTES = 32 << 20  # of each of two
_ALIGNMENT = 64


class Event(Protocol):
    """What torch.Event and the devices' own have in common."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def raw_stream(index: int) -> int:
    """The stream that this thread's work for the CUDA device goes to, as the driver knows it."""
    get = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(get(index) if get is not None else torch.cuda.current_stream(index).cuda_stream)


def record_stream(tensor: torch.Tensor, index: int) -> None:
    """Keeps the tensor's memory, once it is dropped, until this thread's work with it is done.

    torch's allocator does so by itself for the stream that the memory was made on only.
    """
    tensor.record_stream(torch.cuda.current_stream(index))


def is_capturing() -> bool:
    """Whether CUDA work of this thread is being captured into a graph."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def warm(nbytes: int, index: int) -> None:
    """Has torch's allocator take memory from CUDA once, for all tensors that are to be made.

    It keeps one segment of that size, and cuts tensors from it. Nothing is done where that would
    not help: for little memory, where the allocator has enough already or does not cut segments,
    or where it would take what is not free. Never raises.

    Args:
        nbytes: what the tensors larger than 1 MiB take of it, each rounded up to 512.
        index: the CUDA device.
    """
    with contextlib.suppress(Exception):
        if nbytes < _WARM_FROM or not _cuts_segments():
            return
        idle = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        free, _ = torch.cuda.mem_get_info(index)
        if idle < nbytes // 2 and nbytes + (256 << 20) <= free:
            empty(nbytes + (2 << 20), dtype=torch.uint8, device=f"cuda:{index}")


def _cuts_segments() -> bool:
    """Whether torch's allocator is its own, of segments that do not grow."""
    get = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    settings = ",".join([*(os.environ.get(name, "") for name in names), get() if get else ""])
    is_growing = "expandable_segments:true" in settings.replace(" ", "").lower()
    return torch.cuda.get_allocator_backend() == "native" and not is_growing


def copy_requests(
    requests: Sequence[Request], device: object, progress: Optional[Progress] = None
) -> List[torch.Tensor]:
    """Loads tensors to a device by torch's own copies.

    Where the device has events, bytes are read into one of two staging tensors while those of the
    other are copied, both in pinned memory if it can be had. MPS shares memory with the CPU: bytes
    are read to where they belong, if torch lets them be seen. Else each tensor is read into memory
    of its own and copied from there.

    Args:
        requests: what to load. Tensors that are given are on the device, contiguous, and of the
            type and shape that the file has.
        device: a str, an index or a torch.device.
        progress: called now and then with the bytes that have landed and all bytes, and at the
            end. What it raises ends the load.

    Returns:
        The tensors, in the order of the requests, ready on every stream.
    """
    target = known_device(device)
    logging.getLogger("safetensors").debug("loading to %s by torch's copies", target.name)
    if target.kind == "cuda" and is_capturing():
        raise SafetensorError("Tensors cannot be loaded while a CUDA graph is being captured")
    with current(target):
        jobs = [_job(request, target) for request in requests]
        count = _Count(sum(job.nbytes for job in jobs), progress)
        jobs_with_data = [job for job in jobs if job.nbytes != 0]
        if target.kind == "mps" and hasattr(torch.mps, "_host_alias_storage"):
            _fill_aliases(jobs_with_data, count)
        elif jobs_with_data:
            _copy(jobs_with_data, target, count)
        count.finish()
    return [job.tensor for job in jobs]


def current(device: Device) -> contextlib.AbstractContextManager[object]:
    """Makes the device the current one, whose stream events are recorded in."""
    guard: Any = getattr(getattr(torch, device.kind, None), "device", None)
    return guard(device.ordinal) if guard is not None else contextlib.nullcontext()


def event(device: Device) -> Optional[Event]:
    """An event of the device, recorded once; None where torch has none."""
    makers: List[Callable[[], Any]] = [
        lambda: torch.Event(device.name),
        lambda: getattr(torch, device.kind).Event(),
    ]
    for make in makers:
        with contextlib.suppress(Exception):
            made: Event = make()
            made.record()
            return made
    return None


def staging(nbytes: int) -> torch.Tensor:
    """Memory that the device copies from by itself, if there is such."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    except Exception:  # what it is depends on the device's package
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Copies bytes or elements, in the order of the device's work."""
    with torch.no_grad():
        to.copy_(source, non_blocking=non_blocking)


class _Job(NamedTuple):
    handle: safe_open
    name: str
    part: Any
    tensor: torch.Tensor
    nbytes: int


class _Count:
    """Tells `progress` what has landed."""

    def __init__(self, total: int, progress: Optional[Progress]) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None and nbytes != 0 and self._done != self._total:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


def _job(request: Request, device: Device) -> _Job:
    handle, name, part, tensor = request
    dtype, shape = form_of(handle.get_tensor_meta(name), part)
    if tensor is None:
        tensor = empty(shape, dtype=dtype, device=device.name)
    return _Job(handle, name, part, tensor, nbytes_of((dtype, shape)))


def _read(handle: safe_open, name: str, index: Any, address: int, nbytes: int) -> None:
    if address == 0:
        raise SafetensorError(f"Error while loading tensor {name}: its memory has no address")
    _core._read_request(handle, name, index, address, nbytes)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes."""
    return tensor.detach().view(-1).view(torch.uint8)


def _copy(jobs: Sequence[_Job], device: Device, count: _Count) -> None:
    events = [event(device) for _ in range(2)] if device.kind != "mps" else []
    ready = [made for made in events if made is not None]
    if len(ready) != 2 or sys.byteorder == "big":
        for job in jobs:
            _copy_at_once(job)
            count.add(job.nbytes)
        return
    nbytes = sum(_aligned(job.nbytes) for job in jobs)
    ring = _Ring(ready, min(_STAGING_NBYTES, nbytes), count)
    try:
        for job in jobs:
            ring.load(job)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error counts
            ring.drain()
        raise
    count.add(ring.drain())


def _copy_at_once(job: _Job) -> None:
    source = torch.empty(job.tensor.shape, dtype=job.tensor.dtype, device="cpu")
    _read(job.handle, job.name, job.part, source.data_ptr(), job.nbytes)
    if sys.byteorder == "big":
        _swap(source)
    copy(job.tensor, source, non_blocking=False)


def _swap(tensor: torch.Tensor) -> None:
    """Turns the bytes of each element round; of a complex one those of its halves."""
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    rows = _flat(tensor).view(-1, width)
    rows.copy_(rows.flip(1))


def _fill_aliases(jobs: Sequence[_Job], count: _Count) -> None:
    """Reads to where the tensors are: nothing of the device's may be under way meanwhile."""
    torch.mps.synchronize()
    try:
        for job in jobs:
            try:
                alias = torch.mps._host_alias_storage(job.tensor.untyped_storage())
            except Exception:  # memory that the CPU does not see
                _copy_at_once(job)
            else:
                offset = int(job.tensor.storage_offset()) * job.tensor.element_size()
                _read(job.handle, job.name, job.part, alias.data_ptr() + offset, job.nbytes)
            count.add(job.nbytes)
    finally:
        torch.mps.synchronize()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Slot:
    """Staging memory, and the copies from it that are under way."""

    def __init__(self, event: Event, nbytes: int) -> None:
        self.event = event
        self.memory = staging(nbytes)
        self.used = 0
        self.copying = 0

    def wait(self) -> int:
        """Until its copies are done. Returns how many bytes those were."""
        if self.copying != 0:
            self.event.synchronize()
        done, self.used, self.copying = self.copying, 0, 0
        return done


class _Ring:
    """Two slots: into one is read while the other is copied."""

    def __init__(self, events: Sequence[Event], nbytes: int, count: _Count) -> None:
        self._nbytes = nbytes
        self._slots = [_Slot(event, nbytes) for event in events]
        self._count = count

    def load(self, job: _Job) -> None:
        """Begins to copy a tensor, in pieces if it is larger than a slot."""
        try:
            to, at = _flat(job.tensor), 0
        except RuntimeError:  # a device that does not look at tensors as bytes
            _copy_at_once(job)
            self._count.add(job.nbytes)
            return
        meta = job.handle.get_tensor_meta(job.name)
        for index, nbytes in pieces_of(meta, job.part, job.nbytes, self._nbytes):
            self._load_piece(job, index, to[at : at + nbytes])
            at += nbytes

    def _load_piece(self, job: _Job, index: Any, to: torch.Tensor) -> None:
        nbytes = to.numel()
        if nbytes > self._nbytes:  # a part that cannot be taken in pieces
            source = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
            _read(job.handle, job.name, index, source.data_ptr(), nbytes)
            copy(to, source, non_blocking=False)
            self._count.add(nbytes)
            return
        slot = self._slot_with(nbytes)
        source = slot.memory[slot.used : slot.used + nbytes]
        _read(job.handle, job.name, index, source.data_ptr(), nbytes)
        slot.used = _aligned(slot.used + nbytes)
        slot.copying += nbytes
        # Recorded after each copy, so that whatever fails later finds the last of them.
        try:
            copy(to, source, non_blocking=True)
        finally:
            slot.event.record()

    def _slot_with(self, nbytes: int) -> _Slot:
        """The slot that is being filled, if there is room; else the other, once it is free."""
        if self._slots[0].used + nbytes > self._nbytes:
            self._slots.reverse()
            self._count.add(self._slots[0].wait())
        return self._slots[0]

    def drain(self) -> int:
        """Until no copy is under way. Returns how many bytes were."""
        try:
            nbytes = self._slots[1].wait()
        finally:
            last = self._slots[0].wait()
        return nbytes + last
