"""Argument types that several modules share."""

import os
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any  # collections.abc.Buffer exists from Python 3.12 on

__all__ = ["Buffer", "Path", "Paths", "Progress"]

Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
Paths = Union[Path, Sequence[Path]]
Progress = Callable[[int, int], object]
"""Called as `progress(done, total)` with byte counts."""
