"""Calls functions in several threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor


def together(work, items):
    """Calls work(item) for each item, in threads that begin at the same time.

    Returns what the calls return, in order, or raises the first error.
    """
    items = list(items)
    barrier = threading.Barrier(len(items))

    def begin(item):
        barrier.wait()
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return [future.result() for future in [pool.submit(begin, item) for item in items]]
