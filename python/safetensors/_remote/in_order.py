"""Reads by several threads of bytes that come once, in their order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from . import errors

# How long a read waits for those of the bytes before it. Threads that load take their reads in the
# order of the bytes, so the ones before are under way.
_GRACE = 1.0
_POLL = 0.05


class InOrder:
    """The reads of an object whose server sends no ranges: each begins where one has ended."""

    def __init__(self, name: str, begin: int) -> None:
        """`begin`: where the first read begins. Another that begins there starts again."""
        self._name = name
        self._begin = self._at = begin
        self._is_reading = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, offset: int, nbytes: int, cancelled: threading.Event) -> Iterator[None]:
        """Waits until it is the turn of these bytes, which are read inside.

        Raises:
            SafetensorError: nobody reads the bytes before them.
        """
        with self._changed:
            until = time.monotonic() + _GRACE
            while self._is_reading or offset not in (self._at, self._begin):
                if cancelled.is_set():
                    raise errors.failed(self._name, "the read was cancelled")
                now = time.monotonic()
                if self._is_reading:
                    until = now + _GRACE
                elif now > until:
                    raise no_ranges(self._name)
                self._changed.wait(_POLL)
            self._is_reading = True
        end = offset
        try:
            yield
            end += nbytes
        finally:
            with self._changed:
                self._is_reading, self._at = False, end
                self._changed.notify_all()


def no_ranges(name: str) -> Exception:
    """Returns the error for a read of a part that a server does not send."""
    text = "the server sends no ranges of it, only the whole"
    return errors.failed(name, f"{text}: load all tensors of the file at once, or download it")
