"""Bars for long work on a terminal or in a notebook."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Protocol

from ._text import clipped, size

_SECONDS = 0.1
"""How often a bar is drawn."""
_NARROW = 80
"""On a narrower terminal, a bar of rich shows neither speed nor time."""


class Bar(Protocol):
    """A bar on a terminal, which the next advance() shows again."""

    def advance(self, nbytes: int) -> None: ...
    def hide(self) -> None: ...


class Progress:
    """Called as `progress(done, total)`: draws one bar, ten times a second. The bar is made at the
    first call with a total that is not 0, and goes with the call in which both are equal. Without
    `has_total`, the total may grow: the bar shows what is done, until close()."""

    def __init__(self, label: str, has_total: bool = True) -> None:
        self._label, self._has_total = label, has_total
        self._bar: Bar | None = None
        self._shown, self._next, self._is_over = 0, 0.0, False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        is_last = self._has_total and done == total
        if self._is_over or total == 0 or (not is_last and now < self._next):
            return
        self._next = now + _SECONDS
        if self._bar is None:
            known = total if self._has_total else None
            self._bar = _TqdmBar.made(self._label, known) or bar_on_terminal(self._label, known)
        self._bar.advance(done - self._shown)
        self._shown = done
        if is_last:
            self.close()

    def close(self) -> None:
        self._is_over = True
        if self._bar is not None:
            self._bar.hide()

    def __del__(self) -> None:
        self.close()


def can_be_seen() -> bool:
    """Returns whether standard error is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def bar_on_terminal(what: str, total: int | None) -> Bar:
    """Returns a bar of rich, or else a line of text. None: the total is not known."""
    return _RichBar.made(what, total) or _Line(what, total)


class _TqdmBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    @classmethod
    def made(cls, what: str, total: int | None) -> _TqdmBar | None:
        """Returns a bar, or None without tqdm."""
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return None
        return cls(tqdm(total=total, desc=what, unit="B", unit_scale=True, leave=False))

    def advance(self, nbytes: int) -> None:
        self._bar.update(nbytes)

    def hide(self) -> None:
        self._bar.close()


class _RichBar:
    def __init__(self, bar: Any, what: str, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task(what, total=total)
        bar.start()
        self._is_shown = True

    @classmethod
    def made(cls, what: str, total: int | None) -> _RichBar | None:
        """Returns a bar, or None without rich."""
        bar = _rich_progress()
        return None if bar is None else cls(bar, what, total)

    def advance(self, nbytes: int) -> None:
        if not self._is_shown:
            self._bar.start()
            self._is_shown = True
        self._bar.advance(self._task, nbytes)

    def hide(self) -> None:
        if self._is_shown:
            self._bar.stop()
        self._is_shown = False


class _Line:
    """How much of some bytes is done, in one line of a terminal without rich."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done, self._length = what, total, 0, 0
        self._next = time.monotonic()

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if time.monotonic() < self._next:
            return
        said = size(self._done)
        if self._total is not None:
            said += f" of {size(self._total)}"
        if self._total:
            said = f"{min(100, 100 * self._done // self._total):3} %, {said}"
        room = shutil.get_terminal_size().columns - len(said) - 4
        line = f"{clipped(self._what, room)}: {said}" if room > 3 else said
        self._write(line)
        self._next = time.monotonic() + _SECONDS

    def hide(self) -> None:
        if self._length:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)


def _rich_progress() -> Any:
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.table import Column as Cell
    except ImportError:
        return None
    console = Console(stderr=True)
    # A description that is too long would break the bar into several lines.
    short = Cell(no_wrap=True, overflow="ellipsis", max_width=console.width // 3)
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False, table_column=short),
        BarColumn(bar_width=None if console.width < _NARROW else 40),
        DownloadColumn(table_column=Cell(no_wrap=True)),
    ]
    if console.width >= _NARROW:
        columns += [TransferSpeedColumn(), TimeRemainingColumn()]
    return Progress(*columns, console=console, transient=True)
