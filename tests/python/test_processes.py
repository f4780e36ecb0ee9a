"""Handles, tensors and loaders over exec, over fork, and at the interpreter's end."""

import os
import subprocess
import sys

import numpy as np
import pytest

from safetensors import safe_open
from support import children, file_builder

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def path(tmp_path):
    """A file of two tensors."""
    tensors = {"a": np.arange(4096, dtype="f4").reshape(1024, 4), "b": np.arange(1000)}
    return str(file_builder.write(tmp_path / "two.safetensors", tensors))


@linux
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_no_descriptor_is_inherited_over_exec(path, tmp_path, backend):
    control = tmp_path / "control"
    control.touch()
    script = """
        import os
        for number in os.listdir("/proc/self/fd"):
            try:
                print(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                pass
    """
    number = os.open(control, os.O_RDONLY)
    try:
        os.set_inheritable(number, True)
        with safe_open(path, "np", backend=backend):
            seen = subprocess.run(
                children.command(script),
                close_fds=False,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split("\n")
    finally:
        os.close(number)
    assert os.path.realpath(control) in seen
    assert os.path.realpath(path) not in seen


@pytest.mark.slow
@linux
def test_forked_child_reads_tensors_and_handles(path, tmp_path):
    big = tmp_path / "big.safetensors"
    file_builder.write_sparse(big, {"big": (1 << 12, 1 << 12)})
    script = """
        import os, signal, sys, traceback
        import numpy, torch
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file

        path, big, out = sys.argv[1:]
        kinds = [(f, b) for f in ("pt", "np") for b in ("mmap", "pread")]
        files = {kind: safe_open(path, kind[0], backend=kind[1]) for kind in kinds}
        held = {kind: file.get_tensor("a") for kind, file in files.items()}
        parts = {kind: file.get_slice("a") for kind, file in files.items()}
        # Any worker threads now exist here and will not exist in the child.
        assert not load_file(big, backend="pread")["big"].any()

        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                for kind in kinds:
                    assert float(held[kind][3, 1]) == 13
                    assert float(files[kind].get_tensor("a")[1023, 3]) == 4095
                    assert float(parts[kind][8:9][0, 0]) == 32
                    held[kind][3, 1] = -1
                assert not load_file(big, backend="pread")["big"].any()
                save_file({"x": numpy.arange(9)}, out)
                assert load_file(out)["x"].tolist() == list(range(9))
                for file in files.values():
                    file.close()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        assert status == 0, status
        for kind in kinds:
            assert float(held[kind][3, 1]) == 13
            assert float(files[kind].get_tensor("a")[1023, 3]) == 4095
        print("done")
    """
    assert children.run(script, path, big, tmp_path / "out").strip() == "done"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_interpreter_exits_quietly_with_everything_alive(path, module):
    script = """
        import importlib, sys
        from safetensors import safe_open

        module = importlib.import_module("safetensors." + sys.argv[1])
        framework = {"torch": "pt", "numpy": "np"}[sys.argv[1]]
        files = [safe_open(sys.argv[2], framework, backend=b) for b in ("mmap", "pread")]
        tensors = [file.get_tensor("a") for file in files]
        parts = [file.get_slice("a") for file in files]
        rows = [part[1:3] for part in parts]
        loaded = module.load_file(sys.argv[2])
        entered = safe_open(sys.argv[2], framework).__enter__()
        cycle = [entered.get_tensor("b"), entered]
        cycle.append(cycle)
        sys.keep = (files, tensors, parts, rows, loaded)
    """
    done = children.run_raw(script, module, path)
    assert done.returncode == 0
    assert done.stderr == ""


SUBINTERPRETER = r"""
    try: import _interpreters as interpreters
    except ImportError: import _xxsubinterpreters as interpreters
    code = f"import sys; sys.path = {sys.path}\n" + (
        "try: import safetensors\nexcept ImportError as error: print(error, flush=True)\n"
        "else: print('imported', flush=True)"
    )
    for each in sys.argv[1].split(","):
        if each == "main":
            import safetensors
        else:
            interpreters.run_string(interpreters.create(), code)
"""


@pytest.mark.parametrize("order", ["sub", "sub,sub,main", "main,sub"])
def test_importing_in_a_subinterpreter(order):
    """It does not wait for ever."""
    printed = children.run(SUBINTERPRETER, order).splitlines()
    assert len(printed) == order.count("sub")
    if sys.version_info < (3, 12):
        assert set(printed) == {"safetensors does not support subinterpreters"}


def test_interpreter_exits_while_daemon_threads_read_and_save(tmp_path):
    script = """
        import os, sys, threading, time
        import numpy as np
        from safetensors.numpy import load, load_file, save, save_file

        folder = sys.argv[1]
        arrays = {"a": np.zeros(30 << 20, "u1")}
        path = os.path.join(folder, "read")
        save_file(arrays, path)
        data = save(arrays)
        begun = threading.Semaphore(0)

        def repeat(call):
            call()
            begun.release()
            while True:
                call()

        calls = [
            lambda: load_file(path, backend="pread"),
            lambda: load(data),
            lambda: save(arrays),
            lambda: save_file(arrays, os.path.join(folder, "saved")),
        ]
        for call in calls:
            threading.Thread(target=repeat, args=(call,), daemon=True).start()
        for call in calls:
            begun.acquire()
    """
    for _ in range(5):
        done = children.run_raw(script, tmp_path)
        assert done.returncode == 0
        assert done.stderr == ""


EXIT = """
import sys, threading
import torch
from safetensors import safe_open
path, way = sys.argv[1:]
f = safe_open(path, "pt")
loader = f.prefetch(budget_bytes=1)
name, tensor = next(iter(loader))
if way == "daemon":
    def wait():
        for pair in loader:
            threading.Event().wait(0.001)
    threading.Thread(target=wait, daemon=True).start()
print("leaving")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["open", "daemon"])
def test_interpreter_exits_before_a_loader_ends(path, way):
    assert children.run(EXIT, path, way).strip() == "leaving"
