"""Looks up error classes that derive from SafetensorError and from a built-in error."""

import builtins
from typing import Callable, Optional, Type


def class_named(
    name: str, prefix: str, make: Callable[[Type[Exception]], Type[Exception]]
) -> Optional[Type[Exception]]:
    """Returns the class with this name, such as SafetensorIndexError; None if there is none.

    pickle looks classes up by name when an error is sent to another process.

    Args:
        name: the prefix and the name of a built-in error.
        prefix: "Safetensor" or "Weights".
        make: returns the class that derives from the given built-in error.
    """
    base = getattr(builtins, name.removeprefix(prefix), None)
    kinds = (IndexError, KeyError, OSError, RuntimeError, TypeError, ValueError)
    if isinstance(base, type) and issubclass(base, kinds):
        return make(base)
    return None


def __getattr__(name: str) -> Type[OSError]:
    """Returns a subclass of a built-in OSError that has `filename` and upstream's text."""
    base = getattr(builtins, name, None)
    if isinstance(base, type) and issubclass(base, OSError):
        from . import _core

        return _core._os_error_class(base)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
