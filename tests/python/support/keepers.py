"""Targets that keep what they were lent, for children of test_lent_memory.py.

A keeper notes what was kept, with the bytes that it had then. check() compares them when the
owners are gone and other objects have taken the memory that was freed.
"""

import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from safetensors import SafetensorError

EVERY_WAY = ["view", "slice", "cast", "memoryview", "frombuffer", "thread", "closure", "caught"]


class Keeper:
    """A function `f(offset, view)` that keeps the view, in one of these ways."""

    def __init__(self, way):
        self.way = way
        self.kept = []
        self.stop = threading.Event()
        self.wrong = []

    def __call__(self, offset, view):
        if self.kept:
            return
        self.kept.append((getattr(self, f"_{self.way}")(view), bytes(view)))

    def _view(self, view):
        return view

    def _slice(self, view):
        return view[0:]

    def _cast(self, view):
        return view.cast("B")[0:]

    def _memoryview(self, view):
        return memoryview(view)

    def _frombuffer(self, view):
        return np.frombuffer(view, np.uint8)

    def _torch(self, view):
        import torch

        return torch.frombuffer(view, dtype=torch.uint8).numpy()

    def _thread(self, view):
        """The thread goes on reading after the call."""
        wanted = bytes(view)

        def read(view):
            while not self.stop.wait(0.01):
                if bytes(view) != wanted:
                    self.wrong.append("the thread read other bytes")

        self.thread = threading.Thread(target=read, args=(view,), daemon=True)
        self.thread.start()
        return wanted

    def _closure(self, view):
        return lambda: view[0:]

    def _caught(self, view):
        """The traceback of an exception has the view in its frame."""

        def fail(view):
            raise KeyError(len(view))

        try:
            fail(view)
        except KeyError as error:
            return error

    def _raised(self, view):
        raise LookupError(bytes(view[-100:]))

    def check(self):
        """Returns whether what was kept still has its bytes. Reading it must not crash."""
        self.stop.set()
        if self.way == "thread":
            self.thread.join()
        for kept, wanted in self.kept:
            if self.way == "closure":
                kept = kept()
            if isinstance(kept, BaseException):
                kept = view_of(kept)
            if bytes(kept) != wanted:
                self.wrong.append(f"{self.way}: other bytes")
        return not self.wrong


def view_of(error):
    """Returns the local variable `view` of the innermost frame of a traceback."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_locals["view"]


def try_all(lend, ways=tuple(EVERY_WAY), said="kept a reference to the"):
    """Calls `lend(keeper)` for each way at once, and exits with 3 if a keeper got no error, or
    what it kept has changed."""

    def attempt(keeper):
        try:
            lend(keeper)
        except SafetensorError as error:
            return str(error)
        return "no error"

    keepers = [Keeper(way) for way in ways]
    with ThreadPoolExecutor(len(keepers)) as pool:
        found = list(pool.map(attempt, keepers))
    time.sleep(0.05)
    gc.collect()
    junk = [np.full(size, 0xEE, np.uint8) for size in [70_000, 200_000, 1 << 20, 5 << 20] * 8]
    for keeper, text in zip(keepers, found, strict=True):
        is_right = keeper.check()
        print(keeper.way, text, keeper.wrong)
        if said not in text or not is_right or not keeper.kept:
            sys.exit(3)
    del junk
