"""save_file_async on a full disk, and in processes that fork, end, or are interrupted."""

import os
import sys

import pytest

from safetensors.numpy import load_file
from support import children, mounts

pytestmark = pytest.mark.slow


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


FULL = """
import errno, os
import numpy as np
from safetensors.numpy import load_file, save_file, save_file_async
path = os.path.join(sys.argv[1], "file")
save_file({"a": np.ones(1 << 20, "u1")}, path)
try:
    # More than the budget, so that the call itself waits for the disk.
    future = save_file_async({"a": np.zeros(96 << 20, "u1")}, path, budget_bytes=32 << 20)
    future.result(60)
except OSError as error:
    print(errno.errorcode[error.errno])
print(load_file(path)["a"].all(), os.listdir(sys.argv[1]))
"""


@linux
def test_a_full_disk_is_reported_and_ends_the_call(tmp_path):
    prefix = mounts.prefix('mount -t tmpfs -o size=40m none "$0"', tmp_path)
    out = children.run(FULL, tmp_path, prefix=prefix)
    assert out == "ENOSPC\nTrue ['file']\n"


FORK = """
import os
import numpy as np
import safetensors
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file_async
folder = sys.argv[1]
pipe = os.path.join(folder, "pipe")
os.mkfifo(pipe)
held = save_file_async({"a": np.zeros(2)}, pipe)
queued = [save_file_async({"a": np.full(1 << 24, i, "u1")}, f"{folder}/{i}") for i in range(3)]
child = os.fork()
if child == 0:
    status = 1
    try:
        for future in (held, queued[0], queued[-1]):
            for call in (future.result, future.exception, future.cancel):
                try:
                    call()
                except SafetensorError as error:
                    assert str(os.getppid()) in str(error)
                else:
                    raise AssertionError(call)
        save_file_async({"b": np.arange(3)}, f"{folder}/child").result(60)
        assert list(load_file(f"{folder}/child")["b"]) == [0, 1, 2]
        del held, queued, future, call
        safetensors.release_staging()
        print("child", flush=True)
        status = 0
    finally:
        if len(sys.argv) == 2:
            os._exit(status)
    sys.exit(status)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert not held.done()
with open(pipe, "rb") as file:
    file.read()
for i, future in enumerate(queued):
    future.result(60)
    assert (load_file(f"{folder}/{i}")["a"] == i).all()
print(sorted(os.listdir(folder)))
"""


@linux
@pytest.mark.parametrize("way", [[], ["exit"]], ids=["_exit", "exit"])
def test_a_forked_process_has_saves_of_its_own(tmp_path, way):
    out = children.run(FORK, tmp_path, *way)
    assert out == "child\n['0', '1', '2', 'child', 'pipe']\n"


EXIT = """
import numpy as np
from safetensors.numpy import save_file_async
for i in range(6):
    save_file_async({"a": np.full(20 << 20, i, "u1")}, f"{sys.argv[1]}/{i}", fsync=True)
"""


def test_the_exit_waits_for_all_saves(tmp_path):
    children.run(EXIT, tmp_path)
    assert sorted(os.listdir(tmp_path)) == [str(i) for i in range(6)]
    for i in range(6):
        assert (load_file(tmp_path / str(i))["a"] == i).all()


REPORTED = """
import numpy as np
from safetensors.numpy import save_file_async
save_file_async({"a": np.zeros(20 << 20, "u1")}, f"{sys.argv[1]}/none/file")
"""


def test_an_error_is_reported_at_exit(tmp_path):
    done = children.run_raw(REPORTED, tmp_path)
    assert done.returncode == 0
    assert "No such file" in done.stderr


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from safetensors.numpy import save_file, save_file_async
folder = sys.argv[1]
for name in ("old", "queued"):
    save_file({"a": np.ones(4)}, f"{folder}/{name}")
big = np.zeros(128 << 20, "u1")
for name in ("old", "other", "queued"):
    save_file_async({"a": big}, f"{folder}/{name}", fsync=True, budget_bytes=1 << 32)
threading.Thread(
    target=lambda: (time.sleep(0.05), os.kill(os.getpid(), signal.SIGINT)), daemon=True
).start()
"""


@linux
def test_ctrl_c_at_exit_ends_the_saves(tmp_path):
    """What was not written is discarded, without a trace."""
    done = children.run_raw(INTERRUPTED, tmp_path)
    assert "KeyboardInterrupt" in done.stderr
    left = set(os.listdir(tmp_path))
    assert left <= {"old", "queued", "other"}, left
    assert (load_file(tmp_path / "queued")["a"] == 1).all()


WAITING = """
import os, signal, threading
import numpy as np
from safetensors import _extra
from safetensors.numpy import save_file_async
folder = sys.argv[1]
pipes = [os.path.join(folder, f"pipe{i}") for i in range(2)]
for pipe in pipes:
    os.mkfifo(pipe)
held = [save_file_async({"a": np.zeros(2)}, pipe) for pipe in pipes]
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
threading.Timer(0.6, lambda: [open(pipe, "rb").read() for pipe in pipes]).start()
try:
    save_file_async({"a": np.zeros(64 << 20, "u1")}, f"{folder}/file", budget_bytes=48 << 20)
except KeyboardInterrupt:
    print("interrupted")
for each in held:
    each.result(60)
print(_extra._staging_state()[0], sorted(os.listdir(folder)))
"""


@linux
def test_ctrl_c_ends_a_call_that_waits(tmp_path):
    assert children.run(WAITING, tmp_path) == "interrupted\n0 ['pipe0', 'pipe1']\n"
