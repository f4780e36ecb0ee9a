"""What ranks send each other: a fixed format of strings, integers and bytes, never objects.

    8 bytes   the format and its version
    8 bytes   what the message is for, padded with zeros
    4 x 8     counts: of strings, of their bytes in all, of integers, of other bytes
    4 each    the length of each string, in characters
    8 each    the integers, with sign
    the rest  the strings' bytes, as UTF-8, and the other bytes

Numbers are little-endian. What arrives is checked: a message that is damaged, or too long, or for
another purpose, is an error that names the rank that sent it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from .._core import SafetensorError
from .._errors import failure

MAX_NBYTES = 1 << 30
"""The longest message that rank 0 sends to all: it has the headers of files behind URLs."""
MAX_NBYTES_OF_EACH = 256 << 20
"""The longest message that every rank sends to all."""

_MAGIC = b"stranks1"
_START = struct.Struct("<8s8sQQQQ")


class Malformed(ValueError):
    """What was received is not what the sender should have sent. Has no rank in its text."""


class Message(NamedTuple):
    """The content of a message."""

    texts: Sequence[str] = ()
    numbers: Sequence[int] = ()
    data: bytes = b""


def encode(purpose: str, message: Message, most: int) -> bytes:
    """Returns the bytes of a message.

    Raises:
        SafetensorError: they would be more than `most`.
    """
    texts, numbers, data = message
    joined = "".join(texts).encode("utf-8", "surrogatepass")  # a path may have such characters
    lengths = array("I", map(len, texts))
    integers = array("q", numbers)
    if sys.byteorder == "big":
        lengths.byteswap()
        integers.byteswap()
    start = _START.pack(
        _MAGIC, purpose.encode(), len(lengths), len(joined), len(integers), len(data)
    )
    found = b"".join((start, lengths.tobytes(), integers.tobytes(), joined, data))
    if len(found) > most:
        raise failure(
            "invalid_argument",
            f"a rank would send {len(found)} bytes ({purpose}) to other ranks, and at most {most} "
            "are accepted",
        )
    return found


def decode(purpose: str, received: bytes | memoryview) -> Message:
    """Returns the content of a message. Safe for untrusted input.

    Uses about 12 times the memory of what was received, and linear time.

    Raises:
        Malformed: it is none, or one for another purpose.
    """
    view = memoryview(received)
    if len(view) < _START.size or bytes(view[:8]) != _MAGIC:
        raise Malformed(f"it begins with {bytes(view[:8])!r} instead of {_MAGIC!r}")
    _, found, *counts = _START.unpack_from(view)
    if found != purpose.encode().ljust(8, b"\0"):
        raise Malformed(f"it is for {found!r} instead of {purpose!r}")
    texts, text_nbytes, numbers, nbytes = counts
    at = _START.size
    expected = at + 4 * texts + 8 * numbers + text_nbytes + nbytes
    if expected != len(view):
        raise Malformed(f"it has {len(view)} bytes, and its counts are those of {expected}")
    lengths, at = _array("I", view, at, 4 * texts)
    integers, at = _array("q", view, at, 8 * numbers)
    try:
        joined = str(view[at : at + text_nbytes], "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Malformed(f"its strings are not UTF-8 ({error.reason})") from None
    if sum(lengths) != len(joined):
        raise Malformed(
            f"its strings have {len(joined)} characters, and their lengths {sum(lengths)}"
        )
    strings: list[str] = []
    begin = 0
    for length in lengths:
        strings.append(joined[begin : begin + length])
        begin += length
    return Message(strings, integers, bytes(view[at + text_nbytes :]))


def expect(is_right: bool, text: str) -> None:
    """Raises Malformed with this text unless `is_right`."""
    if not is_right:
        raise Malformed(text)


def refused(rank: int, error: Malformed) -> SafetensorError:
    """Returns the error of a rank that received what it cannot use."""
    return failure(
        "io", f"rank {rank} sent what no rank with this version of safetensors sends: {error}"
    )


def _array(code: str, view: memoryview, at: int, nbytes: int) -> tuple[array[int], int]:
    """Returns the integers of some bytes, and where they end."""
    found = array(code)
    found.frombytes(view[at : at + nbytes])
    if sys.byteorder == "big":
        found.byteswap()
    return found, at + nbytes
