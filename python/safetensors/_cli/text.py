"""Formats text for the command line; what notebooks need as well is in `_text`."""

import os
import re
import sys

from .._text import (
    bits_per_weight,
    brief,
    clipped,
    count,
    number,
    rounded,
    shape,
    shown,
    size,
    value,
)

__all__ = [
    "BESIDE",
    "bits_per_weight",
    "brief",
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


def natural_key(name: str) -> "list[str | tuple[int, str]]":
    """Returns a sort key that places layer 2 before layer 10.

    Numbers stay text, because one may have thousands of digits.
    """
    parts: list[str | tuple[int, str]] = list(re.split(r"([0-9]+)", name))
    for i in range(1, len(parts), 2):
        digits = str(parts[i]).lstrip("0")
        parts[i] = (len(digits), digits)
    return parts
