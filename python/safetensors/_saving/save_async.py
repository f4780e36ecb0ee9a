"""Saves in the background, for save_file_async of torch and NumPy."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from .. import _extra
from .._core import TensorSpec
from .._errors import failure
from .._paths import absolute
from .._pickling import NotPickled
from .._typing import Path
from .._workers import Workers
from .arguments import SaveArguments

if TYPE_CHECKING:
    NoneFuture = Future[None]
else:
    NoneFuture = Future

Readers = dict[str, Callable[[int, memoryview], object] | tuple[int, int]]
"""How to copy tensors that are not in memory, by their names: a function that copies a part, or for
CUDA the index of the device and the handle of its current stream."""

_WRITERS = 2


class SaveFuture(NotPickled, NoneFuture):
    """A save in the background. Its result is None."""

    _why_not_pickled = "a thread of this process saves. Its result() says when it has ended"

    def __init__(self, save: Any, target: str) -> None:
        super().__init__()
        self._save = save
        self._target = target
        self._pid = os.getpid()
        self._earlier: SaveFuture | None = None
        self._uncollected: BaseException | None = None

    @property
    def nbytes_done(self) -> int:
        """The bytes of tensors that were written."""
        return int(self._save.nbytes_done)

    def result(self, timeout: float | None = None) -> None:
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # which the traceback would keep

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_process()
        found = super().exception(timeout)
        self._uncollected = None
        return found

    def cancel(self) -> bool:
        """Discards the save if no thread has begun to write it."""
        self._check_process()
        if not super().cancel():
            return False
        self._save.stop()
        return True

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise failure(
                "invalid_argument",
                f"{self._target} is being saved by the process {self._pid}, from which this one "
                "was forked: only that process has the result",
                path=self._target,
            )

    def _fail(self, error: BaseException) -> None:
        self._uncollected = error
        self.set_exception(error)

    def __del__(self) -> None:
        if self._uncollected is not None and self._pid == os.getpid():
            raise self._uncollected  # Python passes it to sys.unraisablehook


class _Saves:
    """The saves of this process."""

    def __init__(self) -> None:
        # Held while a call stages its tensors. A save that waits for memory is then the latest one,
        # and those before it, which have the memory, need nothing but a writer.
        self.staging = threading.Lock()
        self.lock = threading.Lock()
        self.pool: Workers | None = None
        self.running: set[SaveFuture] = set()
        self.last: dict[str, SaveFuture] = {}
        """The last save of each path."""

    def submit(self, future: SaveFuture) -> bool:
        """Returns whether a thread will run the save. If not, the caller does."""
        with self.lock:
            if self.pool is None:
                self.pool = Workers(_WRITERS, "safetensors-save")
            future._earlier = self.last.get(future._target)
            self.running.add(future)
            self.last[future._target] = future
            return self.pool.try_submit(self.run, [future], future._save.write) is not None

    def run(self, box: list[SaveFuture], write: Callable[[], None]) -> None:
        """Writes a file. Empties the box, so that the pool does not keep the future."""
        future = box.pop()
        error: BaseException | None = None
        try:
            if future._earlier is not None:
                wait([future._earlier])  # it began before, so this ends
                future._earlier = None
            if future.set_running_or_notify_cancel():
                write()
        except BaseException as raised:
            error = raised
        with self.lock:
            self.running.discard(future)
            if self.last.get(future._target) is future:
                del self.last[future._target]
        if error is not None:
            future._fail(error)
        elif not future.cancelled():
            future.set_result(None)
        del future, error  # the error's traceback has this frame

    def stop(self) -> None:
        """Ends what still runs when the interpreter exits. Only Ctrl-C leaves something."""
        with self.lock:
            left = list(self.running)
        for future in left:
            future.cancel()
            future._save.stop()
        wait(left)


_saves = _Saves()


def _forget() -> None:
    """Gives a forked process its own state: locks and threads are its parent's."""
    global _saves
    _saves = _Saves()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _saves.stop())


def _raise_interrupt(future: SaveFuture) -> None:
    """Raises what came while this thread wrote, and is not for the one that asks for the result."""
    error = future._uncollected
    if error is not None and not isinstance(error, Exception):
        raise error


def start_save(
    specs: dict[str, TensorSpec],
    readers: Readers,
    filename: Path,
    options: SaveArguments,
) -> SaveFuture:
    """Copies tensors, and writes them in the background."""
    typed = _extra._path_to_save(filename)
    target = os.path.realpath(typed)
    path = absolute(typed)  # the working directory may change
    save = _extra._StagedSave(specs, path, options.of_file(path))
    future = SaveFuture(save, target)
    saves = _saves
    with saves.staging:
        try:
            if saves.submit(future):
                save.stage(readers)
            else:
                saves.run([future], lambda: save.write_here(readers))
                _raise_interrupt(future)
        except BaseException:
            save.stop()
            if future in saves.running:
                wait([future])  # until its temporary file is removed
            future._uncollected = None
            raise
    return future
