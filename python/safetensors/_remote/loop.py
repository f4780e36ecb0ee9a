"""The event loop thread on which the process awaits the asynchronous calls of obstore."""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from .._errors import failure
from .._workers import NO_THREAD

_T = TypeVar("_T")

# After the last call, a thread of obstore may still have a few instructions to run under the GIL.
# CPython before 3.14 ends a thread that asks for the GIL during finalization, which aborts the
# process if the thread runs Rust code. So the exit waits until this long after the last call.
_QUIET_SECONDS = 0.05
_CLOSE_SECONDS = 5.0


class _Loop:
    """A daemon thread with an event loop. It belongs to the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.pending: set[concurrent.futures.Future[Any]] = set()
        self.last_done = 0.0
        self.is_closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.SelectorEventLoop()
        thread = threading.Thread(target=self._loop.run_forever, name="safetensors", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise failure("io", f"{NO_THREAD}, and obstore needs some") from error

    def submit(self, call: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        with self._lock:
            if self.is_closed:
                call.close()
                raise RuntimeError("the interpreter is shutting down")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self.pending.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: "concurrent.futures.Future[Any]") -> None:
        self.last_done = time.monotonic()
        self.pending.discard(future)

    def close(self) -> None:
        """Cancels all calls. Runs at exit, and leaves the thread to the end of the process."""
        if self.pid != os.getpid():
            return
        with self._lock:
            self.is_closed = True
            pending = list(self.pending)
        for future in pending:
            future.cancel()
        if pending:  # the tasks learn of it on the loop's thread
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(_CLOSE_SECONDS)
            self.last_done = time.monotonic()
        while (rest := self.last_done + _QUIET_SECONDS - time.monotonic()) > 0:
            time.sleep(rest)


_loop: _Loop | None = None
_making = threading.Lock()


def _of_process() -> _Loop:
    global _loop
    with _making:
        if _loop is None:
            _loop = _Loop()
            atexit.register(_loop.close)
        return _loop


def is_forked() -> bool:
    """Returns whether this process was forked from one that had used the loop.

    The threads of obstore do not exist in such a process, and its calls would never end.
    """
    return _loop is not None and _loop.pid != os.getpid()


class Calls:
    """Calls that can be cancelled together, such as the reads of one object.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[concurrent.futures.Future[Any]] = []

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Returns the result of `call`, which runs on the event loop's thread.

        Raises:
            concurrent.futures.CancelledError: `cancel` was called, or the interpreter exits.
        """
        future = _of_process().submit(call)
        with self._lock:
            self._pending.append(future)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._lock:
                self._pending.remove(future)

    def cancel(self) -> None:
        """Cancels the calls that are under way. Later calls run."""
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            future.cancel()
