"""Turning names, sizes and shapes into text, and sizes back."""

import os
import re
from typing import Sequence

from .errors import CliError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1 << (10 * power) for power, unit in enumerate("KMGT", 1)}
_MOST_AXES = 12


def shown(text: str) -> str:
    """The text with what could steer a terminal spelled out: names come from strangers."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def clipped(text: str, most: int = 100) -> str:
    """The same, cut to fit in a sentence."""
    return shown(text if len(text) <= most else f"{text[: most - 3]}...")


def shown_path(path: "str | os.PathLike[str]") -> str:
    return shown(os.fspath(path))


def size(nbytes: int) -> str:
    """ "548.1 MB": powers of ten, as disks and networks are sold."""
    if nbytes < 1000:
        return f"{nbytes} B"
    units = ["kB", "MB", "GB", "TB", "PB"]
    value = nbytes / 1000
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f} {units[0]}"


def parse_size(text: str) -> int:
    """Bytes of "5GB", "500 MB", "2GiB" or "1000"."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?I?)B?", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise CliError(f"not a size: {clipped(text)} (5GB, 500MB, 2GiB)")
    nbytes = int(float(match[1]) * _UNITS[match[2]])
    if nbytes == 0:
        raise CliError("a shard of no bytes holds nothing: give a larger size")
    return nbytes


def shape(dims: Sequence[int]) -> str:
    """ "[2, 3]", of very many axes the first ones."""
    text = ", ".join(map(str, dims[:_MOST_AXES]))
    return f"[{text}]" if len(dims) <= _MOST_AXES else f"[{text}, ... {len(dims)} axes]"


def count(number: int, what: str) -> str:
    """ "1 tensor", "1,200 tensors". A number before a noun goes through here."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def natural_key(name: str) -> "list[str | tuple[int, str]]":
    """Sorts layer 2 before layer 10. Numbers stay text: one may have thousands of digits."""
    parts: list[str | tuple[int, str]] = list(re.split(r"([0-9]+)", name))
    for i in range(1, len(parts), 2):
        digits = str(parts[i]).lstrip("0")
        parts[i] = (len(digits), digits)
    return parts
