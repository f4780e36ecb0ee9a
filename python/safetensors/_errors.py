"""Errors that are one of ours and one of Python's at once, by their names."""

import builtins
from typing import Callable, Optional, Type


def class_named(
    name: str, prefix: str, make: Callable[[Type[Exception]], Type[Exception]]
) -> Optional[Type[Exception]]:
    """The class ``SafetensorIndexError`` for that name and the prefix ``Safetensor``, or None.

    pickle looks classes up so, when an error goes from one process to another.
    """
    base = getattr(builtins, name.removeprefix(prefix), None)
    if isinstance(base, type) and issubclass(base, (IndexError, KeyError, OSError, ValueError)):
        return make(base)
    return None


def __getattr__(name: str) -> Type[OSError]:
    """``_errors.FileNotFoundError``: Python's class, with ``filename`` and with official's text."""
    base = getattr(builtins, name, None)
    if isinstance(base, type) and issubclass(base, OSError):
        from . import _core

        return _core._os_error_class(base)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
