"""The errors of remote files. All are SafetensorErrors; most are a built-in error, too."""

from __future__ import annotations

from .._core import SafetensorError
from .._errors import Code, failure
from .._redact import redact


def missing(name: str, what: str) -> SafetensorError:
    """Returns the error for an object that does not exist: a FileNotFoundError."""
    return _made("io", name, _text(name, what), FileNotFoundError)


def denied(name: str, what: str) -> SafetensorError:
    """Returns the error for access that the server, or a setting, denies: a PermissionError."""
    return _made("io", name, _text(name, what), PermissionError)


def timed_out(name: str, what: str) -> SafetensorError:
    """Returns the error for a server that is too slow: a TimeoutError."""
    return _made("io", name, _text(name, what), TimeoutError)


def unreachable(name: str, what: str) -> SafetensorError:
    """Returns the error for a connection that fails: a ConnectionError."""
    return _made("io", name, _text(name, what), ConnectionError)


def failed(name: str, what: str) -> SafetensorError:
    """Returns the error for an answer that cannot be used."""
    return _made("io", name, _text(name, what))


def refused(name: str, what: str) -> SafetensorError:
    """Returns the error for a URL or an option that is not accepted."""
    return _made("invalid_argument", name, _text(name, what))


def changed(name: str, was: str, now: str) -> SafetensorError:
    """Returns the error for an object that is not the one that was opened.

    Args:
        name: the object.
        was: its ETag when it was opened; unless that is strong, its size and time, too.
        now: those of the last answer.
    """
    text = (
        f"{redact(name)} changed while it was being read (it was {redact(was)}, by now "
        f"{redact(now)}): load it again"
    )
    return _made("file_changed", name, text)


def _text(name: str, what: str) -> str:
    return f"{redact(name)}: {redact(what)}" if name else redact(what)


def _made(code: Code, name: str, text: str, also: type[Exception] | None = None) -> SafetensorError:
    return failure(code, text, path=redact(name) if name else None, also=also)
