"""The protocol of sources that are not files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Buffer


@runtime_checkable
class RangeReader(Protocol):
    """Bytes that are read by ranges: an object of a store, a member of an archive.

    `safe_open` and the functions that load files take such an object instead of a path:

        class Member:
            def __init__(self, name: str, data: bytes) -> None:
                self.name, self.data = name, data

            def open(self, nbytes: int) -> tuple[int, bytes]:
                return len(self.data), self.data[:nbytes]

            def read(self, offset: int, nbytes: int) -> bytes:
                return self.data[offset : offset + nbytes]

        with safe_open(Member("model", data), framework="np") as f:
            ...

    Several threads call `read` at once. An exception that it raises ends the load, and is the
    `__cause__` of the SafetensorError that the caller gets; SafetensorErrors are raised as they
    are. An exception whose `code` is "file_changed" says that the bytes are no longer those that
    were opened.

    An object may also have the following. Numbers are looked up after `open`.

    - `concurrency`, how many reads a load makes at once (16);
    - `chunk_bytes`, the bytes of one read of a long tensor (8 MiB);
    - `gap_bytes`, the longest gap between wanted bytes that is read and dropped (1 MiB);
    - `close()`, called when the handle and what was taken from it no longer read;
    - `cancel()`, called when Ctrl-C interrupts a load and when Python exits. It makes the reads
      under way raise soon. It may be called several times. Without it, such a load ends when its
      reads do.
    """

    name: str
    """Names the object in errors and in repr(). Without secrets, such as the query of a URL."""

    def open(self, nbytes: int) -> tuple[int, Buffer]:
        """Returns the size of the object, and its first bytes: at most `nbytes` of them.

        Called once, before all reads. The first bytes are kept, and not read again.
        """
        ...

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Returns exactly these bytes of the object that was opened, as bytes or another buffer."""
        ...


def fill(reader: Any, offset: int, view: memoryview) -> bool:
    """Fills a view with the bytes from `offset` on, if the reader can; else returns False.

    Readers of this package may have `_safetensors_fill`, which the core calls before `read`. It is
    no part of the protocol: the view is of memory that the load may free at any time after the
    call, so also what a traceback keeps must hold no view of it.
    """
    own = getattr(reader, "_safetensors_fill", None)
    return own is not None and bool(own(offset, view))
