"""RangeReaders and threads: many readers, exit, fork and Ctrl-C."""

import gc
import os
import textwrap
import threading
import weakref

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from support import children
from support.range_readers import MemoryReader
from support.threads import together

pytestmark = pytest.mark.slow

BIG = {f"t{i}": np.full(5 << 20, i, "u1") for i in range(16)}

# What the scripts of children begin with.
PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from support.range_readers import MemoryReader, StalledReader
DATA = save({f"t{i}": np.full(12 << 20, i, "u1") for i in range(6)})
"""

posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks as POSIX has them")


def check(tensors):
    assert set(tensors) == set(BIG)
    for i in range(len(BIG)):
        assert (np.asarray(tensors[f"t{i}"]) == i).all()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_load_reads_from_several_threads(framework):
    if framework == "pt":
        pytest.importorskip("torch")
    reader = MemoryReader(save(BIG))
    with safe_open(reader, framework) as file:
        check(file.get_tensors())
    assert len(reader.threads) > 1
    assert reader.nbytes == len(save(BIG)) - (512 << 10)


def test_each_thread_of_a_load_keeps_its_local_values():
    """Readers keep a connection for each thread."""

    class Local(MemoryReader):
        def __init__(self, data):
            super().__init__(data)
            self.local = threading.local()
            self.made = 0

        def read(self, offset, nbytes):
            if not hasattr(self.local, "connection"):
                self.local.connection = object()
                with self._lock:
                    self.made += 1
            return super().read(offset, nbytes)

    reader = Local(save(BIG))
    reader.concurrency, reader.chunk_bytes = 4, 1 << 20
    with safe_open(reader, "np") as file:
        check(file.get_tensors())
    assert 1 < reader.made <= 4 < len(reader.reads)


def test_concurrency_is_the_readers():
    class Counting(MemoryReader):
        concurrency = 3
        at_once = most = 0
        changed = threading.Condition()

        def read(self, offset, nbytes):
            with self.changed:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.most == 3, timeout=10)
            try:
                return super().read(offset, nbytes)
            finally:
                with self.changed:
                    self.at_once -= 1

    reader = Counting(save(BIG))
    with safe_open(reader, "np") as file:
        check(file.get_tensors())
    assert reader.most == 3


def test_prefetch():
    pytest.importorskip("torch")
    reader = MemoryReader(save(BIG))
    with safe_open(reader, "pt") as file, file.prefetch() as loader:
        check(dict(loader))
    del loader
    assert reader.closes == 1


def test_many_threads_share_a_handle():
    with safe_open(MemoryReader(save(BIG)), "np") as file:

        def work(first):
            for i in range(first, first + 20):
                assert (file.get_tensor(f"t{i % 16}") == i % 16).all()

        together(work, range(8))


def test_the_first_error_of_several_threads_is_raised():
    errors = [ValueError(str(i)) for i in range(100)]
    remaining = iter(errors)

    class Failing(MemoryReader):
        def read(self, offset, nbytes):
            raise next(remaining)

    file = safe_open(Failing(save(BIG)), "np")
    with pytest.raises(SafetensorError, match="ValueError") as caught:
        file.get_tensors()
    assert caught.value.__cause__ in errors


def test_errors_that_are_dropped_are_freed():
    made = weakref.WeakSet()

    class Dropped(Exception):
        def __init__(self):
            made.add(self)

    class Failing(MemoryReader):
        def read(self, offset, nbytes):
            raise Dropped

    def cause():
        with pytest.raises(SafetensorError) as caught:
            safe_open(Failing(save(BIG)), "np").get_tensors()
        return type(caught.value.__cause__)

    assert cause() is Dropped
    gc.collect()
    assert not made


# Exit -----------------------------------------------------------------------

EXITS = {
    "a load in the background": """
        file = safe_open(reader, "pt")
        loader = file.prefetch()
        """,
    "a load of a daemon thread": """
        file = safe_open(reader, "np")
        threading.Thread(target=file.get_tensors, daemon=True).start()
        """,
    "an open file": """
        file = safe_open(reader, "np")
        reader.wait_for_reads = lambda: None
        """,
    "a read of a daemon thread": """
        file = safe_open(reader, "np")
        threading.Thread(target=file.get_tensor, args=("t1",), daemon=True).start()
        """,
}


@pytest.mark.parametrize("way", EXITS)
def test_exit_with_reads_under_way(way):
    if "background" in way:
        pytest.importorskip("torch")
    script = PRELUDE + "reader = StalledReader(DATA)\n" + textwrap.dedent(EXITS[way])
    script += "reader.wait_for_reads()\nprint('ends')\n"
    done = children.run_raw(script, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_exit_waits_for_reads_that_cannot_be_cancelled():
    pytest.importorskip("torch")
    script = (
        PRELUDE
        + """
class Slow(MemoryReader):
    begun = threading.Event()
    def read(self, offset, nbytes):
        self.begun.set()
        time.sleep(0.5)
        return super().read(offset, nbytes)
reader = Slow(DATA)
reader.concurrency = 2
loader = safe_open(reader, "pt").prefetch()
reader.begun.wait()
print("ends")
"""
    )
    done = children.run_raw(script, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_reads_at_exit_fail():
    script = (
        PRELUDE
        + """
import atexit
def late():
    try:
        file.get_tensor("t1")
    except SafetensorError as error:
        print(error)
atexit.register(late)  # runs after what the open below registers
file = safe_open(MemoryReader(DATA), "np")
"""
    )
    out = children.run(script)
    assert "the interpreter is exiting" in out


# Fork -----------------------------------------------------------------------


@posix
def test_a_forked_child_refuses_and_opens_anew():
    script = (
        PRELUDE
        + """
from support.range_readers import MemoryReader
reader = MemoryReader(DATA)
file = safe_open(reader, "np")
part = file.get_slice("t3")
child = os.fork()
if child == 0:
    signal.alarm(20)
    for use in (lambda: file.get_tensor("t1"), lambda: part[3], lambda: file.get_tensors()):
        try:
            use()
            os._exit(1)
        except SafetensorError as error:
            if "open it again in this process" not in str(error): os._exit(2)
    if reader.reads: os._exit(3)
    file.close()
    del part
    if reader.closes: os._exit(4)  # its connections are the parent's, too
    with safe_open(MemoryReader(DATA), "np") as own:
        if not (own.get_tensors()["t5"] == 5).all(): os._exit(5)
    sys.exit(0)  # with all that Python does at exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (file.get_tensor("t1") == 1).all()
print("fine")
"""
    )
    assert children.run(script, timeout=60) == "fine\n"


@posix
def test_a_child_forked_during_a_load_exits():
    pytest.importorskip("torch")
    script = (
        PRELUDE
        + """
reader = StalledReader(DATA)
loader = safe_open(reader, "pt").prefetch()
reader.wait_for_reads(2)
child = os.fork()
if child == 0:
    signal.alarm(20)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert reader.cancels == 0
print("fine")
"""
    )
    assert children.run(script, timeout=60) == "fine\n"


# Ctrl-C ---------------------------------------------------------------------

INTERRUPTED = {
    "get_tensors": "safe_open(reader, 'np').get_tensors()",
    "get_tensor": "safe_open(reader, 'np').get_tensor('t1')",
    "slice": "safe_open(reader, 'np').get_slice('t1')[1:]",
    "load_file": "safetensors.torch.load_file(reader)",
    "load_groups": "_core._load_groups([('cpu', [(safe_open(reader, 'pt'), 't1', None, None)])])",
    "prefetched load": "with safe_open(reader, 'pt').prefetch() as loader: list(loader)",
}


@posix
@pytest.mark.parametrize("way", INTERRUPTED)
def test_ctrl_c_cancels_the_reads(way):
    if "load" in way:
        pytest.importorskip("torch")
    script = (
        PRELUDE
        + """
from safetensors import _core
IMPORT
reader = StalledReader(DATA)
def interrupt():
    reader.wait_for_reads()
    time.sleep(0.2)  # until the main thread waits: a signal just before that does not wake it
    os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt)
thread.start()
begin = time.monotonic()
try:
    CALL
except KeyboardInterrupt:
    assert time.monotonic() - begin < 10
    assert reader.cancels and not reader.under_way
    print("interrupted")
"""
    )
    # Not by eval(), after which Python ends as if the interrupt had not been caught.
    script = script.replace("CALL", INTERRUPTED[way])
    script = script.replace("IMPORT", "import safetensors.torch" if "load" in way else "")
    assert children.run(script, timeout=60) == "interrupted\n"
