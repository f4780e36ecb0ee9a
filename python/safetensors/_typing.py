"""Types of arguments that several modules take."""

import os
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any  # Python has a name for it from 3.12 on

__all__ = ["Buffer", "Path", "Paths", "Progress"]

Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
Paths = Union[Path, Sequence[Path]]
Progress = Callable[[int, int], object]
"""Called with what is done and what there is to do, in bytes."""
