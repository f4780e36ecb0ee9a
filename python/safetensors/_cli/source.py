"""The interface of what `convert` reads."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from .._saving.writer import SafeWriter


class SourceTensor(NamedTuple):
    """A tensor of a source."""

    name: str
    dtype: str
    shape: Sequence[int]
    nbytes: int


class Copies:
    """What is said of sources whose tensors are written as they are."""

    paths: list[str]
    entries: list[SourceTensor]
    left_out: Mapping[str, Sequence[str]] = {}
    decoded: Mapping[str, int] = {}
    names: Mapping[str, int] = {}

    @property
    def count(self) -> int:
        return len(self.entries)


class Source(Protocol):
    """Tensors by name, which are read when they are written."""

    @property
    def entries(self) -> list[SourceTensor]:
        """All tensors, in an order that keeps related ones together."""
        ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def notes(self) -> list[str]:
        """Lines that tell the user about surprising effects of the conversion."""
        ...

    @property
    def paths(self) -> list[str]:
        """The files that are read."""
        ...

    @property
    def count(self) -> int:
        """How many tensors the files have."""
        ...

    @property
    def decoded(self) -> Mapping[str, int]:
        """How many tensors are decoded, by their type in the files."""
        ...

    @property
    def names(self) -> Mapping[str, int]:
        """How many tensors get which names: "hf", "canonical" or "own". Empty: all their own."""
        ...

    @property
    def left_out(self) -> Mapping[str, Sequence[str]]:
        """What the result lacks, by the reason."""
        ...

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        """Writes tensors to a file."""
        ...

    def refuse_changed(self) -> None:
        """Raises SafetensorError if a file was written to since it was opened: what was written may
        be a mixture of both. Called after each write(), before the file appears."""
        ...

    def close(self) -> None: ...
