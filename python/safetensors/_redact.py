"""Removes secrets from text that people see."""

from __future__ import annotations

import re

_MAX = 500
_MAX_READ = 8192
# Texts come from anyone, so each pattern takes linear time: what one match has passed, no other
# begins within. The user's begins where the letters of a scheme do, and a fragment is that of the
# first URL between two spaces.
_USER = re.compile(r"(?<![A-Za-z0-9+.\-])([A-Za-z0-9+.\-]*://)([^/?#\s]*)@")
_CUT_HOST = re.compile(r"(://)[^/?#\s]*\Z")
_WORD = re.compile(r"\S+")
_QUERY = re.compile(r"\?[^\s#]+")
_VALUE = re.compile(r"([?&;])([^=&;?]*=)?[^&;?]*")
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s,;]+", re.IGNORECASE)
# The container of an Azure URL stands where others have a user.
_AZURE = ("abfs://", "abfss://")


def redact(text: str) -> str:
    """Returns the first line of a text without secrets.

    Of each URL in it, the user, the fragment and the values of the query are removed. What follows
    the first 8,192 characters is not read.
    """
    line = next(iter(text[:_MAX_READ].splitlines()), "")
    if len(line) == _MAX_READ < len(text):
        line = _CUT_HOST.sub(r"\1...", line)  # the user before it cannot be recognised
    line = _USER.sub(_without_user, line)
    line = _WORD.sub(_without_fragment, line)
    line = _QUERY.sub(lambda query: _VALUE.sub(r"\1\2...", query[0]), line)
    line = _SCHEME.sub(r"\1 ...", line)
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _MAX else line[:_MAX] + "..."


def _without_fragment(found: re.Match[str]) -> str:
    before, mark, url = found[0].partition("://")
    return before + mark + url.partition("#")[0]


def _without_user(found: re.Match[str]) -> str:
    scheme, user = found[1], found[2]
    keep = scheme.lower() in _AZURE and ":" not in user and "@" not in user
    return found[0] if keep else scheme
