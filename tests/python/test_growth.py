"""Ten thousand calls leave no more memory, objects or files than one."""

import os
import pathlib
import sys
import tempfile

import numpy as np
import pytest

from support import children, file_builder

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="measures through /proc"
)

SCRIPT = """
    import contextlib, ctypes, gc, os, pathlib, sys
    import numpy as np
    from safetensors import SafetensorError, deserialize, safe_open

    path, folder, module = sys.argv[1:]
    if module == "torch":
        import torch
        from safetensors.torch import load, load_file, save, save_file
        make, kind, framework = torch.arange, torch.float32, "pt"
    else:
        from safetensors.numpy import load, load_file, save, save_file
        make, kind, framework = np.arange, np.dtype("float32"), "np"

    mapped, copied = (safe_open(path, framework, backend=b) for b in ("mmap", "pread"))
    parts = [file.get_slice("a") for file in (mapped, copied)]
    bad = os.path.join(folder, "bad")
    missing = os.path.join(folder, "missing", "file")
    target = os.path.join(folder, "target")
    whole = pathlib.Path(path).read_bytes()
    pathlib.Path(bad).write_bytes(whole[:-1])
    tensors = {"x": make(10), "y": make(3)}

    def fails(call, *words):
        with contextlib.suppress(SafetensorError, OSError):
            call(*words)
            raise SystemExit("should have failed")

    def open_and_close():
        for backend in ("mmap", "pread"):
            with safe_open(path, framework, backend=backend) as file:
                file.keys(), file.metadata(), len(file), "a" in file
            safe_open(path, framework, backend=backend).get_tensor("a")

    def get():
        for file in (mapped, copied):
            file.get_tensor("a")
            file.get_slice("b").get_shape()

    def cut():
        for part in parts:
            part[1:3], part[:, 1], part[..., 0], part[0:0]

    def save_all():
        save(tensors, {"k": "v"})
        save_file(tensors, target)

    def load_all():
        load_file(path), load_file(path, backend="pread"), load(whole), deserialize(whole)

    def fail_all():
        fails(safe_open, bad, framework)
        fails(safe_open, missing, framework)
        fails(mapped.get_tensor, "none")
        fails(save_file, tensors, missing)
        fails(load, b"short")
        fails(safe_open, path, "no such framework")

    class Use(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    libc = ctypes.CDLL(None)
    mallinfo2 = getattr(libc, "mallinfo2", None)
    if mallinfo2 is not None:
        mallinfo2.restype = Use

    def measure():
        gc.collect()
        status = pathlib.Path("/proc/self/status").read_text()
        use = mallinfo2() if mallinfo2 is not None else None
        return {
            "objects": len(gc.get_objects()),
            "blocks": sys.getallocatedblocks(),
            "references": sys.getrefcount(kind),
            "types": sum(sys.getrefcount(t) for t in (safe_open, SafetensorError, np.ndarray)),
            "fds": len(os.listdir("/proc/self/fd")),
            "maps": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
            "rss": int(status.split("VmRSS:")[1].split()[0]) * 1024,
            "malloc": use.uordblks + use.hblkhd if use else 0,
        }

    # Far below 10,000 of anything: one leaked object, reference or byte a round would show.
    allowed = {"objects": 100, "blocks": 500, "references": 50, "types": 50, "fds": 0, "maps": 5,
               "rss": 16 << 20, "malloc": 300_000}

    for run in (open_and_close, get, cut, save_all, load_all, fail_all):
        for _ in range(200):
            run()
        before = measure()
        for _ in range(10_000):
            run()
        after = measure()
        grown = {name: after[name] - before[name] for name in before}
        print(run.__name__, grown, file=sys.stderr)
        assert all(grown[name] <= allowed[name] for name in grown)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder in memory if there is one, so that a slow disk does not matter."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir=memory) as path:
            yield pathlib.Path(path)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_nothing_grows(folder, module):
    if module == "torch":
        pytest.importorskip("torch")
    arrays = {"a": np.arange(32, dtype="f4").reshape(8, 4), "b": np.arange(8, dtype="f4")}
    path = str(file_builder.write(folder / "small.safetensors", arrays, {"key": "value"}))
    children.run(SCRIPT, path, folder, module, timeout=300)
