"""What a file to be converted gives."""

from typing import Protocol

from .atomic_file import AtomicFile
from .header_text import Entry
from .output import Advance


class Source(Protocol):
    """Tensors by name, each written when its turn comes."""

    @property
    def entries(self) -> list[Entry]:
        """All tensors, in an order that keeps neighbours together."""
        ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def notes(self) -> list[str]:
        """What a user should know of the conversion."""
        ...

    def write(self, name: str, target: AtomicFile, advance: Advance) -> None:
        """Appends a tensor's bytes to a file."""
        ...

    def close(self) -> None: ...
