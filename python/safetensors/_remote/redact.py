"""Removes secrets from text that people see."""

from __future__ import annotations

import re

_MOST = 500
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)([^/?#\s]*)@")
_QUERY = re.compile(r"\?[^\s#]*")
_FRAGMENT = re.compile(r"(://[^\s#]*)#[^\s]*")
_VALUE = re.compile(r"([?&;])([^=&;?]*=)?[^&;?]*")
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s,;]+", re.IGNORECASE)
# The container of an Azure URL stands where others have a user.
_AZURE = ("abfs://", "abfss://")


def redact(text: str) -> str:
    """Returns the first line of a text without secrets.

    Of each URL in it, the user, the fragment and the values of the query are removed.
    """
    line = next(iter(text.splitlines()), "")
    line = _USER.sub(_without_user, line)
    line = _FRAGMENT.sub(r"\1", line)
    line = _QUERY.sub(lambda query: _VALUE.sub(r"\1\2...", query[0]), line)
    line = _SCHEME.sub(r"\1 ...", line)
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _MOST else line[:_MOST] + "..."


def _without_user(found: re.Match[str]) -> str:
    scheme, user = found[1], found[2]
    keep = scheme.lower() in _AZURE and ":" not in user and "@" not in user
    return found[0] if keep else scheme
