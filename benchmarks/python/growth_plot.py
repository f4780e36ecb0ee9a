"""The plots of growth.py, as SVG.

Each panel is an SVG of its own, so that a page can arrange them for its width. Text has the colour
of the page (`currentColor`), or as an image one that fits the reader's light or dark colours.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping

Line = Mapping[int, float]
"""Seconds by the number of tensors, or by bytes."""

COLORS = {"ours": "#0f9d8a", "upstream": "#d9822b"}
NAMES = {"ours": "this package", "upstream": "upstream 0.8.0"}
WIDTH, HEIGHT = 340, 236  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 44, 36  # its margins
GAP = 20
TEXT = 'font-family="sans-serif" fill="currentColor"'
STYLE = (
    "<style>svg:root{color:#1f2328}"
    "@media(prefers-color-scheme:dark){svg:root{color:#e6edf3}}</style>"
)


def steepest(line: Line) -> float:
    """The largest exponent between neighbouring points that take over a millisecond: 1 is linear.

    Below a millisecond fixed costs hide how a cost grows."""
    points = [(point, seconds) for point, seconds in line.items() if seconds > 1e-3]
    return max(
        (
            math.log(after / seconds) / math.log(later / point)
            for (point, seconds), (later, after) in itertools.pairwise(points)
        ),
        default=0.0,
    )


def plot(found: Mapping[str, Mapping[str, Line]], title: str) -> str:
    """Returns a panel for each operation, two in a row, beneath a legend."""
    rows = -(-len(found) // 2)
    width, height = 2 * WIDTH + GAP, 24 + rows * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="Time against {title}">{STYLE}'
    ]
    parts.append(_legend())
    for i, (name, lines) in enumerate(found.items()):
        x, y = (WIDTH + GAP) * (i % 2), 24 + (HEIGHT + GAP) * (i // 2)
        parts.append(_panel(name, lines, title, x, y))
    return "\n".join(parts) + "\n</svg>\n"


def _legend() -> str:
    parts = [f'<svg class="panel" viewBox="0 0 340 24" width="340" height="24" {TEXT}>']
    for i, (label, name) in enumerate(NAMES.items()):
        x = 10 + 106 * i
        parts.append(f'<circle cx="{x}" cy="12" r="5" fill="{COLORS[label]}"/>')
        parts.append(_text(x + 10, 16, name, 12))
    parts.append(_text(228, 16, "time; lower is better", 12))
    return "".join(parts) + "</svg>"


def _panel(name: str, lines: Mapping[str, Line], title: str, x: int, y: int) -> str:
    points = sorted({point for line in lines.values() for point in line})
    times = [seconds for line in lines.values() for seconds in line.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(point: int) -> float:
        return LEFT + (right - LEFT) * math.log(point / points[0]) / math.log(
            points[-1] / points[0]
        )

    def down(seconds: float) -> float:
        return bottom - (bottom - TOP) * (math.log10(seconds) - low) / (high - low)

    found = {label: steepest(lines[label]) for label in NAMES}
    slopes = [f"{found[label]:.2f} {NAMES[label].split(' ')[0]}" for label in NAMES if found[label]]
    slope = f"steepest slope: {', '.join(slopes)}; 1 is linear"
    if not slopes:
        slope = "below a millisecond: no slope"
    parts = [
        f'<svg class="panel" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" {TEXT}>',
        _text(LEFT, 14, name, 13, 'font-weight="600"'),
        _text(LEFT, 32, slope, 11),
        _text((LEFT + right) / 2, HEIGHT - 3, title, 11, 'text-anchor="middle"'),
    ]
    for power in range(low, high + 1):
        at = down(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="currentColor" opacity=".2"/>')
        parts.append(_text(LEFT - 6, at + 4, _time(power), 11, 'text-anchor="end"'))
    for point in points:
        label = _count(point) if title.startswith("number") else _bytes(point)
        parts.append(_text(across(point), bottom + 16, label, 11, 'text-anchor="middle"'))
    for label, line in lines.items():
        path = "L".join(f"{across(point):.1f} {down(line[point]):.1f}" for point in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{COLORS[label]}" stroke-width="2"/>')
        for point in line:
            parts.append(
                f'<circle cx="{across(point):.1f}" cy="{down(line[point]):.1f}" r="3.5"'
                f' fill="{COLORS[label]}"/>'
            )
    return "".join(parts) + "</svg>"


def _text(x: float, y: float, text: str, size: int, attributes: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {attributes}>{html.escape(text)}</text>'
    )


def _time(power: int) -> str:
    """10 to a power, in seconds, with its unit: "10 ms"."""
    unit = {0: "s", -1: "ms", -2: "us", -3: "ns"}[min(power, 0) // 3]
    return f"{10 ** (power - 3 * (min(power, 0) // 3)):,} {unit}"


def _count(number: int) -> str:
    return f"{number // 10**6} M" if number >= 10**6 else f"{number:,}"


def _bytes(number: int) -> str:
    power = min((number.bit_length() - 1) // 10, 3)
    return f"{number >> 10 * power} {('B', 'KB', 'MB', 'GB')[power]}"
