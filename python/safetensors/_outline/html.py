"""Blocks of static HTML: no script, link, image or style sheet, and all text escaped.

A notebook that came from someone else is shown without `<style>` and SVG, so all styles are inline,
and there is a blank between neighbours for programs that drop even these. Colours are that of the
text, a translucent grey, and accents that show on white and on black: no theme has to be detected.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from .._text import count, shape, shown, size
from .tree import Outline, Row, Total

MAX_ROWS = 100
"""Rows of a tree. The largest groups are unfolded first."""
_MAX_OPEN = 30
"""Levels are open as long as they show so many rows together."""
_MAX_PAIRS = 24
_MAX_TYPES = 12
_MAX_NAME = 96
_MAX_TEXT = 400
_MAX_VALUE = 120

_SUMMARY = '<summary style="cursor:pointer;list-style-position:outside">'
_ROW = '<div style="display:flex;white-space:pre">'
_ACCENT = "#0f9d8a"
_GREY = "rgba(128,128,128,.25)"
# Okabe and Ito's colours, which colour-blind people tell apart.
_COLOURS = {"BF16": "#0072b2", "F16": "#56b4e9", "F32": "#e69f00", "F64": "#d55e00"}
_OTHERS = ("#009e73", "#cc79a7", "#b8a200", "#8c6bb1", "#999999", "#a6761d")


def escaped(value: object, most: int = _MAX_NAME) -> str:
    """Returns text of a file for HTML, in up to about `most` bytes.

    Characters that are not printable are escaped, too: they could hide or reverse what follows.
    """
    text = str(value)
    found, room = [], most
    for at, char in enumerate(text):
        piece = html.escape(shown(char))
        room -= len(piece.encode())
        if room < 0 or at >= most:
            found.append("…")
            break
        found.append(piece)
    return "".join(found)


def wrapped(*blocks: str) -> str:
    """Returns the blocks in the frame that sets the font."""
    style = (
        "font:12px/1.55 var(--jp-code-font-family,ui-monospace,monospace);"
        "max-width:54rem;overflow-x:auto"
    )
    return f'<div style="{style}">{"".join(blocks)}</div>'


def heading(title: str, facts: Iterable[str]) -> str:
    """A name, and a line of facts."""
    line = " · ".join(map(escaped, facts))
    return f"<div><b>{escaped(title)}</b></div> <div>{line}</div> "


def paragraph(text: str) -> str:
    return f'<div style="opacity:.75">{escaped(text, _MAX_TEXT)}</div> '


def colours_of(types: Iterable[Total]) -> Mapping[str, str]:
    """Returns a colour for each type: its own, or else the next free one, by name."""
    others = sorted({each.type for each in types} - _COLOURS.keys())
    return {**_COLOURS, **{each: _OTHERS[i % len(_OTHERS)] for i, each in enumerate(others)}}


def types_bar(types: Sequence[Total]) -> str:
    """A bar of the bytes of each type, and its legend."""
    whole = sum(each.nbytes for each in types)
    if not whole:
        return ""
    colours = colours_of(types)
    parts = "".join(
        f'<i style="width:{100 * each.nbytes / whole:.2f}%;'
        f'background-color:{colours[each.type]}"></i>'
        for each in types[:_MAX_TYPES]
    )
    keys = " ".join(
        f'<span style="margin-right:1.2em;white-space:nowrap">'
        f'<b style="color:{colours[each.type]}">■</b> {escaped(each.type)} {each.tensors:,} · '
        f"{size(each.nbytes)}</span>"
        for each in types[:_MAX_TYPES]
    )
    bar = f'<div style="display:flex;height:10px;margin:5px 0 3px;overflow:hidden">{parts}</div>'
    return f"{bar} <div>{keys}</div> "


class _Widths:
    """The characters that the columns of a tree need."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.type = self.shape = 0
        self._add(rows)

    def _add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.type = max(self.type, len(row.type or ""))
            self.shape = max(self.shape, len(dimensions(row)))
            self._add(row.rows)


def dimensions(row: Row) -> str:
    """Returns the shape of a tensor, or how many tensors there are."""
    if row.shape is None:
        said = count(row.tensors // row.alike, "tensor")
    else:
        said = shape(row.shape[:6]) if len(row.shape) <= 6 else f"{len(row.shape)} axes"
    return f"{row.alike:,} \N{MULTIPLICATION SIGN} {said}" if row.alike > 1 else said


def tree(outline: Outline) -> str:
    """Nested `<details>`, the first levels of which are open."""
    widths = _Widths(outline.rows)
    opened = _opened(outline.rows)
    whole = max(outline.nbytes, 1)
    out: list[str] = []

    def add(rows: Sequence[Row]) -> None:
        for row in rows:
            line = f"{_ROW}{_line(row, widths, whole)}</div> "
            if not row.rows:
                out.append(line)
                continue
            state = " open" if id(row) in opened else ""
            out.append(
                f'<details{state}>{_SUMMARY}{line}</summary> <div style="padding-left:1.3em">'
            )
            add(row.rows)
            out.append("</div></details> ")

    add(outline.rows)
    if outline.omitted:
        out.append(paragraph(f"… {count(outline.omitted, 'more tensor')}"))
    return f'<div style="margin-top:4px;padding-left:1.3em">{"".join(out)}</div> '


def _line(row: Row, widths: _Widths, whole: int) -> str:
    label = escaped(row.label)
    label = _label(f"<b>{label}</b>" if row.rows else label)
    return (
        f"{label} <span> {escaped(row.type or '').ljust(widths.type)} {size(row.nbytes):>9} "
        "</span> "
        f"{_bar(row.nbytes / whole)} <span> {dimensions(row).ljust(widths.shape)}</span>"
    )


def _label(text: str) -> str:
    style = "flex:1 1 14em;min-width:9em;overflow:hidden;text-overflow:ellipsis"
    return f'<span style="{style}">{text}</span>'


def _bar(share: float) -> str:
    return (
        f'<span style="flex:0 0 6em;height:.7em;align-self:center;background-color:{_GREY}">'
        f'<i style="display:block;height:100%;width:{100 * share:.1f}%;background-color:{_ACCENT}">'
        "</i></span>"
    )


def _opened(rows: Sequence[Row]) -> set[int]:
    """Returns the rows that are open: whole levels, so that all parts of a model are seen before
    the details of one."""
    opened: set[int] = set()
    left = _MAX_OPEN - len(rows)
    level = [row for row in rows if row.rows]
    while level:
        below = [each for row in level for each in row.rows]
        left -= len(below)
        if left < 0:
            break
        opened.update(map(id, level))
        level = [row for row in below if row.rows]
    return opened


def pairs(title: str, values: Sequence[tuple[str, object]], most: int = _MAX_PAIRS) -> str:
    """A folded list of names and values."""
    if not values:
        return ""
    rows = "".join(
        f'<div><span style="opacity:.75">{escaped(key, 60)}</span>  {escaped(value, _MAX_VALUE)}'
        "</div> "
        for key, value in values[:most]
    )
    if len(values) > most:
        rows += paragraph(f"… {len(values) - most:,} more")
    return folded(f"{title} ({len(values):,})", rows)


def folded(title: str, body: str) -> str:
    """A block under a title that opens it."""
    return (
        f'<details style="margin-top:4px;padding-left:1.3em">{_SUMMARY}{escaped(title)}</summary> '
        f"<div>{body}</div></details> "
    )


def bars(rows: Iterable[tuple[str, int, str]], most: int = 60) -> str:
    """Rows of a label, bytes and a text, with a bar of the bytes."""
    listed = list(rows)
    whole = max((nbytes for _, nbytes, _ in listed), default=0) or 1
    out = [
        f"{_ROW}{_label(escaped(label))} <span> {size(nbytes):>9} </span> "
        f"{_bar(nbytes / whole)} <span> {escaped(text)}</span></div> "
        for label, nbytes, text in listed[:most]
    ]
    if len(listed) > most:
        out.append(paragraph(f"… {len(listed) - most:,} more"))
    return f'<div style="margin-top:4px;padding-left:1.3em">{"".join(out)}</div> '


def histogram(counts: Sequence[int], low: float, high: float, height: int = 90) -> str:
    """Bars of counts, and the values at both ends."""
    most = max(counts, default=0) or 1
    each = "".join(
        f'<i style="flex:1 1 0;margin-right:1px;height:{100 * n / most:.1f}%;'
        f'background-color:{_ACCENT}"></i>'
        for n in counts
    )
    return (
        f'<div style="display:flex;align-items:flex-end;height:{height}px;max-width:430px;'
        f'margin-top:6px">{each}</div> '
        '<div style="display:flex;justify-content:space-between;max-width:430px;'
        f'border-top:1px solid {_GREY}"><span>{low:.4g}</span> <span>{high:.4g}</span></div> '
    )
