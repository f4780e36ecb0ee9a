"""Readers of bytes in memory, for tests of what takes a RangeReader."""

import threading
import time


class MemoryReader:
    """Returns ranges of `data`, and records what was asked for."""

    def __init__(self, data, name="memory://model"):
        self.name = name
        self._data = bytes(data)
        self._lock = threading.Lock()
        self.opens = []
        self.reads = []
        self.closes = 0
        self.threads = set()

    def open(self, nbytes):
        self.opens.append(nbytes)
        return len(self._data), self._data[:nbytes]

    def read(self, offset, nbytes):
        with self._lock:
            self.reads.append((offset, nbytes))
            self.threads.add(threading.get_ident())
        return self._data[offset : offset + nbytes]

    def close(self):
        self.closes += 1

    @property
    def requests(self):
        return len(self.opens) + len(self.reads)

    @property
    def nbytes(self):
        return sum(nbytes for _, nbytes in self.reads)


class FailingReader(MemoryReader):
    """Raises `error` by each read after the first `after`."""

    def __init__(self, data, error, after=0):
        super().__init__(data)
        self._error = error
        self._after = after

    def read(self, offset, nbytes):
        answer = super().read(offset, nbytes)
        if len(self.reads) > self._after:
            raise self._error
        return answer


class StalledReader(MemoryReader):
    """Reads that wait until cancel() makes them fail, as those of a server that sends nothing."""

    def __init__(self, data):
        super().__init__(data)
        self.cancels = 0
        self.under_way = 0
        self._cancelled = threading.Event()

    def read(self, offset, nbytes):
        with self._lock:
            self.under_way += 1
        try:
            if not self._cancelled.wait(60):
                raise TimeoutError("nobody cancelled the read")
        finally:
            with self._lock:
                self.under_way -= 1
        raise ConnectionAbortedError("cancelled")

    def cancel(self):
        self.cancels += 1
        self._cancelled.set()

    def wait_for_reads(self, count=1):
        deadline = time.monotonic() + 30
        while self.under_way < count:
            assert time.monotonic() < deadline, "no read was begun"
            time.sleep(0.001)
