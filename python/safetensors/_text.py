"""Formats names, counts, sizes and shapes as text."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_AXES = 12


def shown(text: str) -> str:
    """Returns the text with characters escaped that could control a terminal, or hide or reverse
    what follows them."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def clipped(text: str, most: int = 100) -> str:
    """Returns the text, shortened to `most` characters, to fit in a sentence."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def size(nbytes: int) -> str:
    """Returns a size such as "548.1 MB". Units are powers of ten."""
    if nbytes < 1000:
        return f"{nbytes} B"
    units = ["kB", "MB", "GB", "TB", "PB"]
    value = nbytes / 1000
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:,.1f} {units[0]}"


def rounded(number: int) -> str:
    """Returns a count such as "8.03 B"."""
    if number < 1000:
        return str(number)
    units = ["k", "M", "B", "T", "Q"]
    value = number / 1000
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    shown = f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".removesuffix(".")
    return f"{shown} {units[0]}"


def bits_per_weight(nbytes: int, weights: int) -> str:
    return f"{8 * nbytes / weights:.2f}"


def shape(dims: Sequence[int]) -> str:
    """Returns a shape such as "[2, 3]"; of more than 12 axes it shows the first ones."""
    text = ", ".join(map(str, dims[:_MAX_AXES]))
    return f"[{text}]" if len(dims) <= _MAX_AXES else f"[{text}, ... {len(dims)} axes]"


def count(number: int, what: str) -> str:
    """Returns a number and a noun, such as "1 tensor" or "1,200 tensors"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
