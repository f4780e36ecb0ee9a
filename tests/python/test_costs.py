"""What calls cost, counted instead of timed: instructions, allocations, bytes, memory. The bounds
leave room for other compilers and versions; they detect a doubling."""

import os
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest

from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support import children, memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures through /proc"),
]
MB = 1 << 20
MANY = 2000
# Reading /proc/self/io is counted too.
SLACK = 4096
# Opening reads so much at once, with or without need.
FIRST_READ = 64 << 10

COUNTED = """
    import os, subprocess, sys
    import numpy as np

    path, framework = sys.argv[1:]
    if framework == "pt":
        import torch

    def tell(*words):
        subprocess.run(["callgrind_control", *words, str(os.getpid())], check=True, stdout=2)

    tell("--instr=on")
    from safetensors import safe_open
    tell("--dump=import")
    tell("--instr=off")
    file = safe_open(path, framework)
    names, get = file.keys(), file.get_tensor
    get(names[0])
    tell("--instr=on")
    for name in names:
        get(name)
    tell("--dump=get")
    safe_open(path, framework)
    tell("--dump=open")
    file.keys()
    tell("--dump=keys")
    for name in names:
        part = file.get_slice(name)
        part.get_shape()
        part.get_dtype()
    tell("--dump=slice")
    for name in names:
        part[:2]
    tell("--dump=rows")
    tell("--instr=off")
"""

# Measured for each tensor: 3,400 instructions and 2 allocations by NumPy; 5,900 by torch, most of
# them its own; 1,140 for opening; 470 for its name in keys().
INSTRUCTIONS = {"np": 6000, "pt": 11_000}
ALLOCATIONS = {"np": 4, "pt": 12}
INSTRUCTIONS_OPEN = 2500
INSTRUCTIONS_KEYS = 1000
# 3,200 for a slice that is asked for shape and type, Python's own included.
INSTRUCTIONS_SLICE = 5500
# 4,700 for rows of a slice by NumPy, which are a view of the mapped file.
INSTRUCTIONS_ROWS = 7000
# Measured for an import of safetensors, compiled with -O1: 3,300,000 with Python 3.11.7; 3.11.2
# takes 900,000 more. It registers functions and classes.
INSTRUCTIONS_IMPORT = 4_800_000


def parse_dump(path):
    """Returns the instructions and the calls of the allocator in a callgrind file."""
    names, calls, callee = {}, 0, ""
    text = path.read_text()
    for line in text.splitlines():
        if found := re.match(r"cfn=\((\d+)\)(?: (.*))?", line):
            callee = names.setdefault(found[1], found[2] or "")
        elif found := re.match(r"fn=\((\d+)\) (.*)", line):
            names.setdefault(found[1], found[2])
        elif line.startswith("calls=") and callee in ("malloc", "calloc", "realloc"):
            calls += int(line[len("calls=") :].split()[0])
    return int(re.search(r"^totals: (\d+)", text, re.MULTILINE)[1]), calls


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file of many small tensors."""
    path = tmp_path_factory.mktemp("costs") / "many.safetensors"
    save_file({f"model.layer.{i}.weight": np.full(16, i, "f4") for i in range(MANY)}, path)
    return path


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_instructions_and_allocations(many, tmp_path, framework):
    if framework == "pt":
        pytest.importorskip("torch")
        if "SAFETENSORS_COUNT_TORCH" not in os.environ:
            pytest.skip("importing torch takes minutes so: SAFETENSORS_COUNT_TORCH=1 asks for it")
    if not (shutil.which("valgrind") and shutil.which("callgrind_control")):
        pytest.skip("valgrind is not installed")
    out = tmp_path / "callgrind"
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
    done = children.run_raw(COUNTED, many, framework, prefix=tool, timeout=600)
    if "unhandled instruction" in done.stderr:
        pytest.skip("valgrind does not know this processor")
    assert done.returncode == 0, done.stderr
    imported, *others = (parse_dump(pathlib.Path(f"{out}.{part}")) for part in range(1, 7))
    per_get, per_open, per_name, per_slice, per_rows = (
        [count / MANY for count in counts] for counts in others
    )
    print(f"{framework}: get {per_get}, open {per_open} (instructions, allocations)")
    print(f"keys {per_name}, slice {per_slice}, rows {per_rows}, import {imported}")
    assert 100_000 < imported[0] < INSTRUCTIONS_IMPORT
    assert 100 < per_get[0] < INSTRUCTIONS[framework]
    assert per_get[1] < ALLOCATIONS[framework]
    assert 100 < per_open[0] < INSTRUCTIONS_OPEN
    assert 100 < per_name[0] < INSTRUCTIONS_KEYS
    assert 100 < per_slice[0] < INSTRUCTIONS_SLICE
    assert per_slice[1] < 0.5  # Python's own allocator serves them
    if framework == "np":
        assert 100 < per_rows[0] < INSTRUCTIONS_ROWS
    # The index and the names lie in a few blocks, not in one for each tensor.
    assert per_open[1] < 0.5


IMPORTED = """
    import importlib, sys
    for name in sys.argv[2:]:
        importlib.import_module(name)
    before = set(sys.modules)
    importlib.import_module(sys.argv[1])
    print(*sorted(set(sys.modules) - before))
"""


def test_an_import_brings_nothing_else():
    """Finding a module takes 0.25 ms; importing typing or enum takes several ms."""
    found = children.run(IMPORTED, "safetensors").split()
    assert found == ["safetensors", "safetensors._core", "safetensors._safetensors_rust"]
    pytest.importorskip("torch")
    names = children.run(IMPORTED, "safetensors.torch", "torch", "typing").split()
    ours = ["_core", "_safetensors_rust", "_torch", "_torch.dtypes", "_typing"]
    ours.append("torch")
    assert names == ["safetensors", *(f"safetensors.{name}" for name in ours)]


def transferred():
    """Returns the bytes that this process has read and written by system calls."""
    fields = dict(
        line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines()
    )
    return int(fields["rchar"]), int(fields["wchar"])


class Transfer:
    """Counts the bytes that a block of code reads and writes."""

    def __enter__(self):
        self.before = transferred()
        return self

    def __exit__(self, *_):
        after = transferred()
        self.read, self.written = (
            end - begin for begin, end in zip(self.before, after, strict=True)
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of 64 MB: 16 matrices."""
    path = tmp_path_factory.mktemp("costs") / "large.safetensors"
    save_file({f"t{i:02}": np.full((1024, 1024), i, "f4") for i in range(16)}, path)
    return path


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_opening_reads_the_header_once(many, backend):
    with many.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    with Transfer() as all_in_all, safe_open(many, "np", backend=backend) as file:
        file.keys()
        file.get_slice("model.layer.7.weight").get_shape()
    assert header <= all_in_all.read <= max(header + 8, FIRST_READ) + SLACK


def test_mapping_reads_nothing_by_calls(large):
    with Transfer() as all_in_all:
        arrays = load_file(large)
        assert sum(float(array[0, 0]) for array in arrays.values()) == 120
    assert all_in_all.read <= FIRST_READ + SLACK


def test_pread_reads_each_byte_once(large):
    size = large.stat().st_size
    with Transfer() as all_in_all:
        load_file(large, backend="pread")
    assert size <= all_in_all.read <= size + FIRST_READ + SLACK
    with safe_open(large, "np", backend="pread") as file:
        part = file.get_slice("t03")
        with Transfer() as rows:
            assert part[500:502].shape == (2, 1024)
        with Transfer() as one:
            file.get_tensor("t04")
    assert rows.read <= 2 * 4096 + SLACK
    assert one.read <= 4 * MB + SLACK


def test_saving_writes_each_byte_once(large, tmp_path):
    arrays = load_file(large)
    for _ in range(2):  # to a new name, then over it
        with Transfer() as all_in_all:
            save_file(arrays, tmp_path / "out")
        assert all_in_all.read <= SLACK
        size = large.stat().st_size
        assert size <= all_in_all.written <= size + SLACK


ONE_COPY = """
    import pathlib, sys
    from safetensors import deserialize
    from support import memory
    if sys.argv[2] == "torch":
        import torch
        from safetensors.torch import load, load_file, save
    else:
        from safetensors.numpy import load, load_file, save

    def peak(call, *words, **more):
        call(*words, **more)  # imports what is imported on first use
        return memory.peak_growth(call, *words, **more)

    path = sys.argv[1]
    data = pathlib.Path(path).read_bytes()
    tensors = load(data)
    for name, grown in (
        ("load", peak(load, data)),
        ("deserialize", peak(deserialize, data)),
        ("save", peak(save, tensors)),
        ("pread", peak(load_file, path, backend="pread")),
    ):
        print(name, grown / len(data))
"""


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_one_copy_of_the_data(large, module):
    if module == "torch":
        pytest.importorskip("torch")
    if not memory.can_measure_peak():
        pytest.skip("the peak cannot be measured")
    shares = dict(line.split() for line in children.run(ONE_COPY, large, module).splitlines())
    assert set(shares) == {"load", "deserialize", "save", "pread"}
    for name, share in shares.items():
        assert 0.5 < float(share) < 1.25, (name, share)


HANDLE = """
    import ctypes, gc, pathlib, sys
    from safetensors import safe_open

    class Use(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Use

    def used():
        gc.collect()
        use = libc.mallinfo2()
        return use.uordblks + use.hblkhd

    kept = [safe_open(sys.argv[1], "np")]
    before = used()
    kept += [safe_open(sys.argv[1], "np") for _ in range(20)]
    print((used() - before) / 20)
"""


def test_memory_of_a_handle(many):
    if children.run("import ctypes; print(hasattr(ctypes.CDLL(None), 'mallinfo2'))") != "True\n":
        pytest.skip("this C library does not count what is allocated")
    grown = float(children.run(HANDLE, many))
    # Upstream keeps 248.
    assert grown / MANY < 200
