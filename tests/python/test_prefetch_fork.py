"""Prefetch and os.fork: forked processes and their parent's loaders."""

import os

import pytest

from support import children

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

FORKED_WHILE_A_TENSOR_IS_MADE = """
import os, signal, sys, threading, time
from support import fake_cuda
fake = fake_cuda.FakeCuda(fake_cuda.library())
fake.install()
from safetensors import SafetensorError, safe_open
from safetensors._torch import transfer
loader = safe_open(sys.argv[1], "pt").prefetch(device="cuda", budget_bytes=1)
making, forked = threading.Event(), threading.Event()
real = transfer.empty
def empty(*args, **options):
    making.set()
    forked.wait()  # torch lets go of the GIL like this while the driver allocates
    return real(*args, **options)
transfer.empty = empty
thread = threading.Thread(target=loader.take, args=("b",))
thread.start()
making.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends a child that hangs
    for use in (lambda: loader.take("a"), lambda: next(iter(loader))):
        try:
            use()
            os._exit(1)
        except SafetensorError as error:
            if "forked" not in str(error): os._exit(2)
    loader.close()
    with safe_open(sys.argv[1], "pt").prefetch() as own:
        if sorted(dict(own)) != ["a", "b"]: os._exit(3)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
forked.set()
thread.join()
assert code == 0, code
loader.close()
"""


def model_at(tmp_path):
    """Writes a file of the tensors `a` and `b`."""
    import torch

    from safetensors import _core
    from safetensors.torch import save_file

    if "asan" in _core.__version__:
        pytest.skip("the sanitizer's allocator may be locked for ever in a forked process")
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1000), "b": torch.ones(1000)}, path)
    return path


def test_forked_while_a_tensor_is_made(cuda, tmp_path):
    """A forked process does not wait for threads that only the parent has."""
    path = model_at(tmp_path)
    children.run(FORKED_WHILE_A_TENSOR_IS_MADE, path)


FORKED_WHILE_LOADERS_START = """
import os, signal, sys, threading
from safetensors import safe_open
def load():
    with safe_open(sys.argv[1], "pt").prefetch() as loader:
        return sorted(dict(loader)) == ["a", "b"]
load()  # imports what it needs: a forked process does inherit Python's import locks
done = threading.Event()
def keep_loading():
    while not done.is_set(): load()
threads = [threading.Thread(target=keep_loading) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        os._exit(0 if load() else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads: thread.join()
assert codes == [0] * 20, codes
"""


@pytest.mark.slow
def test_forked_while_loaders_start(tmp_path):
    """A forked process inherits no locked mutex of the parent's threads, so it can load."""
    children.run(FORKED_WHILE_LOADERS_START, model_at(tmp_path))
