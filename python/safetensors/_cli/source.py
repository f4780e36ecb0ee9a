"""The interface of what `convert` reads."""

from typing import Protocol

from .atomic_file import AtomicFile
from .header_text import Entry
from .output import Advance


class Source(Protocol):
    """Tensors by name, which are read when they are written."""

    @property
    def entries(self) -> list[Entry]:
        """All tensors, in an order that keeps related ones together."""
        ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def notes(self) -> list[str]:
        """Lines that tell the user about surprising effects of the conversion."""
        ...

    def write(self, name: str, target: AtomicFile, advance: Advance) -> None:
        """Appends the bytes of a tensor to a file."""
        ...

    def close(self) -> None: ...
