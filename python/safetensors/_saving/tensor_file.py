"""File objects that take the bytes of one tensor, for SafeWriter.open."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType

from .._typing import Buffer

_BUFFER_NBYTES = 1 << 20


class TensorFile(io.BufferedWriter):
    """Passes bytes on in large pieces."""

    def __init__(self, put: Callable[[int, Buffer], None]) -> None:
        """Takes a function that writes bytes at an offset of the tensor."""
        super().__init__(_TensorBytes(put), _BUFFER_NBYTES)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # the error in flight says more
                raise


class _TensorBytes(io.RawIOBase):
    """The bytes of one tensor."""

    def __init__(self, put: Callable[[int, Buffer], None]) -> None:
        self._put = put
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        nbytes = memoryview(data).nbytes
        self._put(self._position, data)
        self._position += nbytes
        return nbytes
