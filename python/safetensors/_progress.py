"""Reports of how many bytes were read or written, for the argument `progress`."""

from __future__ import annotations

from ._typing import Progress

__all__ = ["Report"]


class Report:
    """Calls `progress(done, total)` with growing numbers, and at the end once with equal ones.

    Thread safety: one thread at a time.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        """With None for `progress`, nothing is called."""
        self._done, self._total, self._progress = 0, total, progress

    def add(self, nbytes: int) -> None:
        """Reports that so many more bytes are done."""
        self.reach(self._done + nbytes)

    def reach(self, done: int) -> None:
        """Reports that so many bytes are done. The call with all bytes is left to finish()."""
        if self._done < done:
            self._done = done
            if self._progress is not None and done < self._total:
                self._progress(done, self._total)

    def counter(self) -> Progress | None:
        """Returns what a load of the core calls with its own byte counts, if anything listens."""
        return None if self._progress is None else lambda done, _: self.reach(done)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)
