"""Formats names, counts, sizes and shapes as text."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

_MAX_AXES = 12
_MAX_VALUES = 4


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


def number(value: float) -> str:
    """Returns a float that may have been a float32 with as few digits as that needs."""
    for digits in range(1, 10):
        said = f"{value:.{digits}g}"
        try:
            if struct.unpack("<f", struct.pack("<f", float(said)))[0] == value:
                return repr(float(said))
        except OverflowError:
            break
    return repr(value)


def value(given: Any) -> str:
    """Returns a value of metadata as text: a text as it is, all else like JSON."""
    if isinstance(given, str):
        return given
    if isinstance(given, bytes):  # a string of GGUF that is no UTF-8
        return given.decode("utf-8", "backslashreplace")
    if isinstance(given, float):
        return number(given)
    if isinstance(given, list | tuple):
        said = (json.dumps(each) if isinstance(each, str) else value(each) for each in given)
        return f"[{', '.join(said)}]"
    return json.dumps(given)


def brief(given: Any, most: int = 1000) -> str:
    """Returns the start of a value of metadata as text; of an array the first values."""
    if not isinstance(given, list):
        return clipped(value(given), most)
    more = ", ..." if len(given) > _MAX_VALUES else ""
    return clipped(value(given[:_MAX_VALUES])[1:-1], most) + more
