"""Reports of how many bytes were read or written, for the argument `progress`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ._typing import Progress, ProgressOption

__all__ = ["Report", "reported", "shows_progress"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _resolved(progress: ProgressOption, what: str, has_total: bool = True) -> Progress | None:
    """Returns what to call with `(done, total)`, if anything, for the argument `progress`.

    True makes a bar with the label `what`, where somebody can see it. It goes with the call in
    which both numbers are equal. If the total grows (`has_total` is false), the bar shows none, and
    goes when it is closed.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        from . import _progress_bar

        return _progress_bar.Progress(what, has_total) if _progress_bar.can_be_seen() else None
    if not callable(progress):
        raise TypeError(
            f"progress is True, False, None or called as progress(done, total), not {progress!r}"
        )
    return progress


@contextlib.contextmanager
def reported(
    progress: ProgressOption, what: str, has_total: bool = True
) -> Iterator[Progress | None]:
    """Yields what _resolved() returns, and removes the bar at the end, also after an error."""
    found = _resolved(progress, what, has_total)
    try:
        yield found
    finally:
        if progress is True and found is not None:
            found.close()  # type: ignore[attr-defined]


def shows_progress(what: str) -> Callable[[_Function], _Function]:
    """Decorates a function whose keyword `progress` may be a bool, so that its body gets a function
    or None."""

    def decorated(function: _Function) -> _Function:
        @functools.wraps(function)
        def with_bar(*args: Any, **keywords: Any) -> Any:
            if keywords.get("progress") is None:
                return function(*args, **keywords)
            with reported(keywords["progress"], what) as keywords["progress"]:
                return function(*args, **keywords)

        return with_bar  # type: ignore[return-value]

    return decorated


class Report:
    """Calls `progress(done, total)` with growing numbers, and at the end once with equal ones.

    Thread safety: one thread at a time.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        """With None for `progress`, nothing is called."""
        self._done, self._total, self._progress = 0, total, progress

    def expect(self, total: int) -> None:
        """Sets the total, if it was not known before. Nothing was reported yet."""
        self._total = total

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
        """Returns what a load of the core calls with its own byte counts, if anything listens. They
        are added to what is done now."""
        begin = self._done
        return None if self._progress is None else lambda done, _: self.reach(begin + done)

    def of_file(self, nbytes: int) -> Progress | None:
        """Returns what a writer of one of several files calls, if anything listens. The last
        `nbytes` of its bytes are those of tensors, and only these are reported."""
        begin = self._done
        if self._progress is None:
            return None
        return lambda done, total: self.reach(begin + max(0, done - (total - nbytes)))

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)
