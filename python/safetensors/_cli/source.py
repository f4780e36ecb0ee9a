"""The interface of what `convert` reads."""

from typing import NamedTuple, Protocol, Sequence

from .._writer import SafeWriter


class Entry(NamedTuple):
    """A tensor of a source."""

    name: str
    dtype: str
    shape: Sequence[int]
    nbytes: int


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

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        """Writes tensors to a file."""
        ...

    def close(self) -> None: ...
