"""Writes the output of commands: plain text, or with rich on a terminal.

Names, metadata and paths are untrusted text. All output of the command line goes through this
module, which escapes characters that could control a terminal, so no other module needs to.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._progress_bar import Bar, bar_on_terminal
from .errors import CliError
from .text import program, shown

if TYPE_CHECKING:
    from rich.console import Console

_MAX_ROWS_WITH_RICH = 5000
"""With more rows, rich's layout takes many seconds."""
_FORCING = ("FORCE_COLOR", "CLICOLOR_FORCE")


class Column(NamedTuple):
    """A column of a table. `style` is a style of rich."""

    title: str
    style: str = ""
    right: bool = False


Piece = tuple[str, str]
"""A part of a line, and its style."""

Advance = Callable[[int], None]
"""Advances a progress bar by a number of bytes."""

Report = Callable[[int, int], None]
"""Called with the bytes that are done, and all bytes."""


class Output:
    """Writes results to standard output, and progress and notes to standard error."""

    def __init__(self, color: str, quiet: bool = False) -> None:
        self.quiet = quiet
        self._color = color
        self._console: Console | None = None
        self._bar: Bar | None = None
        self._is_forced = color == "always" or (color == "auto" and _is_color_forced())
        if self._is_forced or (color == "auto" and _is_terminal(sys.stdout)):
            self._console = self._rich_console()
        # Characters that the encoding lacks are escaped instead of raising an error.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def _rich_console(self) -> "Console | None":
        try:
            from rich.console import Console
        except ImportError:
            if self._color == "always":  # else it is only the environment's wish
                raise CliError("colours need rich: pip install rich") from None
            return None
        return Console(force_terminal=True if self._is_forced else None, highlight=False)

    @property
    def width(self) -> int:
        """The width of the terminal in characters; 80 if there is none."""
        if self._console is not None:
            return self._console.width
        return shutil.get_terminal_size().columns if _is_terminal(sys.stdout) else 80

    def can_show(self, text: str) -> bool:
        """Returns whether the encoding of standard output has these characters."""
        try:
            text.encode(sys.stdout.encoding or "ascii")
        except UnicodeError:
            return False
        return True

    def line(self, *pieces: "str | Piece") -> None:
        """Writes one line of plain text and styled pieces."""
        if self._bar is not None:
            self._bar.hide()
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        parts = [(shown(text), style) for text, style in styled]
        if self._console is None:
            sys.stdout.write("".join(text for text, _ in parts).rstrip(" ") + "\n")
            return
        from rich.text import Text

        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: "Sequence[Sequence[str]]") -> None:
        """Writes a table: a row of titles, then the rows."""
        rows = [[shown(cell) for cell in row] for row in rows]
        if self._console is None or len(rows) > _MAX_ROWS_WITH_RICH:
            self._plain_table(columns, rows)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            justify: Any = "right" if column.right else "left"
            table.add_column(column.title, style=column.style, justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    def _plain_table(self, columns: Sequence[Column], rows: "Sequence[Sequence[str]]") -> None:
        titles = [column.title for column in columns]
        # One name of a megabyte must not widen all other rows.
        widths = [
            max(min(len(row[i]), 200) for row in (titles, *rows)) for i in range(len(columns))
        ]
        for row in (titles, *rows):
            cells = [
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            sys.stdout.write("  ".join(cells).rstrip() + "\n")

    def text(self, text: str) -> None:
        """Writes a text that is the whole output. A pipe or file receives it unescaped."""
        if _is_terminal(sys.stdout):
            self.line(text)
        else:
            sys.stdout.write(text + "\n")

    def json(self, value: object) -> None:
        """Writes a value as JSON in printable ASCII."""
        # DEL is the only ASCII control character that JSON does not escape.
        sys.stdout.write(json.dumps(value).replace("\x7f", "\\u007f") + "\n")

    def note(self, text: str) -> None:
        """Writes a line to standard error about something that the user may not expect."""
        if not self.quiet:
            sys.stdout.flush()  # where both streams have one reader, it sees them in order
            complain(text)

    @contextlib.contextmanager
    def progress(self, what: str, total_nbytes: int) -> Iterator[Advance]:
        """Shows a progress bar on standard error. Yields a function that advances it."""
        if self.quiet or self._color == "never" or not _is_terminal(sys.stderr):
            yield _no_progress
            return
        bar = self._bar = bar_on_terminal(shown(what), total_nbytes)
        try:
            yield bar.advance
        finally:
            self._bar = None
            bar.hide()

    @contextlib.contextmanager
    def reported(self, what: str) -> Iterator[Report]:
        """Yields a function to call as `progress(done, total)`. The first call shows a bar on
        standard error."""
        with contextlib.ExitStack() as shown:
            advance: Advance | None = None
            before = 0

            def report(done: int, total: int) -> None:
                nonlocal advance, before
                if advance is None:
                    advance = shown.enter_context(self.progress(what, total))
                advance(done - before)
                before = done

            yield report


def complain(message: str) -> None:
    """Writes one line to standard error."""
    sys.stderr.write(f"{program()}: {shown(message)}\n")


def show_traceback(error: "BaseException | None") -> None:
    """Writes the traceback of an error, after those of the errors that caused it."""
    if error is None:
        return
    show_traceback(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
    sys.stderr.write("".join(traceback.format_tb(error.__traceback__)))
    sys.stderr.write(f"{type(error).__name__}: {shown(str(error))}\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="when to use colours, which need rich, and to show progress; auto: on a terminal",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print no notes and no progress bar"
    )


def _is_terminal(stream: Any) -> bool:
    return stream is not None and bool(stream.isatty())


def _is_color_forced() -> bool:
    """Returns whether the environment asks for colours where there is no terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return any(os.environ.get(name, "0") not in ("", "0") for name in _FORCING)


def _no_progress(_nbytes: int) -> None:
    pass
