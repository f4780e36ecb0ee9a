"""Changes the metadata of headers."""

import json
import re

from .. import _json
from .errors import CliError

LENGTH_NBYTES = 8
MAX_NBYTES = 100_000_000
_BLOCK_NBYTES = 4096
_METADATA = "__metadata__"
_SPACE = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"[a-z]+")


def with_metadata(header: bytes, metadata: dict[str, str]) -> bytes:
    """Returns a valid header with other metadata: of the same length if there is room, else longer.

    All other bytes stay the same. White space around the old metadata and at the end is used as
    room. A header that must grow does so by whole blocks, so that the data keeps its alignment to
    blocks. The added room follows the metadata, so that the next change touches few bytes.
    """
    begin, end, is_last = _span(header)
    new = _encoded(_member(metadata)) if metadata else b""
    if new and not is_last:
        new += b","
    before, after = header[:begin], header[end:]
    if not new and is_last:
        before = _without_comma(before)
    room = len(header) - len(before) - len(after)
    if len(new) <= room:
        return before + new.ljust(room) + after
    after = after.rstrip(b" ")
    least = len(before) + len(new) + len(after)
    if least <= len(header):
        return (before + new + after).ljust(len(header))
    length = _grown(len(header), least)
    return before + new.ljust(length - len(before) - len(after)) + after


def padded(header: bytes, old_nbytes: int) -> bytes:
    """Returns a header as long as the one that it replaces, or longer as in with_metadata()."""
    header = header.rstrip(b" ")
    fits = len(header) <= old_nbytes
    return header.ljust(old_nbytes if fits else _grown(old_nbytes, len(header)))


def _grown(nbytes: int, least: int) -> int:
    """Returns the length of a header of `nbytes` bytes that grows to at least `least` bytes."""
    length = nbytes + -(-(least - nbytes) // _BLOCK_NBYTES) * _BLOCK_NBYTES
    length += -length % LENGTH_NBYTES
    if length > MAX_NBYTES:
        raise CliError(f"the header would have {length:,} bytes; the limit is {MAX_NBYTES:,}")
    return length


def _span(header: bytes) -> tuple[int, int, bool]:
    """Finds the metadata member of a header that the core has checked.

    Returns its begin and end, including the comma and white space after it, and whether it is the
    last member. Without metadata, returns the white space after the opening brace.
    """
    text = header.decode("latin-1")  # so that character positions are byte positions
    first = at = _skip_space(text, 1)
    may_have = "metadata" in text or "\\" in text
    while may_have and text[at] == '"':
        begin = at
        at = _after_string(text, at)
        key = text[begin + 1 : at - 1]
        if "\\" in key:
            key = _json.loads(text[begin:at], "the header")
        at = _skip_space(text, _skip_space(text, at) + 1)
        at = _skip_space(text, _after_value(text, at))
        is_last = text[at] != ","
        if not is_last:
            at = _skip_space(text, at + 1)
        if key == _METADATA:
            return begin, at, is_last
        if is_last:
            break
    return 1, first, text[first] == "}"


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None, "the core has checked the header"
    return match.end()


def _after_string(text: str, begin: int) -> int:
    """Returns the end of a string. No regular expression, which takes memory for each escape."""
    end = begin + 1
    while True:
        part = text[end : text.index('"', end)]
        end += len(part) + 1
        if (len(part) - len(part.rstrip("\\"))) % 2 == 0:  # else the quote is escaped
            return end


def _after_value(text: str, at: int) -> int:
    """Returns the end of an object or null. It is not parsed, because it may be of any size."""
    if text[at] != "{":
        return _after(_WORD, text, at)
    depth = 0
    for bracket in _json.brackets(text, at):
        depth += 1 if bracket[0] in "[{" else -1
        if depth == 0:
            return bracket.end()
    raise AssertionError("the core has checked the header")


def _skip_space(text: str, at: int) -> int:
    return _after(_SPACE, text, at)


def _without_comma(before: bytes) -> bytes:
    return before.rstrip(b" \t\n\r").removesuffix(b",")


def _member(metadata: dict[str, str]) -> str:
    pairs = ",".join(f"{_quoted(key)}:{_quoted(metadata[key])}" for key in sorted(metadata))
    return f'"{_METADATA}":{{{pairs}}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CliError("a name or metadata text is not valid UTF-8") from None
