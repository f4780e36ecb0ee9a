"""A group of ranks of a load's own, in which all ranks fail together."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from .._core import SafetensorError
from .._errors import failure
from . import message
from .board import BUSY, Board
from .message import Message

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

TIMEOUT = timedelta(seconds=300)

# Between two looks at what other ranks say. Work that ends is noticed at once.
_POLL = timedelta(seconds=0.05)
# The time limits are the communicator's, which knows of progress. torch's would not.
_NEVER = timedelta(days=1)
# For collectives that were ended to return.
_DRAIN = 1.0
# The first collective of a message has its length, and the message itself if it fits.
_FRAME_NBYTES = 4096
_LENGTH_NBYTES = 8
_ROOM = _FRAME_NBYTES - _LENGTH_NBYTES

_EMPTY = Message()

# Of errors that a rank raises itself, the classes and the fields that callers handle.
_COMBINED = (IndexError, KeyError, ValueError)  # and all OSErrors
_FIELDS = ("errno", "strerror", "filename")  # beside code, path and subject


class Lost(Exception):
    """Another rank has failed, ended or does not answer."""


class Disagreement(Exception):
    """The ranks were called with arguments that do not fit. All ranks raise it with one text."""


@contextlib.contextmanager
def communicator(
    group: ProcessGroup, timeout: timedelta | None, problem: Exception | None = None
) -> Iterator[Communicator]:
    """Connects the ranks of a group. Either all ranks leave the context, or all raise.

    If a rank raises within the context, all ranks raise SafetensorError with the text of the first
    error, such as `rank 3: <error>`. On its own rank, that error is the `__cause__`; if it is an
    OSError, IndexError, KeyError or ValueError, what is raised there is one, too. What is no
    Exception, such as KeyboardInterrupt, is raised as itself there. No collective is under way any
    more then. The caller's group is not used, only its store.

    Args:
        group: the caller's.
        timeout: the longest without progress of any rank; None for 5 minutes.
        problem: what is wrong with the arguments of this rank, which raises it as it is.

    Raises:
        TypeError: `group` is none.
        ValueError: this rank is not in it.
    """
    made = Communicator(checked(group), timeout or TIMEOUT)
    try:
        if problem is not None:
            raise problem
        made.connect()
        yield made
        made.gather("end")
    except BaseException as error:
        raised = made.fail(error)
        if raised is error or error is problem:
            raise
        raise raised from (None if isinstance(error, (Lost, Disagreement)) else error)
    finally:
        made.close()


class Communicator:
    """Collectives of the ranks of one load. Used by one thread."""

    def __init__(self, group: ProcessGroup, timeout: timedelta) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.device = torch.device("cpu")
        """Where the tensors of broadcast() and all_to_all() are."""
        self._timeout = timeout
        self._works: list[Work] = []
        self._group: Any = None
        self._nccl: Any = None
        self._caller = group
        self._board = Board(group.get_group_store(), self.rank, self.size)

    def connect(self) -> None:
        """Connects the ranks, once all have come."""
        self._meet("here")
        # Not by new_group(), which names successive groups of the same ranks alike: a rank could
        # find the addresses of the group before in the store.
        store = self._board.store
        try:
            gloo = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=self._timeout)
        except RuntimeError as error:
            raise Lost(f"could not connect: {error}") from error
        gloo._set_default_timeout(_NEVER)
        kind = dist.ProcessGroup.BackendType.GLOO
        made = dist.ProcessGroup(store, self.rank, self.size)
        made._set_default_backend(kind)
        made._register_backend(torch.device("cpu"), kind, gloo)
        self._group = made
        # A rank that connects to one that has left waits for five times the time limit.
        self._meet("connected")

    def use(self, device: torch.device) -> None:
        """Sends tensors of this rank's device directly, if all ranks can by NCCL.

        Sets `device`. All ranks call it.
        """
        is_direct = device.type == "cuda" and _has_nccl(self._caller)
        told = self.gather("direct", Message(numbers=[int(is_direct)]))
        if not all(len(each.numbers) == 1 and each.numbers[0] for each in told):
            return
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        store = PrefixStore("nccl", self._board.store)
        self._nccl = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        kind = dist.ProcessGroup.BackendType.NCCL
        self._group._register_backend(torch.device("cuda"), kind, self._nccl)
        self.device = device

    def broadcast(self, data: torch.Tensor, source: int) -> Work:
        """Starts to send `data` from one rank to all."""
        return self._started(self._group.broadcast(data, source))

    def all_to_all(
        self,
        to: torch.Tensor,
        source: torch.Tensor,
        to_sizes: Sequence[int],
        source_sizes: Sequence[int],
    ) -> Work:
        """Starts to send a stretch of `source` to each rank, and to receive one from each.

        Args:
            to: receives the stretches one after the other, in the order of the ranks.
            source: has the stretches in the order of the ranks.
            to_sizes, source_sizes: the sizes of the stretches.
        """
        return self._started(
            self._group.alltoall_base(to, source, list(to_sizes), list(source_sizes))
        )

    def wait(self, work: Work) -> None:
        """Waits for a collective.

        Raises:
            Lost: another rank has failed, or none has made progress for the time limit.
        """
        start = time.monotonic()
        while not work.is_completed():
            self._check_others(start)
            if self._nccl is not None:  # whose wait() makes the stream wait, not this thread
                time.sleep(0.0005)
                continue
            with contextlib.suppress(RuntimeError):  # time is up; wait() below raises others again
                work.wait(_POLL)
        try:
            work.wait()
        except RuntimeError as error:
            raise Lost(f"lost a connection: {error}") from error
        self._works.remove(work)
        self.progressed()

    def progressed(self) -> None:
        """Says that this rank makes progress, so that others wait longer.

        Raises:
            Lost: another rank has failed.
        """
        self._board.beat()
        self.check()

    def check(self) -> None:
        """Called while this rank works.

        Raises:
            Lost: another rank has failed.
        """
        if self._board.is_alarmed:
            raise Lost(f"{BUSY} for {self._timeout.total_seconds():g} s")

    def gather(self, purpose: str, of_rank: Message = _EMPTY) -> list[Message]:
        """Returns the messages of all ranks.

        Args:
            purpose: at most 8 characters. A message for another purpose is refused.
            of_rank: the message of this rank.

        Raises:
            SafetensorError: a rank sent what is no such message.
        """
        most = message.MAX_NBYTES_OF_EACH
        own = message.encode(purpose, of_rank, most)
        frames = self._gathered(_frame_of(own))
        found = [_begun(rank, frame, most) for rank, frame in enumerate(frames)]
        found[self.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        works = [
            self.broadcast(data[_ROOM:], rank)
            for rank, data in enumerate(found)
            if data.numel() > _ROOM
        ]
        for work in works:
            self.wait(work)
        return [_decoded(purpose, rank, data) for rank, data in enumerate(found)]

    def share(self, purpose: str, make: Callable[[], Message]) -> Message:
        """Returns the message that `make` returns on rank 0.

        Raises:
            SafetensorError: rank 0 sent what is no message for this purpose.
        """
        most = message.MAX_NBYTES
        frame = torch.zeros(_FRAME_NBYTES, dtype=torch.uint8)
        if self.rank == 0:
            made = make()
            own = message.encode(purpose, made, most)
            self.wait(self.broadcast(_frame_of(own), 0))
            if len(own) > _ROOM:
                rest = torch.frombuffer(bytearray(own), dtype=torch.uint8)[_ROOM:]
                self.wait(self.broadcast(rest, 0))
            return made
        self.wait(self.broadcast(frame, 0))
        data = _begun(0, frame, most)
        if data.numel() > _ROOM:
            self.wait(self.broadcast(data[_ROOM:], 0))
        return _decoded(purpose, 0, data)

    def fail(self, error: BaseException) -> BaseException:
        """Ends the load on all ranks, and returns what this one raises.

        When it returns, no collective of this rank is under way.
        """
        if isinstance(error, Lost):
            self._board.report(None, str(error))
        elif isinstance(error, Disagreement):
            self._board.report(str(error))
        else:
            self._board.report(f"rank {self.rank}: {_described(error)}")
        self._abort()
        text = self._board.decide()
        if isinstance(error, Exception):
            return _raised(text, error)
        if isinstance(error, KeyboardInterrupt):
            error.args = (text,)
        return error

    def close(self) -> None:
        """Closes the connections."""
        if not all(work.is_completed() for work in self._works):
            # If the other end closes the connection just now, gloo does not notice that its sends
            # have failed, and its destructor waits for them. So it is never destroyed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
        self._works.clear()
        self._group = self._nccl = None
        self._board.close()

    def _started(self, work: Work) -> Work:
        self._works.append(work)
        return work

    def _gathered(self, value: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(value) for _ in range(self.size)]
        self.wait(self._started(self._group.allgather(found, value)))
        return found

    def _meet(self, stage: str) -> None:
        """Waits until all ranks have come so far."""
        self._board.enter(stage)
        start = time.monotonic()
        while not self._board.wait_for_all(_POLL.total_seconds()):
            if self._board.is_cut_off:
                raise Lost("lost the store of the process group")
            self._check_others(start)

    def _check_others(self, start: float) -> None:
        """Called while this rank waits for others, since `start`."""
        if self._board.is_alarmed:
            raise Lost("lost other ranks")
        limit = self._timeout.total_seconds()
        if time.monotonic() - max(start, self._board.last_beat) > limit:
            raise Lost(f"waited {limit:g} s for other ranks")

    def _abort(self) -> None:
        """Ends the collectives that are under way, on this rank and those that wait for it."""
        if self._group is None:
            return
        if self._nccl is not None:
            self._nccl.abort()
        # gloo cannot abort. But a receive that takes too long closes all connections of a group,
        # if its own is not closed yet.
        for other in {*range(self.size)} - {self.rank}:
            with contextlib.suppress(RuntimeError):
                nothing = torch.empty(1, dtype=torch.uint8)
                self._group.recv([nothing], other, 0).wait(timedelta(milliseconds=1))
        end = time.monotonic() + _DRAIN
        while time.monotonic() < end and not all(work.is_completed() for work in self._works):
            time.sleep(0.001)


def checked(group: object) -> ProcessGroup:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in the group: it cannot load with it")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is a ProcessGroup of torch.distributed, not {type(group).__name__}")
    return group


def _has_nccl(group: ProcessGroup) -> bool:
    if not dist.is_nccl_available():
        return False
    try:
        return isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupNCCL)
    except RuntimeError:  # it has no backend for these devices
        return False


def _raised(text: str, error: Exception) -> SafetensorError:
    """Returns what a rank raises whose own error is `error`: also one of the same built-in class,
    such as FileNotFoundError, with the fields of that error."""
    kinds = [
        base
        for base in type(error).__mro__
        if base in _COMBINED or (issubclass(base, OSError) and base.__module__ == "builtins")
    ]
    own = error if _described(error) in text else None
    made = failure(
        getattr(own, "code", None) or "io",
        text,
        path=getattr(own, "path", None),
        subject=getattr(own, "subject", None),
        also=kinds[0] if kinds else None,
    )
    for field in _FIELDS:
        if getattr(error, field, None) is not None:
            setattr(made, field, getattr(error, field))
    return made


def _described(error: BaseException) -> str:
    if isinstance(error, SafetensorError):
        return str(error)
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frame_of(data: bytes) -> torch.Tensor:
    """Returns the length of a message, and its first bytes."""
    frame = bytearray(len(data).to_bytes(_LENGTH_NBYTES, "little") + data[:_ROOM])
    frame += bytes(_FRAME_NBYTES - len(frame))
    return torch.frombuffer(frame, dtype=torch.uint8)


def _begun(rank: int, frame: torch.Tensor, most: int) -> torch.Tensor:
    """Returns memory for a rank's message, with the first bytes in it.

    Raises:
        SafetensorError: the message would have more than `most` bytes.
    """
    length = int.from_bytes(frame[:_LENGTH_NBYTES].numpy().tobytes(), "little")
    if length > most:
        error = message.Malformed(f"a message of {length} bytes; at most {most} are accepted")
        raise message.refused(rank, error)
    data = torch.empty(length, dtype=torch.uint8)
    data[:_ROOM] = frame[_LENGTH_NBYTES:][:length]
    return data


def _decoded(purpose: str, rank: int, data: torch.Tensor) -> Message:
    try:
        received: Any = data.numpy()
        return message.decode(purpose, memoryview(received))
    except message.Malformed as error:
        raise message.refused(rank, error) from None
