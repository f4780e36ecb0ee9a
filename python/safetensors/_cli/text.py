"""Formats text for the command line; what notebooks need as well is in `_text`."""

import json
import os
import re
import struct
import sys
from typing import Any

from .._text import bits_per_weight, clipped, count, rounded, shape, shown, size

__all__ = [
    "BESIDE",
    "bits_per_weight",
    "clipped",
    "count",
    "natural_key",
    "number",
    "program",
    "rounded",
    "shape",
    "shown",
    "size",
    "value",
]

BESIDE = "safetensors-cpp"
"""The program of the distribution that is installed beside upstream's."""


def program() -> str:
    """Returns the name by which the user calls this program."""
    name = os.path.basename(sys.argv[0])
    return BESIDE if name.startswith(BESIDE) else "safetensors"


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


def natural_key(name: str) -> "list[str | tuple[int, str]]":
    """Returns a sort key that places layer 2 before layer 10.

    Numbers stay text, because one may have thousands of digits.
    """
    parts: list[str | tuple[int, str]] = list(re.split(r"([0-9]+)", name))
    for i in range(1, len(parts), 2):
        digits = str(parts[i]).lstrip("0")
        parts[i] = (len(digits), digits)
    return parts
