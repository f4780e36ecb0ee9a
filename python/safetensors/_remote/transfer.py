"""The bytes of one read of a web server."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

from . import errors


class Transfer:
    """The bytes of one read: which are wanted, and those that have come."""

    def __init__(
        self, begin: int, nbytes: int, most: int = 0, into: memoryview | None = None
    ) -> None:
        """Takes which bytes are wanted.

        Args:
            begin: the first one.
            nbytes: how many; 0: all.
            most: how many are taken if the server does not say how many there are.
            into: where they go, `nbytes` long; new memory if None.
        """
        self.begin = begin
        self.nbytes = nbytes
        self.most = most
        self.wants_all = nbytes == 0
        self.got = 0
        self.data: bytearray | memoryview = bytearray() if into is None else into
        self.skip = 0
        """How many bytes of the body come before those that are missing."""
        self.size = 0
        """Of the object, if the body goes on to its end."""
        self.is_whole = False
        """Whether the server sent the object instead of the range."""
        self.is_unsized = False
        """Whether it did not say how long the object is."""
        self.headers = http.client.HTTPMessage()
        """Of the last answer."""

    @property
    def is_followed(self) -> bool:
        """Whether all bytes have come, and the body goes on."""
        end = self.begin + len(self.data)
        return self.got == len(self.data) > 0 and end < self.size

    @contextmanager
    def missing(self) -> Iterator[memoryview]:
        """Gives the memory of the bytes that have not come, until the block ends."""
        with memoryview(self.data) as all_bytes, all_bytes[self.got :] as missing:
            yield missing

    def expect(self, nbytes: int) -> None:
        """Makes room: the object may be shorter than the range."""
        if not self.data:
            self.nbytes = nbytes
            self.data = bytearray(nbytes)

    def append(self, more: memoryview) -> None:
        """Adds bytes to those of an object whose size is not known."""
        assert isinstance(self.data, bytearray)
        self.data += more
        self.got = len(self.data)

    def start_again(self) -> None:
        """Forgets what a try got that failed."""
        self.got, self.data, self.is_unsized = 0, bytearray(), False

    def take_range(self, end: int) -> None:
        """Makes room for a body that is the range which is missing, up to `end`."""
        self._take_body(self.begin + self.got)
        self.expect(end - self.begin)

    def go_on(self, at: int, size: int) -> None:
        """Makes room for what is wanted of a body whose next byte is the object's byte `at`."""
        self._take_body(at, size)
        self.expect(self.nbytes)

    def take_whole(self, size: int, is_first: bool, name: str) -> None:
        """Makes room for what is wanted of an object that is sent as a whole.

        Args:
            size: of the object; negative if the server does not say.
            is_first: whether it is not known that the server sends ranges.
            name: the object, for errors.
        """
        self._take_body(0, size)
        if self.is_unsized:
            return
        if self.wants_all and size > self.most:
            raise errors.failed(name, f"has {size} bytes; at most {self.most} are read")
        if self.wants_all:
            self.nbytes = size
        elif not is_first and (self.begin != 0 or size > self.nbytes):
            text = (
                "the server sent a range of it before, and now all of it instead of a range: load "
                "it again, or download the file"
            )
            raise errors.failed(name, text)
        self.expect(min(self.nbytes, size - self.begin))

    def _take_body(self, at: int, size: int | None = None) -> None:
        """Forgets the last answer's body: the next bytes are another one's.

        Args:
            at: where in the object they begin.
            size: of the object, if the body goes on to its end.
        """
        self.skip = self.begin + self.got - at
        self.is_whole, self.size = size is not None, size or 0
        self.is_unsized = self.size < 0
