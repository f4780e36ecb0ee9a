"""System calls of the package, seen by strace: files only, and none inherited."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from support import children, file_builder

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks at Linux's system calls"
)

SCRIPT = """
    import os, sys

    folder, module = sys.argv[1:]
    own = os.path.join(folder, "read")
    if module == "torch":
        import torch
        from safetensors.torch import load, load_file, save, save_file
        tensors, framework = {"x": torch.arange(1 << 20)}, "pt"
    else:
        import numpy
        from safetensors.numpy import load, load_file, save, save_file
        tensors, framework = {"x": numpy.arange(1 << 20)}, "np"
    from safetensors import safe_open

    for backend in ("mmap", "pread"):
        with safe_open(own, framework, backend=backend) as file:
            file.get_tensor("a"), file.get_slice("a")[1:3], file.get_tensors()
        load_file(own, backend=backend)
    load(save(tensors))
    target = os.path.join(folder, "written")
    for fsync in (False, True):
        save_file(tensors, target, fsync=fsync)  # new, then over a file
    try:
        load_file(os.path.join(folder, "bad"))
    except Exception:
        print("done")
    if os.environ.get("CALL_OUT"):
        import ctypes, socket
        socket.socket().close()
        os.system("true")
        ctypes.CDLL(None).open(own.encode(), os.O_RDONLY)
"""


@pytest.fixture
def traced(tmp_path):
    """Runs the script under strace and returns the lines of its log."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace to see system calls with")
    log = tmp_path / "log"
    calls = "trace=network,process,open,openat,openat2,creat"
    prefix = [strace, "-f", "--seccomp-bpf", "-o", log, "-e", calls]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("tracing is not allowed here")
    folder = tmp_path / "folder"
    folder.mkdir()
    whole = file_builder.to_bytes({"a": np.arange(1 << 20, dtype="f4")})
    (folder / "read").write_bytes(whole)
    (folder / "bad").write_bytes(whole[:-1])

    def trace(module):
        printed = children.run(SCRIPT, folder, module, prefix=prefix, timeout=300)
        assert printed.strip() == "done"
        return folder, log.read_text().splitlines()

    return trace


def opened(folder, lines):
    """Returns the calls that opened files in the folder, by a path or by a descriptor of it."""
    there = re.compile(rf'"{re.escape(str(folder))}[/"]|openat\([0-9]+, "')
    calls = [line for line in lines if there.search(line)]
    return [call for call in calls if re.search(r"\b(open|openat|openat2|creat)\(", call)]


NETWORK = re.compile(r"\b(socket|connect|bind|listen|accept4?|send(to|msg|mmsg))\(")
PROGRAM = re.compile(r"\bexecve(at)?\(")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_no_network_no_program_no_inherited_file(traced, module):
    if module == "torch":
        pytest.importorskip("torch")
    folder, lines = traced(module)
    assert [line for line in lines if NETWORK.search(line)] == []
    assert len([line for line in lines if PROGRAM.search(line)]) == 1  # the interpreter itself
    calls = opened(folder, lines)
    assert len(calls) >= 8
    assert [call for call in calls if "O_CLOEXEC" not in call] == []


def test_strace_shows_network_programs_and_inherited_files(traced, monkeypatch):
    monkeypatch.setenv("CALL_OUT", "1")
    folder, lines = traced("numpy")
    assert [line for line in lines if NETWORK.search(line)] != []
    assert len([line for line in lines if PROGRAM.search(line)]) > 1
    assert [call for call in opened(folder, lines) if "O_CLOEXEC" not in call] != []
