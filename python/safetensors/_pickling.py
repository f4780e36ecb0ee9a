"""What pickles of this package's objects refer to, and objects that have none."""

from typing import Any, ClassVar, NoReturn

from . import _core

__all__ = ["NotPickled"]


def tensor_meta(dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> _core.TensorMeta:
    """Returns the TensorMeta that was pickled."""
    return _core._make_meta(dtype, shape, data_offsets)


class NotPickled:
    """The base of classes without pickles and copies: both raise TypeError."""

    __slots__ = ()
    _why_not_pickled: ClassVar[str]
    """The reason, and what to do instead."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        raise TypeError(f"cannot pickle or copy '{kind}' object: {self._why_not_pickled}")
