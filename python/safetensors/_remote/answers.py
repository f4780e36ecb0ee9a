"""Checks the answers of web servers."""

from __future__ import annotations

import dataclasses
import http.client
import re
from typing import NoReturn

from . import errors
from .retry import RETRIED, Again, asked_wait, error_of

_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
# Such a tag is sent back as If-Match, so nothing but plain characters.
_STRONG = re.compile(r'"[!#-~]{1,1000}"')
_EMPTY = re.compile(r"bytes \*/([0-9]{1,19})")


@dataclasses.dataclass(frozen=True)
class Version:
    """What identifies one version of an object."""

    size: int
    """-1 if the server does not say."""
    etag: str | None
    """The ETag as the server wrote it, which need not be one of RFC 9110."""
    modified: str | None
    """Last-Modified as the server wrote it, which need not be a date."""

    @property
    def is_strong(self) -> bool:
        """Whether the ETag can be sent as If-Match, and suffices to tell versions apart."""
        return self.etag is not None and _STRONG.fullmatch(self.etag) is not None

    def describe(self) -> str:
        """Returns it for an error."""
        if self.etag is not None and self.is_strong:
            return self.etag
        tag = "" if self.etag is None else f"{ascii(self.etag)[1:-1]}, "
        return f"{tag}{self.size} bytes" + (f" of {self.modified}" if self.modified else "")

    def require(self, now: Version, name: str) -> None:
        """Raises if `now`, an answer's version, is not this one."""
        is_same_time = self.is_strong or self.modified == now.modified
        if self.size == now.size and self.etag == now.etag and is_same_time:
            return
        was, by_now = self.describe(), now.describe()
        if was == by_now:
            was, by_now = f"{was} with {self.size} bytes", f"{by_now} with {now.size} bytes"
        raise errors.changed(name, was, by_now)


UNKNOWN = Version(-1, None, None)
"""Before the first answer."""


class Answer:
    """The header of an answer, checked against the request for a range.

    `end`: one past the body's last byte within the object. `is_whole`: the server ignored the range
    and sends the object from its first byte. `version`: which version it is.
    """

    def __init__(self, response: http.client.HTTPResponse, name: str, begin: int, end: int) -> None:
        """Checks an answer.

        Args:
            response: the answer.
            name: the object, for errors.
            begin: the first byte that was asked for.
            end: one past the last byte that was asked for.

        Raises:
            SafetensorError: the answer is not one to the request.
        """
        headers = response.headers
        coding = headers.get("Content-Encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise errors.failed(name, f"the server sent it with the encoding {coding[:40]!r}")
        etag = headers.get("ETag", "").strip()
        self.is_whole = response.status == 200
        if self.is_whole:
            size = self.end = _length(response)
        else:
            size, self.end = _range(response, name, begin, end)
        modified = headers.get("Last-Modified")
        self.version = Version(size, etag or None, modified)


def refuse_status(
    response: http.client.HTTPResponse, name: str, credentials: str, hint: str
) -> NoReturn:
    """Raises the error for a status other than 200, 206 and 412.

    Args:
        response: the answer.
        name: the object.
        credentials: what was sent, for people: "anonymous", "HF_TOKEN".
        hint: what may help if the server denies access.
    """
    status = response.status
    what = f"the server answered {status} {http.client.responses.get(status, '')}".rstrip()
    if status in RETRIED:
        asked, limit = asked_wait(status, response.headers)
        raise Again(error_of(status), name, f"{what} ({limit})" if limit else what, asked)
    if status in (404, 410):
        raise errors.missing(name, what)
    if status in (401, 403):
        raise errors.denied(name, f"{what}; credentials: {credentials}{hint}")
    raise errors.failed(name, what)


def size_of_empty(response: http.client.HTTPResponse) -> bool:
    """Returns whether a 416 says that the object has no bytes, so that no range of it exists."""
    found = _EMPTY.fullmatch(response.headers.get("Content-Range", "").strip())
    return found is not None and int(found[1]) == 0


def _length(response: http.client.HTTPResponse) -> int:
    """Returns how long the body is; -1 if the header does not say."""
    return -1 if response.chunked or response.length is None else response.length


def _range(response: http.client.HTTPResponse, name: str, begin: int, end: int) -> tuple[int, int]:
    text = response.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise errors.failed(name, f"the server sent part of it with the range {text[:80]!r}")
    first, last, size = int(found[1]), int(found[2]), int(found[3])
    if first != begin or last != min(end, size) - 1 or last < first:
        raise errors.failed(
            name, f"the server sent {text[:80]!r}, asked for bytes {begin} to {end - 1}"
        )
    if response.length is not None and response.length != last + 1 - first:
        raise errors.failed(name, f"the server sent {response.length} bytes as {text[:80]!r}")
    return size, last + 1
