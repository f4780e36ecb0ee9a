"""Argument types that several modules share."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._checking.sums import Sums
    from ._range_reader import RangeReader

    class SumsSource(Protocol):
        """Checks a file of sums before it returns them."""

        algorithm: str
        """The one whose digests are compared."""

        def _read_sums(self, path: str) -> Sums: ...

    class FileOfLoad(Protocol):
        """What of a `ShardFile` says whether sums are complete. See there."""

        @property
        def path(self) -> str: ...
        @property
        def names(self) -> list[str] | None: ...
        @property
        def index_path(self) -> str: ...
        @property
        def folder(self) -> str: ...
        @property
        def reader(self) -> object | None: ...
        @property
        def absent_from(self) -> str: ...

else:
    Buffer = Any  # collections.abc.Buffer exists from Python 3.12 on
    RangeReader = Any  # would be imported for nothing
    Sums = Any
    SumsSource = Any  # making a Protocol takes as long as importing a module

__all__ = [
    "Buffer",
    "Digests",
    "FileOfLoad",
    "Path",
    "Paths",
    "Progress",
    "Source",
    "Sources",
    "SumsOption",
    "Verify",
]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = Path | Sequence[Path]
Source = Path | RangeReader
"""A path; the URL of a file, a str such as "s3://bucket/key"; or a RangeReader."""
Sources = Source | Sequence[Source]
SumsOption = bool | str | Sequence[str] | None
"""Which sums to write: none; true for XXH3-128; "xxh3-128", "sha256" or a list of these."""
Progress = Callable[[int, int], object]
"""Called as `progress(done, total)` with byte counts."""
ProgressOption = bool | Progress | None
"""What to show: nothing, a bar if true, or what a function makes of the byte counts."""


Verify: TypeAlias = bool | Path | Mapping[str, str] | Sums | SumsSource | None
"""What files are compared with: see docs/verify.md."""

Digests = tuple[
    int | None,
    str | None,
    Mapping[str, tuple[str | None, bytes | None]],
    bool,
    str | None,
]
"""The digests of a file, for the compiled module: its size, the digest of its header, the digest
and the blocks of each tensor, whether other tensors are not compared, and the digest of the whole
file. The last one excludes the others."""
