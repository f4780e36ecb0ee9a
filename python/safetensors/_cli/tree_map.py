"""Draws the sizes of tensors as a tree map: an SVG whose areas are bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .._outline.html import escaped
from .._outline.tree import Row
from . import text

_MAX_PIECES = 1600
"""Rectangles and labels of a map."""
_LEAST_AREA = 3.0
_MAX_COPIES = 100
"""Of rows that are alike, each is drawn, as long as there are not more."""
_MAX_DEPTH = 8
_LABEL = 11
"""The height of a line of text."""


class _Area(NamedTuple):
    x: float
    y: float
    width: float
    height: float


class _Box(NamedTuple):
    label: str
    nbytes: int
    row: Row


def tree_map(
    rows: Sequence[Row], colours: Mapping[str, str], width: int, height: int, others: str = "#888"
) -> str:
    """Returns the map. Groups whose rows are not shown have the colour `others`."""
    out: list[str] = []
    _draw(_boxes(rows, ""), colours, _Area(0, 0, width, height), 0, out, others)
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="100%" '
        'aria-label="sizes of the tensors" font-size="9" fill="currentColor" '
        f'font-family="ui-monospace,monospace">{"".join(out)}</svg>'
    )


def _boxes(rows: Sequence[Row], above: str) -> list[_Box]:
    """Returns the largest first. Rows that are alike are one box each."""
    found = []
    for row in rows:
        copies = row.alike if row.alike <= _MAX_COPIES else 1
        if row.nbytes > 0:
            for label in _labels(row, copies):
                name = f"{above}.{label}" if above else label
                found.append(_Box(name, row.nbytes // copies, row))
    return sorted(found, key=lambda box: -box.nbytes)


def _labels(row: Row, copies: int) -> list[str]:
    """Returns a name for each of some rows that are alike: its own, if they are numbered without a
    gap."""
    first, last = (re.fullmatch(r"(\d{1,9})(\..*)?", name) for name in (row.first, row.last))
    if first and last and int(last[1]) - int(first[1]) == copies - 1 > 0:
        return [f"{int(first[1]) + i}{first[2] or ''}" for i in range(copies)]
    return [row.label] * copies


def _draw(
    boxes: Sequence[_Box],
    colours: Mapping[str, str],
    area: _Area,
    depth: int,
    out: list[str],
    others: str,
) -> None:
    for box, (x, y, width, height) in _squarified(boxes, area):
        if width * height < _LEAST_AREA or len(out) > _MAX_PIECES:
            continue  # nobody would see it
        label = escaped(_last(box.label), max(2, int(width / 6)))
        can_unfold = box.row.rows and depth < _MAX_DEPTH and len(out) < _MAX_PIECES // 2
        if can_unfold and width > 14 and height > 14:
            top = _LABEL if width > 60 and height > 26 else 1
            if top > 1:
                out.append(f'<text x="{x + 3:.1f}" y="{y + 9:.1f}">{label}</text>')
            inner = _Area(x + 1, y + top, width - 2, height - top - 1)
            _draw(_boxes(box.row.rows, box.label), colours, inner, depth + 1, out, others)
            continue
        kind = box.row.type
        said = text.count(box.row.tensors, "tensor") if kind is None else kind
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0, width - 0.6):.1f}" '
            f'height="{max(0, height - 0.6):.1f}" '
            f'fill="{others if kind is None else colours[kind]}" fill-opacity=".55"><title>'
            f"{escaped(box.label)}: {escaped(said)} {text.size(box.nbytes)}</title></rect>"
        )
        if width > 40 and height > 12:
            out.append(f'<text x="{x + 3:.1f}" y="{y + 10:.1f}">{label}</text>')


def _squarified(boxes: Sequence[_Box], area: _Area) -> Iterator[tuple[_Box, _Area]]:
    """Yields the place of each box: Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).

    Boxes, the largest first, fill strips along the shorter side. A strip takes one more box as long
    as that makes its worst ratio of sides, max(side^2 a / s^2, s^2 / (side^2 a)) for areas a with
    the sum s, no worse.
    """
    x, y, width, height = area
    left = sum(box.nbytes for box in boxes)
    at = 0
    while at < len(boxes) and width > 0 and height > 0:
        side, scale = min(width, height), width * height / left
        end, strip, best = at, 0, float("inf")
        while end < len(boxes):
            total = (strip + boxes[end].nbytes) * scale
            most, least = boxes[at].nbytes * scale, boxes[end].nbytes * scale
            worst = max(side * side * most / total**2, total**2 / (side * side * least))
            if worst > best:
                break
            best, strip, end = worst, strip + boxes[end].nbytes, end + 1
        thick, along = strip * scale / side, 0.0
        for box in boxes[at:end]:
            length = side * box.nbytes / strip
            if width >= height:
                yield box, _Area(x, y + along, thick, length)
            else:
                yield box, _Area(x + along, y, length, thick)
            along += length
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
        left -= strip
        at = end


def _last(label: str) -> str:
    """Returns the last part of a name; the last two if the last one says little."""
    parts = label.split(".")
    return ".".join(parts[-2:] if parts[-1] in ("weight", "bias") else parts[-1:])
