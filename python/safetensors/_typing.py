"""Argument types that several modules share."""

import os
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._range_reader import RangeReader
else:
    Buffer = Any  # collections.abc.Buffer exists from Python 3.12 on
    RangeReader = Any  # would be imported for nothing

__all__ = ["Buffer", "Path", "Paths", "Progress", "Source", "Sources", "SumsOption"]

Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
Paths = Union[Path, Sequence[Path]]
Source = Union[Path, RangeReader]
"""A path; the URL of a file, a str such as "s3://bucket/key"; or a RangeReader."""
Sources = Union[Source, Sequence[Source]]
SumsOption = Union[bool, str, Sequence[str], None]
"""Which sums to write: none; true for XXH3-128; "xxh3-128", "sha256" or a list of these."""
Progress = Callable[[int, int], object]
"""Called as `progress(done, total)` with byte counts."""
