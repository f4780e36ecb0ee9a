"""The calls to torch that every load makes, and loads to devices by torch's own copies.

Loads look these functions up in the module at each call, so that tests can replace them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .. import _core
from .._core import safe_open
from .._errors import failure
from .._progress import Report
from .._typing import Progress
from . import torch
from .devices import Device
from .dtypes import form_in, nbytes_of
from .pieces import pieces_of

Request = tuple[Any, ...]
"""An open file, a tensor's name, an index into it, and the destination. Without an index, the whole
tensor is loaded; without a destination, a tensor is allocated. A fifth entry has the strides of a
destination that is not contiguous, in bytes."""

empty = torch.empty

_WARM_MIN_NBYTES = 64 << 20
_STAGING_NBYTES = 32 << 20  # for each of the two slots
_ALIGNMENT = 64


class Event(Protocol):
    """The methods that torch.Event and the events of device packages share."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def device_of(tensor: torch.Tensor) -> torch.device:
    """Returns the device that has the tensor's memory."""
    return tensor.device


def raw_stream(index: int) -> int:
    """Returns the driver's handle of this thread's current stream on the CUDA device."""
    get = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(get(index) if get is not None else torch.cuda.current_stream(index).cuda_stream)


def record_stream(tensor: torch.Tensor, index: int) -> None:
    """Keeps the tensor's memory allocated until work on this thread's current stream is done.

    Without this, torch's allocator reuses freed memory as soon as the stream that it was allocated
    on permits, while another stream may still read it.
    """
    tensor.record_stream(torch.cuda.current_stream(index))


def is_capturing() -> bool:
    """Returns whether this thread is capturing a CUDA graph."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def warm(nbytes: int, index: int) -> None:
    """Makes torch's allocator reserve memory for a load with one call of CUDA.

    A large tensor is allocated and freed: the allocator keeps its segment and cuts the load's
    tensors from it. Does nothing for less than 64 MiB, if the allocator holds half of the memory
    already, if it does not cut segments, or if CUDA has less than 256 MiB to spare. Never raises.

    Args:
        nbytes: the sum of the tensors above 1 MiB, each rounded up to 512 bytes.
        index: the CUDA device.
    """
    with contextlib.suppress(Exception):
        if nbytes < _WARM_MIN_NBYTES or not _cuts_segments():
            return
        idle = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        free, _ = torch.cuda.mem_get_info(index)
        if idle < nbytes // 2 and nbytes + (256 << 20) <= free:
            empty(nbytes + (2 << 20), dtype=torch.uint8, device=f"cuda:{index}")


def _cuts_segments() -> bool:
    """Returns whether torch's native allocator is in use, with segments of fixed size."""
    get = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    settings = ",".join([*(os.environ.get(name, "") for name in names), get() if get else ""])
    is_growing = "expandable_segments:true" in settings.replace(" ", "").lower()
    return torch.cuda.get_allocator_backend() == "native" and not is_growing


def copy_requests(
    requests: Sequence[Request], device: Device, progress: Progress | None = None
) -> list[torch.Tensor]:
    """Loads tensors to a device by torch's own copies.

    There are three ways:
    * If the device has events, two staging slots alternate: one is filled from the file while the
      other is copied to the device. The slots are in pinned memory if torch can allocate it.
    * On MPS, which shares memory with the CPU, bytes are read straight into the tensor if torch
      exposes its memory.
    * Otherwise each tensor is read into CPU memory and copied from there.

    Args:
        requests: the tensors. An existing destination is on the device and has the file's dtype
            and shape.
        device: the destination. torch raises if it does not exist.
        progress: called as `progress(done, total)` with byte counts, on this thread. Its last call
            has `done == total`. If it raises, the load stops and the exception propagates.

    Returns:
        The tensors, in the order of the requests, ready on every stream.

    Raises:
        SafetensorError: a file cannot be read, torch cannot represent a tensor, or a CUDA graph is
            being captured.
    """
    logging.getLogger("safetensors").debug("loading to %s by torch's copies", device.name)
    if device.kind == "cuda" and is_capturing():
        raise failure("device", "Tensors cannot be loaded while a CUDA graph is being captured")
    with current(device):
        jobs = [_job(request, device) for request in requests]
        report = Report(sum(job.nbytes for job in jobs), progress)
        jobs_with_data = [job for job in jobs if job.nbytes != 0]
        if device.kind == "mps" and hasattr(torch.mps, "_host_alias_storage"):
            _fill_aliases(jobs_with_data, report)
        elif jobs_with_data:
            _copy(jobs_with_data, device, report)
        report.finish()
    return [job.tensor for job in jobs]


def current(device: Device) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which the device is current: events are recorded on its stream."""
    guard: Any = getattr(getattr(torch, device.kind, None), "device", None)
    return guard(device.ordinal) if guard is not None else contextlib.nullcontext()


def event(device: Device) -> Event | None:
    """Returns an event of the device that has been recorded once; None if it has no events."""
    makers: list[Callable[[], Any]] = [
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
    """Returns a CPU tensor of bytes, in pinned memory if torch can allocate it."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    except Exception:  # its type depends on the device's package
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Copies bytes or elements, in stream order."""
    with torch.no_grad():
        to.copy_(source, non_blocking=non_blocking)


class _Job(NamedTuple):
    """A request whose destination exists."""

    handle: safe_open
    name: str
    part: Any
    tensor: torch.Tensor
    nbytes: int


def _job(request: Request, device: Device) -> _Job:
    """Allocates the destination of a request if it has none."""
    handle, name, part, tensor = request[:4]
    dtype, shape = form_in(handle, name, part)
    if tensor is None:
        tensor = empty(shape, dtype=dtype, device=device.name)
    return _Job(handle, name, part, tensor, nbytes_of((dtype, shape)))


# The compiled module writes to this address, so that a tensor without memory must not get there.
def _read(handle: safe_open, name: str, index: Any, address: int, nbytes: int) -> None:
    if address == 0:
        raise failure(
            "device", f"Error while loading tensor {name}: its memory has no address", subject=name
        )
    _core._read_request(handle, name, index, address, nbytes)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a flat view of the tensor's bytes. Raises RuntimeError if it is not contiguous."""
    if not tensor.is_contiguous():
        raise RuntimeError("the tensor is not contiguous")
    return tensor.detach().view(-1).view(torch.uint8)


def _copy(jobs: Sequence[_Job], device: Device, report: Report) -> None:
    """Loads through two staging slots, or tensor by tensor if the device has no events.

    Big-endian hosts swap the bytes of each tensor, for which it has to be on the CPU as a whole.
    """
    events = [event(device) for _ in range(2)] if device.kind != "mps" else []
    ready = [made for made in events if made is not None]
    if len(ready) != 2 or sys.byteorder == "big":
        for job in jobs:
            _copy_at_once(job)
            report.add(job.nbytes)
        return
    nbytes = sum(_aligned(job.nbytes) for job in jobs)
    ring = _Ring(ready, min(_STAGING_NBYTES, nbytes), report)
    try:
        for job in jobs:
            ring.load(job)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            ring.drain()
        raise
    report.add(ring.drain())


def _copy_at_once(job: _Job) -> None:
    """Reads a whole tensor to the CPU and copies it, blocking until the copy is done."""
    source = torch.empty(job.tensor.shape, dtype=job.tensor.dtype, device="cpu")
    _read(job.handle, job.name, job.part, source.data_ptr(), job.nbytes)
    if sys.byteorder == "big":
        _swap(source)
    copy(job.tensor, source, non_blocking=False)


def _swap(tensor: torch.Tensor) -> None:
    """Reverses the bytes of each element; of a complex element, those of each half."""
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    rows = _flat(tensor).view(-1, width)
    rows.copy_(rows.flip(1))


def _fill_aliases(jobs: Sequence[_Job], report: Report) -> None:
    """Reads into MPS tensors through CPU views of their memory.

    The device must be idle meanwhile, because nothing else orders its work after the CPU's writes.
    """
    torch.mps.synchronize()
    try:
        for job in jobs:
            if not job.tensor.is_contiguous():
                _copy_at_once(job)
                report.add(job.nbytes)
                continue
            try:
                alias = torch.mps._host_alias_storage(job.tensor.untyped_storage())
            except Exception:  # memory that the CPU cannot address
                _copy_at_once(job)
            else:
                offset = int(job.tensor.storage_offset()) * job.tensor.element_size()
                _read(job.handle, job.name, job.part, alias.data_ptr() + offset, job.nbytes)
            report.add(job.nbytes)
    finally:
        torch.mps.synchronize()


def _aligned(nbytes: int) -> int:
    """Rounds up to a multiple of _ALIGNMENT."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Slot:
    """Staging memory, and the number of bytes that are being copied from it."""

    def __init__(self, event: Event, nbytes: int) -> None:
        self.event = event
        self.memory = staging(nbytes)
        self.used = 0
        self.copying = 0

    def wait(self) -> int:
        """Blocks until its copies are done. Returns the number of bytes that they copied."""
        if self.copying != 0:
            self.event.synchronize()
        done, self.used, self.copying = self.copying, 0, 0
        return done


class _Ring:
    """Two slots: one is filled from the file while the other is copied to the device.

        slot 0   [read][read]copy copy ...wait [read]
        slot 1                   [read][read]copy copy ...

    `_slots[0]` is the slot that is being filled.
    """

    def __init__(self, events: Sequence[Event], nbytes: int, report: Report) -> None:
        self._nbytes = nbytes
        self._slots = [_Slot(event, nbytes) for event in events]
        self._report = report

    def load(self, job: _Job) -> None:
        """Starts to copy a tensor, in pieces if it is larger than a slot."""
        try:
            to, at = _flat(job.tensor), 0
        except RuntimeError:  # a device that cannot view tensors as bytes
            _copy_at_once(job)
            self._report.add(job.nbytes)
            return
        meta = job.handle.get_tensor_meta(job.name)
        for index, nbytes in pieces_of(meta, job.part, job.nbytes, self._nbytes):
            self._load_piece(job, index, to[at : at + nbytes])
            at += nbytes

    def _load_piece(self, job: _Job, index: Any, to: torch.Tensor) -> None:
        """Reads a piece into a slot and starts its copy to the device."""
        nbytes = to.numel()
        if nbytes > self._nbytes:  # a part that cannot be split
            source = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
            _read(job.handle, job.name, index, source.data_ptr(), nbytes)
            copy(to, source, non_blocking=False)
            self._report.add(nbytes)
            return
        slot = self._slot_with(nbytes)
        # Pieces follow each other in a slot, each at a multiple of _ALIGNMENT bytes.
        source = slot.memory[slot.used : slot.used + nbytes]
        _read(job.handle, job.name, index, source.data_ptr(), nbytes)
        slot.used = _aligned(slot.used + nbytes)
        slot.copying += nbytes
        # Recorded after each copy, so that drain() waits for the last one if a later step fails.
        try:
            copy(to, source, non_blocking=True)
        finally:
            slot.event.record()

    def _slot_with(self, nbytes: int) -> _Slot:
        """Returns a slot with room: the current one, or the other one once its copies are done."""
        if self._slots[0].used + nbytes > self._nbytes:
            self._slots.reverse()
            self._report.add(self._slots[0].wait())
        return self._slots[0]

    def drain(self) -> int:
        """Blocks until no copy is in flight. Returns the number of bytes that were copied."""
        try:
            nbytes = self._slots[1].wait()
        finally:
            last = self._slots[0].wait()
        return nbytes + last
