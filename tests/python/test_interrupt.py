"""Ctrl-C stops a long save or read soon and leaves nothing behind.

A save that is interrupted before it renames the new file leaves the old one. An interrupt that
comes later finds the new file in place, whole, and still raises KeyboardInterrupt. So a test may
expect the old file or the new one, but not which, unless it knows when the signal came.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from support import children, file_builder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

# The first rounds tell how long the call takes when nobody disturbs it. A call that only looks
# at signals when it is done would take as long when interrupted. `after` checks what the call left
# and returns whether the interrupt came in time to stop it.
TIMED = """
import os, signal, sys, time
import numpy as np
def timed(call):
    begin = time.perf_counter()
    try:
        call()
    except KeyboardInterrupt:
        return True, time.perf_counter() - begin
    return False, time.perf_counter() - begin
def check(call, after):
    call()
    full = min(timed(call)[1] for _ in range(3))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    rounds = []
    for _ in range(5):
        signal.setitimer(signal.ITIMER_REAL, 0.1 * full)
        interrupted, taken = timed(call)
        signal.setitimer(signal.ITIMER_REAL, 0)
        stopped = after(interrupted)
        rounds.append((interrupted, taken, stopped))
        if stopped and taken < 0.5 * full:
            print("stopped")
            return
    raise SystemExit(f"never stopped early: {full} {rounds}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_a_long_save_is_stopped(tmp_path, module):
    script = (
        TIMED
        + """
import importlib, itertools
framework = importlib.import_module(sys.argv[2])
module = importlib.import_module("safetensors." + sys.argv[2])
folder = sys.argv[1]
path = os.path.join(folder, "one")
tensors = {f"t{i}": framework.zeros(100 << 20, dtype=framework.uint8) for i in range(6)}
turns = itertools.count()
def save():
    module.save_file(tensors, path, {"turn": str(next(turns))})
def after(interrupted):
    from safetensors import safe_open
    assert os.listdir(folder) == ["one"], os.listdir(folder)
    with safe_open(path, "np") as file:
        kept = int(file.metadata()["turn"])
        assert file.keys() == [f"t{i}" for i in range(6)]
    last = next(turns) - 1
    # The old file is the one that the call before this one, or this function, wrote.
    assert kept in (last - 1, last) if interrupted else kept == last, (kept, last, interrupted)
    module.save_file(tensors, path, {"turn": str(next(turns))})
    return kept == last - 1
check(save, after)
"""
    )
    try:
        assert children.run(script, tmp_path, module).strip() == "stopped"
    finally:
        (tmp_path / "one").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["load_file", "get_tensor", "slice"])
def test_a_long_read_is_stopped(tmp_path, way):
    # Long enough that the pieces between two looks at signals are short beside it.
    file_builder.write_sparse(tmp_path / "big", {"t0": (1 << 14, 1 << 14)})
    script = (
        TIMED
        + """
import gc
from safetensors import safe_open
from safetensors.numpy import load_file
path, way = sys.argv[1:]
file = safe_open(path, "np", backend="pread")
calls = {
    "load_file": lambda: load_file(path, backend="pread"),
    "get_tensor": lambda: file.get_tensor("t0"),
    "slice": lambda: file.get_slice("t0")[1:],
}
def after(interrupted):
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert held < 500 << 20, held
    assert file.get_slice("t0")[0, 0] == 0
    return interrupted
check(calls[way], after)
"""
    )
    assert children.run(script, tmp_path / "big", way).strip() == "stopped"


def interrupted_by_parent(script, *args, wait):
    """Starts the script, interrupts it once wait() holds; returns (output, seconds to its end)."""
    child = subprocess.Popen(
        children.command(script, *args), cwd="/", stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n"
        wait(child)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        return out, time.monotonic() - begin
    finally:
        child.kill()
        child.wait()


SAVE_TO_PIPE = """
    import sys
    import numpy as np
    from safetensors.numpy import save_file
    tensors = {"a": np.zeros(10 << 20, "u1")}
    print("ready", flush=True)
    try:
        save_file(tensors, sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("reader", ["that does not read", "that does not come"])
def test_a_save_that_waits_for_a_reader_is_stopped(tmp_path, reader):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if "read" in reader else None

    def wait(child):
        # Until the child sleeps in the kernel, in open or write.
        asleep = 0
        while asleep < 20:
            with open(f"/proc/{child.pid}/stat") as stat:
                state = stat.read().rsplit(")", 1)[1].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            time.sleep(0.01)

    try:
        out, seconds = interrupted_by_parent(SAVE_TO_PIPE, pipe, wait=wait)
    finally:
        if held is not None:
            os.close(held)
    assert out == "interrupted\n"
    assert seconds < 20
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("kind", ["handled", "ignored"])
def test_other_signals_do_not_disturb(tmp_path, kind):
    script = """
        import os, signal, sys
        import numpy as np
        from safetensors.numpy import load_file, save, save_file
        path, kind = sys.argv[1:]
        count = 0
        def handler(*_):
            global count
            count += 1
        signal.signal(signal.SIGALRM, handler if kind == "handled" else signal.SIG_IGN)
        tensors = {"a": np.arange(5 << 20)}
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(5):
            save_file(tensors, path)
            for backend in ("mmap", "pread"):
                assert (load_file(path, backend=backend)["a"] == tensors["a"]).all()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert (count > 0) == (kind == "handled")
        assert len(os.listdir(os.path.dirname(path))) == 1
        print("undisturbed")
    """
    assert children.run(script, tmp_path / "one", kind).strip() == "undisturbed"


def test_an_exception_of_a_handler_propagates(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    script = """
        import os, signal, sys
        import numpy as np
        from safetensors.numpy import save_file
        class Alarm(Exception):
            pass
        def handler(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, handler)
        reader = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            save_file({"a": np.zeros(1 << 20)}, sys.argv[1])
        except Alarm:
            print("alarm")
    """
    assert children.run(script, tmp_path / "pipe", timeout=30).strip() == "alarm"
