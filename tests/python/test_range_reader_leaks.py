"""What RangeReaders leave behind: cycles with their handles, and ten thousand opens."""

import gc
import sys
import weakref

import numpy as np
import pytest

from safetensors import safe_open
from safetensors.numpy import save
from support import children
from support.range_readers import MemoryReader


def test_readers_are_freed_with_the_handle():
    reader = MemoryReader(save({"x": np.arange(3)}))
    gone = weakref.ref(reader)
    file = safe_open(reader, "np")
    reader.itself = reader
    del reader
    assert gone() is not None
    file.close()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_cycle_of_reader_and_handle_is_collected(is_closed):
    closed = []

    class Noting(MemoryReader):
        def close(self):
            closed.append(self.name)

    reader = Noting(save({"x": np.arange(3)}))
    gone = weakref.ref(reader)
    reader.model = [safe_open(reader, "np")]
    if is_closed:
        reader.model[0].close()
    del reader
    gc.collect()
    assert gone() is None
    assert closed == ["memory://model"]


def test_a_cycle_is_kept_while_a_slice_is():
    reader = MemoryReader(save({"t3": np.full(1 << 20, 3, "u1")}))
    reader.model = [safe_open(reader, "np")]
    part = reader.model[0].get_slice("t3")
    gone = weakref.ref(reader)
    del reader
    gc.collect()
    assert (part[5:] == 3).all()
    del part
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures through /proc")
def test_ten_thousand_opens_leave_nothing():
    script = """
import gc, os
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from support.range_readers import MemoryReader
from support import memory
small = save({"x": np.arange(8), "pad": np.zeros(600 << 7, "i8"), "y": np.arange(9)})
class Failing(MemoryReader):
    def read(self, offset, nbytes):
        raise ConnectionResetError("reset")
class Cancelled(MemoryReader):
    def cancel(self): pass
def use():
    for cls in (MemoryReader, Cancelled):
        with safe_open(cls(small), "np") as file:
            file.get_tensor("x"), file.get_slice("y")[2:]
    try:
        safe_open(Failing(small), "np").get_tensor("y")
        raise SystemExit("should have failed")
    except SafetensorError:
        pass
    try:
        safe_open(MemoryReader(small[:50]), "np")
        raise SystemExit("should have failed")
    except SafetensorError:
        pass
def rounds(count):
    for _ in range(count):
        use()
    gc.collect()
    return len(gc.get_objects()), memory.status("VmRSS"), len(os.listdir("/proc/self/fd"))
rounds(300)
before = rounds(100)
after = rounds(2500)
assert after[0] <= before[0] + 20, (before, after)
assert after[1] <= before[1] + (4 << 20), (before, after)
assert after[2] == before[2], (before, after)
print("nothing")
"""
    assert children.run(script, timeout=300) == "nothing\n"
