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
    if isinstance(base, type) and issubclass(base, (IndexError, OSError, ValueError)):
        return make(base)
    return None
