"""Runs a schedule: reads ahead in the background, and sends what was read to the other ranks."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Protocol

import torch

from .._workers import Workers
from .bucket import Packer, select
from .frame import Block, Frame
from .parts import Axes
from .schedule import BUFFER_NBYTES, Broadcast, Exchange, Own, Schedule, Step

Request = tuple[int, Axes | None, torch.Tensor]
"""A tensor's number, the part to read (in bytes on the last axis; None: the rank's own index), and
where it goes: contiguous bytes, or the rank's own destination if the part is None."""

_IN_FLIGHT = 2  # collectives
# Reads of a rank's own parts that are submitted: if no thread starts, they delay collectives.
_OWN_AHEAD = 2
_POLL_SECONDS = 0.2
# Parts that a rank reads for itself are read together until they are longer.
_OWN_NBYTES = 128 << 20


class Read(Protocol):
    """Reads from files."""

    def __call__(self, requests: Sequence[Request]) -> None:
        """Reads the requests to their destinations. Several threads call it at once."""

    def cancel(self) -> None:
        """Makes calls under way end soon. Called after a failure, and when a caller of `run` leaves
        its loop."""


class Communicator(Protocol):
    """What the ranks of a group send each other. Each call is made by all ranks, in one order."""

    rank: int
    size: int
    device: torch.device
    """Where the tensors that it sends are, with an index where there are several."""

    def broadcast(self, data: torch.Tensor, source: int) -> Any:
        """Starts sending a rank's bytes to all; returns the work."""

    def all_to_all(
        self,
        to: torch.Tensor,
        source: torch.Tensor,
        to_sizes: list[int],
        source_sizes: list[int],
    ) -> Any:
        """Starts sending a stretch of each rank's bytes to each rank; returns the work."""

    def wait(self, work: Any) -> None:
        """Blocks until the work is done. Raises if another rank failed."""

    def check(self) -> None:
        """Raises if another rank failed."""

    def progressed(self) -> None:
        """Says that this rank makes progress, and checks."""


def run(
    schedule: Schedule,
    comm: Communicator,
    read: Read,
    destinations: Sequence[torch.Tensor | None],
    ahead: int = 4,
) -> Iterator[list[int]]:
    """Loads what the ranks take, and yields the numbers of tensors as they are complete, several at
    once.

    All ranks call it, and exhaust it. The order is the same on all ranks, as far as they take the
    same tensors: what a rank reads for itself comes last.

    Args:
        schedule: the same on all ranks.
        comm: of the ranks that the schedule is for.
        read: is not used any more when the iterator ends.
        destinations: for each tensor what this rank takes of it; None: nothing. Tensors that are
            not contiguous, or not on the device of `comm`, are loaded to temporary memory first.
        ahead: for how many steps this rank reads at once. What it reads for itself comes on top:
            one call of `read` at a time.
    """
    pool = Workers(ahead, "safetensors-group")
    own = Workers(1, "safetensors-group-own")
    try:
        yield from _Runner(schedule, comm, read, destinations).run(pool, own, ahead)
    except BaseException:
        for each in (pool, own):
            each.shutdown(wait=False, cancel_futures=True)
        read.cancel()
        raise
    finally:
        for each in (pool, own):
            each.shutdown()  # returns when no read is under way


class _Job(NamedTuple):
    """What this rank does in a step with communication."""

    read: Callable[[], None] | None
    """Reads this rank's bytes, in a thread of the pool; None: it reads nothing."""
    start: Callable[[], Any]
    """Starts the collective, and returns its work."""
    finish: Callable[[], None]
    """Called when the work is done."""
    complete: Sequence[int]
    """The tensors that are complete then."""


class _Runner:
    def __init__(
        self,
        schedule: Schedule,
        comm: Communicator,
        read: Read,
        destinations: Sequence[torch.Tensor | None],
    ) -> None:
        self._steps, self._frames = schedule
        self._comm, self._rank, self._read = comm, comm.rank, read
        self._destinations = destinations
        self._local: dict[int, torch.Tensor] = {}  # the bytes of tensors that are being loaded
        self._buffers = _Buffers(comm.device)
        self._empty: frozenset[int] = frozenset()
        device = comm.device
        addresses = [  # of those that _is_direct()
            each.data_ptr()
            if each is not None and each.is_contiguous() and each.device == device
            else 0
            for each in destinations
        ]
        self._packer = Packer(comm.rank, self._frames, addresses, self._bytes)

    def run(self, pool: Workers, own_pool: Workers, ahead: int) -> Iterator[list[int]]:
        empty = [
            number
            for number, destination in enumerate(self._destinations)
            if destination is not None and destination.numel() == 0
        ]
        if empty:
            yield empty
        self._empty = frozenset(empty)
        batches = list(self._own())
        left = iter(batches)
        own: deque[Future[None]] = deque()

        def read_own() -> None:
            while own and own[0].done():
                self._wait_for(own.popleft())
            for batch in itertools.islice(left, _OWN_AHEAD - len(own)):
                own.append(own_pool.submit(self._read_own, batch))

        jobs = self._jobs()
        queue: deque[tuple[_Job, Future[None] | None]] = deque()
        started: deque[tuple[_Job, Any]] = deque()
        reading = 0
        read_own()
        while True:
            while reading < ahead:
                job = next(jobs, None)
                if job is None:
                    break
                queue.append((job, pool.submit(job.read) if job.read else None))
                reading += job.read is not None
            if not queue:
                break
            job, future = queue.popleft()
            if future is not None:
                reading -= 1
                self._wait_for(future)
            started.append((job, job.start()))
            if len(started) > _IN_FLIGHT:
                yield from self._finish(*started.popleft())
            read_own()
        while started:
            yield from self._finish(*started.popleft())
            read_own()
        while own:
            self._wait_for(own.popleft())
            read_own()
        yield from batches  # last, so that the order does not depend on times

    def _wait_for(self, future: Future[None]) -> None:
        """Waits for a read. Raises if it failed, or another rank did."""
        while not future.done():
            wait([future], timeout=_POLL_SECONDS)
            self._comm.check()
        future.result()
        self._comm.progressed()

    def _finish(self, job: _Job, work: Any) -> Iterator[list[int]]:
        self._comm.wait(work)
        job.finish()
        complete = [
            number
            for number in job.complete
            if self._destinations[number] is not None and number not in self._empty
        ]
        if self._local:
            for number in complete:
                local, to = self._local.pop(number, None), self._destination(number)
                if local is not None and not self._is_direct(to):
                    _copy_to(to, local)
        if complete:
            yield complete

    def _jobs(self) -> Iterator[_Job]:
        last: dict[int, int] = {}
        for at, step in enumerate(self._steps):
            last.update(dict.fromkeys(_tensors_of(step), at))
        for at, step in enumerate(self._steps):
            numbers = dict.fromkeys(_tensors_of(step))
            complete = [number for number in numbers if last[number] == at]
            if isinstance(step, Broadcast):
                yield (self._bucket if step.is_bucket else self._broadcast)(step, complete)
            elif isinstance(step, Exchange):
                yield self._exchange(step, complete)

    def _own(self) -> Iterator[list[int]]:
        """Yields batches of the tensors that this rank reads for itself."""
        batch: list[int] = []
        nbytes = 0
        for step in self._steps:
            if isinstance(step, Own) and self._rank in step.ranks:
                batch.append(step.tensor)
                nbytes += self._destination(step.tensor).nbytes
                if nbytes >= _OWN_NBYTES:
                    yield batch
                    batch, nbytes = [], 0
        if batch:
            yield batch

    def _read_own(self, numbers: list[int]) -> None:
        self._read([(number, None, self._destination(number)) for number in numbers])

    def _broadcast(self, step: Broadcast, complete: list[int]) -> _Job:
        ((number, block),) = step.blocks
        offset, nbytes = self._frame(number).share(self._rank, block)
        data = self._bytes(number)[offset : offset + nbytes]
        read = None
        if step.owner == self._rank:
            read = functools.partial(self._read_blocks, step.blocks, data)
        return _Job(read, lambda: self._comm.broadcast(data, step.owner), _nothing, complete)

    def _bucket(self, step: Broadcast, complete: list[int]) -> _Job:
        buffers: list[torch.Tensor] = []

        def read() -> None:
            buffers.append(self._buffers.take(step.nbytes))
            self._read_blocks(step.blocks, buffers[0])

        def start() -> Any:
            if not buffers:
                buffers.append(self._buffers.take(step.nbytes))
            return self._comm.broadcast(buffers[0][: step.nbytes], step.owner)

        def finish() -> None:
            self._packer.unpack(step.blocks, buffers[0])
            self._buffers.give(buffers.pop())

        return _Job(read if step.owner == self._rank else None, start, finish, complete)

    def _exchange(self, step: Exchange, complete: list[int]) -> _Job:
        frame, ranks = self._frame(step.tensor), range(self._comm.size)
        block = step.blocks[self._rank]
        sizes = [frame.share(rank, block)[1] for rank in ranks]
        shares = [frame.share(self._rank, each) for each in step.blocks]
        buffers: list[torch.Tensor] = []

        def read() -> None:
            rows = self._buffers.take(frame.block_nbytes(block))
            self._read_blocks([(step.tensor, block)], rows)
            buffers.append(self._buffers.take(sum(sizes)))
            at = 0
            for rank in ranks:
                if sizes[rank]:
                    select(frame, rank, block, rows, buffers[0][at : at + sizes[rank]])
                at += sizes[rank]
            self._buffers.give(rows)

        def start() -> Any:
            to_sizes = [nbytes for _, nbytes in shares]
            to = source = self._buffers.empty
            if sum(to_sizes):
                offset = next(offset for offset, nbytes in shares if nbytes)
                to = self._bytes(step.tensor)[offset : offset + sum(to_sizes)]
            if buffers:
                source = buffers[0][: sum(sizes)]
            return self._comm.all_to_all(to, source, to_sizes, sizes)

        def finish() -> None:
            if buffers:
                self._buffers.give(buffers.pop())

        return _Job(read if block.begin < block.end else None, start, finish, complete)

    def _read_blocks(self, blocks: Sequence[tuple[int, Block]], to: torch.Tensor) -> None:
        """Reads blocks one after the other to contiguous bytes."""
        self._read(self._packer.requests(blocks, to))

    def _frame(self, number: int) -> Frame:
        frame = self._frames[number]
        assert frame is not None, "tensors in steps with communication have frames"
        return frame

    def _destination(self, number: int) -> torch.Tensor:
        destination = self._destinations[number]
        assert destination is not None, "what a rank takes has a destination"
        return destination

    def _is_direct(self, destination: torch.Tensor) -> bool:
        """Returns whether data can be sent from and to a destination."""
        return destination.is_contiguous() and destination.device == self._comm.device

    def _bytes(self, number: int) -> torch.Tensor:
        """Returns the bytes of this rank's part, which are copied to its destination in the end if
        they cannot be sent from and to there."""
        if number not in self._local:
            to = self._destination(number).detach()
            if not self._is_direct(to):
                to = torch.empty(to.shape, dtype=to.dtype, device=self._comm.device)
            self._local[number] = to.reshape(-1).view(torch.uint8)
        return self._local[number]


class _Buffers:
    """Memory for what cannot be sent in place, used again and again. Threads may share it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.Tensor] = []
        self.empty = torch.empty(0, dtype=torch.uint8, device=device)

    def take(self, nbytes: int) -> torch.Tensor:
        """Returns a buffer of at least so many bytes."""
        if nbytes <= BUFFER_NBYTES:
            with contextlib.suppress(IndexError):
                return self._free.pop()
        nbytes = max(nbytes, BUFFER_NBYTES)
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def give(self, buffer: torch.Tensor) -> None:
        """Takes back a buffer after its last use was queued."""
        if buffer.numel() == BUFFER_NBYTES:
            if self._device.type != "cpu":  # reads do not wait for what is queued on a stream
                getattr(torch, self._device.type).current_stream(self._device).synchronize()
            self._free.append(buffer)


def _copy_to(destination: torch.Tensor, data: torch.Tensor) -> None:
    """Copies bytes to a destination that may have strides, on any device."""
    values = data.view(destination.dtype).view(destination.shape)
    if destination.element_size() == 1:  # torch does not copy every type of this size
        destination, values = destination.view(torch.uint8), values.view(torch.uint8)
    with torch.no_grad():
        destination.copy_(values)


def _tensors_of(step: Step) -> list[int]:
    if isinstance(step, Broadcast):
        return [number for number, _ in step.blocks]
    return [step.tensor]


def _nothing() -> None: ...
