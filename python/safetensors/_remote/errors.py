"""The errors of remote files. All are SafetensorErrors; most are a built-in error, too."""

from __future__ import annotations

import errno
from typing import Optional, Type

from .._core import SafetensorError, _error_class
from .redact import redact


def missing(name: str, what: str) -> SafetensorError:
    """Returns the error for an object that does not exist: a FileNotFoundError."""
    return _error(FileNotFoundError, errno.ENOENT, name, what)


def denied(name: str, what: str) -> SafetensorError:
    """Returns the error for access that the server, or a setting, denies: a PermissionError."""
    return _error(PermissionError, errno.EACCES, name, what)


def timed_out(name: str, what: str) -> SafetensorError:
    """Returns the error for a server that is too slow: a TimeoutError."""
    return _error(TimeoutError, errno.ETIMEDOUT, name, what)


def unreachable(name: str, what: str) -> SafetensorError:
    """Returns the error for a connection that fails: a ConnectionError."""
    return _error(ConnectionError, None, name, what)


def failed(name: str, what: str) -> SafetensorError:
    """Returns the error for an answer that cannot be used."""
    return _with_fields(SafetensorError(_text(name, what)), name, "io")


def refused(name: str, what: str) -> SafetensorError:
    """Returns the error for a URL or an option that is not accepted."""
    return _with_fields(SafetensorError(_text(name, what)), name, "invalid_argument")


def changed(name: str, was: str, now: str) -> SafetensorError:
    """Returns the error for an object that is not the one that was opened.

    Args:
        name: the object.
        was: its ETag when it was opened; without one, its size and time.
        now: the same, as the last answer has it.
    """
    text = (
        f"{redact(name)} changed while it was being read (it was {redact(was)}, by now "
        f"{redact(now)}): load it again"
    )
    return _with_fields(SafetensorError(text), name, "file_changed")


def _error(base: Type[OSError], number: Optional[int], name: str, what: str) -> SafetensorError:
    error = _error_class(base)(_text(name, what))
    if number is not None:
        error.errno = number  # type: ignore[attr-defined]
    error.filename = redact(name)  # type: ignore[attr-defined]
    return _with_fields(error, name, "io")


def _text(name: str, what: str) -> str:
    return f"{redact(name)}: {redact(what)}" if name else redact(what)


def _with_fields(error: SafetensorError, name: str, code: str) -> SafetensorError:
    error.code = code
    error.path = redact(name) if name else None
    return error
