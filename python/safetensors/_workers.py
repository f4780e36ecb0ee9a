"""Threads that run calls. Where the system starts none, the calling thread runs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

NO_THREAD = "the system starts no more threads for this process"
"""Begins errors of what cannot be done without a thread."""

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Workers:
    """A ThreadPoolExecutor that goes on with fewer threads than wanted, or with none.

    Where limits of a container or a user allow no more threads, Thread.start() and with it
    ThreadPoolExecutor.submit() raise RuntimeError. Then a thread that was started earlier takes the
    call, or the caller of submit() runs it before submit() returns.

    Calls do not wait for other calls of the same workers.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, threads: int, name: str = "safetensors") -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._calls: deque[_Call] = deque()
        self._working = 0  # threads that look for calls until none is left

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Returns the future of `call(*args)`."""
        future = self.try_submit(call, *args)
        if future is None:
            future = Future()
            _run((future, call, args))
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error  # such as Ctrl-C, which is for the calling thread
        return future

    def try_submit(self, call: Callable[..., T], *args: Any) -> Future[T] | None:
        """Returns the future of `call(*args)`; None if no thread will run it."""
        item: _Call = (Future(), call, args)
        with self._lock:
            self._calls.append(item)
        try:
            # Not `call` itself: an executor that raises may have kept it, and run it later.
            self._pool.submit(self._work)
        except RuntimeError:
            with self._lock:
                if not self._working and item in self._calls:
                    self._calls.remove(item)
                    return None
        return item[0]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads, as ThreadPoolExecutor.shutdown() does."""
        cancelled: deque[_Call] = deque()
        with self._lock:
            if cancel_futures:
                cancelled, self._calls = self._calls, cancelled
        for future, _, _ in cancelled:
            future.cancel()
        self._pool.shutdown(wait=wait)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _work(self) -> None:
        with self._lock:
            self._working += 1
        while True:
            with self._lock:
                if not self._calls:
                    self._working -= 1
                    return
                item = self._calls.popleft()
            _run(item)
            del item  # else this thread would keep the call until it finds the next one


def _run(item: _Call) -> None:
    future, call, args = item
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
