"""Reads the JSON of strangers: files, metadata of files, answers of servers.

`json.loads` takes up to 40 bytes for each byte of `{},{},...`, nests as deep as the interpreter
lets it, keeps the last of two equal keys, and accepts halves of surrogate pairs, which no file name
and no terminal can hold. A test refuses calls of it elsewhere in the package.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from ._errors import failure
from ._reading import MAX_HEADER_NBYTES

MAX_NBYTES = MAX_HEADER_NBYTES
"""The limit of a document."""
MAX_NESTED = 127
MAX_DIGITS = 1000
"""Python converts the digits of an integer in quadratic time."""

# What a text, its copies and its values may take.
_TIMES = 8
_SPARE_NBYTES = 40 << 20
# What CPython 3.10, which takes most, allocates: for a dictionary; a list; a key's entry in a
# dictionary, in the parser's table of keys, and in the list that becomes a dictionary; the head of
# a string; a number and its place in a list.
_OBJECT_NBYTES = 96
_ARRAY_NBYTES = 64
_KEY_NBYTES = 128
_STRING_NBYTES = 80
_VALUE_NBYTES = 48

# Not one match for a whole string: a repeated group takes 30 bytes or more for each escape.
_MARKS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|u([dD][89a-fA-F])|.)",
    re.DOTALL,
)

Pairs = list[tuple[str, Any]]

_malformed = functools.partial(failure, "invalid_header_json")


def loads(
    text: bytes | str,
    name: str,
    *,
    error: Callable[[str], Exception] = _malformed,
    object_of: Callable[[Pairs], Any] | None = None,
) -> Any:
    """Parses JSON that may come from anyone.

    Takes linear time, and at most 8 times the text's length plus 64 MB of memory, with the text.
    NaN and Infinity are accepted, as by `json.loads`. Thread safe.

    Args:
        text: UTF-8, with or without a byte order mark.
        name: what errors call the text: a path, and the part of the file if it is not the whole.
        error: makes the errors about limits from their texts. By default SafetensorErrors.
        object_of: makes an object of its members, which may repeat. By default a dictionary,
            whose keys must differ.

    Raises:
        ValueError: it is not JSON, or not UTF-8.
        SafetensorError, or what `error` makes: it has more than 100 MB, is nested deeper than 127
            levels, would take too much memory, or has an integer of more than 1,000 digits, a
            repeated key or half of a surrogate pair.
    """

    def refuse(why: str) -> Any:
        raise error(f"{name}: the JSON {why}")

    nbytes = len(text)
    if nbytes > MAX_NBYTES:
        refuse(f"has {nbytes:,} bytes; the limit is {MAX_NBYTES:,}")
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    needed = most_memory(text, nbytes)
    if needed > _TIMES * nbytes + _SPARE_NBYTES:
        refuse(f"of {nbytes:,} bytes has so many values that they may take {needed:,} bytes")
    _check_depth(text, refuse)
    _check_surrogates(text, refuse)

    def unique(pairs: Pairs) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            refuse(f"has the key {_repeated(pairs)[:100]!r} twice in one object")
        return found

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            refuse(f"has an integer of {len(digits):,} digits; the limit is {MAX_DIGITS:,}")
        return int(digits)

    return json.loads(text, object_pairs_hook=object_of or unique, parse_int=integer)


def most_memory(text: str, nbytes: int) -> int:
    """Returns the most that a text of `nbytes` bytes, its copies and its values can take.

    Marks within strings count, too: the estimate can be too high, never too low.
    """
    return (
        nbytes
        + 2 * sys.getsizeof(text)  # the characters of its strings are no wider
        + text.count("{") * _OBJECT_NBYTES
        + text.count("[") * _ARRAY_NBYTES
        + text.count(":") * _KEY_NBYTES
        + text.count('"') // 2 * _STRING_NBYTES
        + text.count(",") * _VALUE_NBYTES
    )


def _check_depth(text: str, refuse: Callable[[str], Any]) -> None:
    if text.count("[") + text.count("{") <= MAX_NESTED:
        return
    depth, in_string = 0, False
    for match in _MARKS.finditer(text):
        if match[0] == '"':
            in_string = not in_string
        elif not in_string and len(match[0]) == 1:
            depth += 1 if match[0] in "[{" else -1
        if depth > MAX_NESTED:
            refuse(f"is nested deeper than {MAX_NESTED} levels")


def _check_surrogates(text: str, refuse: Callable[[str], Any]) -> None:
    if _SURROGATE.search(text) is None:
        return
    for match in _ESCAPE.finditer(text):
        if match[1]:
            refuse(f"has half of a surrogate pair at character {match.start():,}")


def _repeated(pairs: Pairs) -> str:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")
