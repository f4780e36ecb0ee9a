"""Objects that belong to this process."""

from typing import Any, ClassVar, NoReturn

__all__ = ["NotPickled"]


class NotPickled:
    """The base of classes without pickles and copies: both raise TypeError."""

    __slots__ = ()
    _why_not_pickled: ClassVar[str]
    """The reason, and what to do instead."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(f"cannot pickle or copy '{kind}' object: {self._why_not_pickled}")
