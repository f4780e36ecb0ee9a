"""Shares work among threads."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def share(
    items: Iterator[Item], make_work: Callable[[], Callable[[Item], None]], threads: int
) -> None:
    """Processes each item once, by the calling thread and helpers, and blocks until all are done.
    There are fewer helpers, or none, where the system starts no more threads.

    Each thread calls `make_work()` once, and what it returned for its items. An error ends the
    work, and is raised when all threads have ended.
    """
    lock = threading.Lock()
    errors: list[BaseException] = []

    def taken() -> Item | None:
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

    ended = [threading.Event() for _ in range(threads - 1)]

    def help_with(event: threading.Event) -> None:
        try:
            run()
        finally:
            event.set()

    helpers = [
        threading.Thread(target=help_with, args=(event,), name="safetensors-convert")
        for event in ended
    ]

    def wait() -> None:
        for helper, event in zip(helpers, ended, strict=True):
            if helper.ident is not None:  # it was started
                event.wait()  # a join that Ctrl-C interrupts may take the thread for ended
                helper.join()

    try:
        for helper in helpers:
            try:
                helper.start()
            except RuntimeError:
                break
        run()
        wait()
    except BaseException as error:  # such as Ctrl-C: the helpers end after their current items
        with lock:
            errors.append(error)
        wait()
    if errors:
        # An error that closes a writer makes those of other threads.
        raise min(errors, key=lambda error: getattr(error, "code", "") == "writer_closed")
