"""Shares work among threads."""

import os
import threading
from typing import Callable, Iterator, List, Optional, TypeVar

Item = TypeVar("Item")


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(
    items: Iterator[Item], make_work: Callable[[], Callable[[Item], None]], threads: int
) -> None:
    """Processes each item once, by the calling thread and helpers, and blocks until all are done.

    Each thread calls `make_work()` once, and what it returned for its items. An error ends the
    work, and is raised when all threads have ended.
    """
    lock = threading.Lock()
    errors: List[BaseException] = []

    def taken() -> Optional[Item]:
        with lock:
            return None if errors else next(items, None)

    def run() -> None:
        try:
            work = make_work()
            for item in iter(taken, None):
                work(item)
        except BaseException as error:
            with lock:
                errors.append(error)

    helpers = [threading.Thread(target=run, name="safetensors-convert") for _ in range(threads - 1)]
    try:
        for helper in helpers:
            helper.start()
        run()
        for helper in helpers:
            helper.join()
    except BaseException as error:  # such as Ctrl-C: the helpers end after their current items
        with lock:
            errors.append(error)
        for helper in helpers:
            if helper.ident is not None:  # it was started
                helper.join()
    if errors:
        # An error that closes a writer makes those of other threads.
        raise min(errors, key=lambda error: getattr(error, "code", "") == "writer_closed")
