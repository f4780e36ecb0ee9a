"""Reads by several threads of bytes that come once, in their order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from . import errors

# How long a read that begins elsewhere waits for reads of bytes before its own. Threads that load
# take their reads in the order of the bytes, so these are about to come.
_GRACE = 0.1
_POLL = 0.02
_MAX_RESTARTS = 3


class InOrder:
    """The reads of an object whose server sends no ranges, in the order of the bytes.

    What lies between two reads is skipped. A read of bytes that have passed makes the server send
    the object again, which is allowed a few times.
    """

    def __init__(self, name: str, begin: int) -> None:
        """`begin`: where the first read begins. Others that begin there start again, too."""
        self._name = name
        self._begin = self._at = begin
        self._restarts = 0
        self._is_reading = False
        self._waiting: list[int] = []
        self._threads: set[int] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, offset: int, nbytes: int, cancelled: threading.Event) -> Iterator[None]:
        """Waits until it is the turn of these bytes, which are read inside.

        Raises:
            SafetensorError: the bytes have passed too often.
        """
        with self._changed:
            self._waiting.append(offset)
            try:
                self._wait(offset, cancelled)
            finally:
                self._waiting.remove(offset)
            if offset < self._at and offset != self._begin:
                if self._restarts == _MAX_RESTARTS:
                    raise no_ranges(self._name)
                self._restarts += 1
            self._is_reading = True
            self._threads.add(threading.get_ident())
        end = offset
        try:
            yield
            end += nbytes
        finally:
            with self._changed:
                self._is_reading, self._at = False, end
                self._changed.notify_all()

    def _wait(self, offset: int, cancelled: threading.Event) -> None:
        until = time.monotonic() + _GRACE
        while not self._is_next(offset, time.monotonic() > until):
            if cancelled.is_set():
                raise errors.failed(self._name, "the read was cancelled")
            if self._is_reading:
                until = time.monotonic() + _GRACE
            self._changed.wait(_POLL)

    def _is_next(self, offset: int, has_waited: bool) -> bool:
        if self._is_reading:
            return False
        if offset in (self._at, self._begin):
            return True
        # Of a single thread, no other reads are about to come.
        is_alone = self._threads == {threading.get_ident()}
        return (has_waited or is_alone) and offset == min(self._waiting)


def no_ranges(name: str) -> Exception:
    """Returns the error for reads that would make a server send the whole object many times."""
    text = (
        "the server sends no ranges of it, only the whole, in order: load the tensors by one call "
        "(load_file, or load_files with keys or a plan), read them in the order of offset_keys(), "
        "or download the file"
    )
    return errors.failed(name, text)
