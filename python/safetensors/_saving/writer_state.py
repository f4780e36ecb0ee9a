"""What has become of a writer: at most one thread completes or discards it, and only once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import SafetensorError
from .._errors import failure
from .._near_names import suggestions

if TYPE_CHECKING:
    from .stream_target import StreamTarget

OPEN = "open"
BUSY = "busy"
"""A thread completes or discards what was written; others wait for it."""
CLOSED = "closed"
"""What was written has taken its place."""
ABORTED = "aborted"

_Result = TypeVar("_Result")


class WriterState:
    """Decides which of the calls that complete or discard a writer does so.

        open -> busy -> closed or aborted
          ^------'  nothing was begun: tensors are missing, or calls are still writing

    Calls that write do not come here, so that they need no lock of Python: the writer below refuses
    them from the start of `commit` on.

    Thread safety: any thread may call any method, also a signal handler.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        # With an RLock, since a signal handler may run while its thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._state = OPEN
        self._actor: int | None = None
        """The thread that closes or aborts the writer, or has done so."""
        self._has_failed = False

    @property
    def is_forked(self) -> bool:
        """Whether the writer is that of a parent process."""
        return os.getpid() != self._pid

    @property
    def was_aborted_here(self) -> bool:
        """Whether this thread has aborted the writer, or failed to close it."""
        return self._state == ABORTED and self._actor == threading.get_ident()

    def close(
        self, commit: Callable[[], _Result], give_up: Callable[[BaseException], str]
    ) -> _Result | None:
        """Returns what `commit()` returns; None if the writer is closed already.

        Waits for another thread that closes or aborts the writer.

        Args:
            commit: completes what was written.
            give_up: called with what `commit` raised. Discards what was written, if `commit` has
                changed something, and returns the new state.

        Raises:
            SafetensorError: the writer was aborted, its own callback calls, or a forked child.
        """
        if self.is_forked:
            raise failure(
                "writer_closed",
                f"Error while serializing: the writer belongs to the process {self._pid}, from "
                "which this one was forked: only that process can close it",
            )
        self._refuse_own_call()
        state = ABORTED
        try:
            self._begin()
            if self._state == CLOSED:
                return None
            if self._state == ABORTED:
                raise self._was_aborted()
            result = commit()
            state = CLOSED
        except BaseException as error:
            if self._is_mine():
                self._has_failed = True
                state = give_up(error)
                self._has_failed = state != OPEN
            raise
        finally:
            self._end(state)
        return result

    def abort(self, discard: Callable[[], None]) -> None:
        """Calls `discard()` if the writer is open. Does nothing in a forked child.

        Waits for another thread that closes or aborts the writer, but not for calls that write,
        which may hang.

        Raises:
            SafetensorError: a callback of the writer calls.
        """
        if self.is_forked:
            return
        self._refuse_own_call()
        try:
            self._begin()
            if self._is_mine():
                discard()
        finally:
            self._end(ABORTED)

    def _refuse_own_call(self) -> None:
        if self._is_mine():
            raise own_call_error()

    def _is_mine(self) -> bool:
        """Returns whether this thread has made the writer busy."""
        return self._state == BUSY and self._actor == threading.get_ident()

    def _begin(self) -> None:
        """Waits until no thread makes the writer busy, and does so if it is open."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != BUSY)
            if self._state == OPEN:
                self._actor = threading.get_ident()
                self._state = BUSY

    def _end(self, state: str) -> None:
        """Makes this state the new one, if this thread has made the writer busy."""
        if self._is_mine():
            with self._changed:
                self._state = state
                self._changed.notify_all()

    def _was_aborted(self) -> SafetensorError:
        text = "the writer was aborted: nothing was saved"
        if self._has_failed:
            text = "the writer failed when it was closed before"
        return failure("writer_closed", f"Error while serializing: {text}")


class OpenWriter:
    """A _FileWriter or a ShardWriter, until it is completed or discarded.

    Thread safety: as WriterState.
    """

    def __init__(self, writer: Any, stream: StreamTarget | None) -> None:
        self.writer = writer
        """None when the file was completed or discarded."""
        self.bar = contextlib.ExitStack()
        """What shows the progress. It is closed with the writer."""
        self._stream = stream
        self._state = WriterState()
        self._nbytes = 0

    @property
    def nbytes_written(self) -> int:
        writer = self.writer
        nbytes = int(writer.nbytes_written) if writer is not None else 0
        return nbytes if self.writer is not None else self._nbytes  # another thread may end it

    @property
    def was_aborted_here(self) -> bool:
        return self._state.was_aborted_here

    def close(self) -> None:
        """See SafeWriter.close."""
        refuse_own_call(self.writer)
        self._state.close(self._commit, self._give_up)

    def abort(self) -> None:
        """See SafeWriter.abort."""
        refuse_own_call(self.writer)
        self._state.abort(self._discard)

    def _commit(self) -> None:
        writer = self.writer
        if writer is None:
            raise closed_error()
        writer.commit()
        self._drop(writer)
        if self._stream is not None:
            self._stream.finish()

    def _give_up(self, error: BaseException) -> str:
        if is_premature(error):
            return OPEN
        writer = self.writer
        is_committed = writer is None or bool(writer.is_committed)
        with contextlib.suppress(OSError):  # the error in flight says more
            self._discard()
        return CLOSED if is_committed else ABORTED

    def _discard(self) -> None:
        writer = self.writer
        if writer is None:
            return
        self._drop(writer)
        writer.abort()
        if self._stream is not None:
            self._stream.undo()

    def _drop(self, writer: Any) -> None:
        """Refuses later calls."""
        self._nbytes = int(writer.nbytes_written)
        self.writer = None
        self.bar.close()


def refuse_own_call(writer: Any) -> None:
    """Raises if this thread is within a call of the writer, which holds locks."""
    if writer is not None and writer.is_in_call:
        raise own_call_error()


def is_premature(error: BaseException) -> bool:
    """Returns whether a commit raised this before it changed anything."""
    return isinstance(error, SafetensorError) and error.code == "missing_tensors"


def own_call_error() -> SafetensorError:
    """Returns the error of a call from within another one of the same thread."""
    return failure(
        "invalid_argument",
        "Error while serializing: a callback or signal handler called the writer, which was "
        "working: it must raise an exception instead",
    )


def closed_error(is_closing: bool = False) -> SafetensorError:
    text = "the writer is being closed" if is_closing else "the writer is closed"
    return failure("writer_closed", f"Error while serializing: {text}")


def still_writing_error() -> SafetensorError:
    return failure(
        "missing_tensors",
        "Error while serializing: another thread is still writing a tensor: wait for it before the "
        "file is closed",
    )


def added_before_error(name: str) -> SafetensorError:
    return failure(
        "written_twice", f"Error while serializing: tensor `{name}` was added before", subject=name
    )


def unknown_error(name: str, names: Iterable[str]) -> Exception:
    return failure(
        "tensor_not_found",
        f"Error while serializing: the specs have no tensor `{name}`{suggestions(name, names)}",
        subject=name,
        also=KeyError,
    )
