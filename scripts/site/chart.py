"""Draws the chart of the home page from the tables of docs/performance.md.

Each row is a bar from 1x to its ratio, on a logarithmic axis. The SVG stands in the page itself, so
that its text has the colour of the page: an image would follow the system's colours, and not the
switch of the site.
"""

from __future__ import annotations

import html
import math
import re
from typing import NamedTuple

# A row of a table, and what the chart calls it. README.md has the same rows. Those that do not win
# belong here.
ROWS = {
    "load gpt2 into NumPy, all pages touched": "Load into NumPy, touch every page",
    "save gpt2 to bytes in memory": "Save to bytes in memory",
    "load moe, all pages touched": "Load 100,000 tensors, touch every page",
    "save gpt2 over a file": "Save over a file",
    'load gpt2, all bytes copied (`"pread"`)': "Load by copying (backend pread)",
    "load gpt2 from bytes in memory": "Load from bytes in memory",
    "save gpt2 to a new file": "Save to a new file",
    "load gpt2, cold page cache, all pages touched": "Load from a cold disk, touch every page",
    "load gpt2, all pages touched": "Load into torch, touch every page",
    "load gpt2, each tensor cloned": "Load into torch, clone every tensor",
    "import `safetensors`": "Import safetensors",
    "import `safetensors.torch`, after torch": "Import safetensors.torch, after torch",
}
LEAST, MAX = 0.4, 16.0
FASTER, ALIKE, SLOWER = "#0f9d8a", "#8a8a8a", "#d9822b"


class Figures(NamedTuple):
    upstream: str
    ours: str
    shown: str

    @property
    def ratio(self) -> float:
        return float(self.shown.replace(",", ""))


def figures(text: str) -> dict[str, Figures]:
    """Returns the rows of the page's tables that have a ratio; of two of a name, the first."""
    found: dict[str, Figures] = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"[\d.,]+x", cells[3]):
            found.setdefault(cells[0], Figures(cells[1], cells[2], cells[3][:-1]))
    return found


def chart(text: str) -> str:
    """Returns two drawings, of which the style sheet shows the one that fits the screen."""
    known = figures(text)
    rows = [(label, known[row]) for row, label in ROWS.items()]
    wide = _drawing(rows, "chart chart-wide", width=760, left=266, step=25)
    narrow = _drawing(rows, "chart chart-narrow", width=370, left=0, step=42)
    return f"<div>{wide}{narrow}</div>"


def _drawing(
    rows: list[tuple[str, Figures]], name: str, *, width: int, left: int, step: int
) -> str:
    """Draws with `left` pixels for labels; 0 puts each label above its bar."""
    begin = left or 12
    scale = (width - begin - 136) / math.log(MAX / LEAST)  # the figures are to the right
    bottom = step * len(rows) + 22

    def place(ratio: float) -> float:
        return begin + scale * math.log(ratio / LEAST)

    parts = [
        f'<svg class="{name}" role="img" viewBox="0 0 {width} {bottom + 18}" width="100%"'
        ' font-size="13" fill="currentColor"'
        ' aria-label="Speed against upstream by operation, as in the table of README.md">',
        _text(place(1) - 6, 12, "slower", 'text-anchor="end" font-size="11"'),
        _text(place(1) + 6, 12, "faster than upstream 0.8.0", 'font-size="11"'),
    ]
    tick = 0.5
    while tick <= MAX:
        strength = 0.7 if tick == 1 else 0.15
        parts.append(
            f'<path d="M{place(tick):.0f} 18V{bottom}" stroke="currentColor" opacity="{strength}"/>'
        )
        parts.append(
            _text(place(tick), bottom + 15, f"{tick:g}x", 'text-anchor="middle" font-size="11"')
        )
        tick *= 2
    for i, (label, row) in enumerate(rows):
        y = 24 + step * i + (0 if left else 16)
        x, end = sorted((place(1), place(row.ratio)))
        color = FASTER if row.ratio >= 1.05 else ALIKE if row.ratio >= 0.95 else SLOWER
        at = (left - 8, y + 13, 'text-anchor="end"') if left else (place(1) + 4, y - 4, "")
        parts.append(_text(at[0], at[1], label, at[2]))
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(end - x, 3):.1f}" height="16" rx="2"'
            f' fill="{color}"/>'
        )
        parts.append(
            f'<text x="{max(end, place(1)) + 6:.0f}" y="{y + 13}">'
            f'<tspan font-weight="600">{row.shown}x</tspan>'
            f'<tspan font-size="11" dx="6">{row.upstream} → {row.ours}</tspan></text>'
        )
    return "".join(parts) + "</svg>"


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {attributes}>{html.escape(text)}</text>'
