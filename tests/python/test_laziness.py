"""Nothing is read before it is requested."""

import os
import pathlib
import re
import resource
import sys
import time

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import safe_open
from support import file_builder
from support.page_cache import PAGE, resident

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks the Linux page cache"
)
MB = 1 << 20
COUNT, ROWS = 24, 1 << 14


def readahead():
    """Returns how far around a touched page the kernel may read, in bytes.

    This is twice the largest `read_ahead_kb`, and at least 16 MB: some storage reads 8 MB around a
    page although its setting says less.
    """
    found = [
        int(path.read_text()) for path in pathlib.Path("/sys/class/bdi").glob("*/read_ahead_kb")
    ]
    return max([8192, *found]) << 11


# Pages nearer than this to what was asked for say nothing.
AHEAD = readahead()

every_kind = pytest.mark.parametrize(
    ("framework", "backend"),
    [(framework, backend) for framework in ("pt", "np") for backend in ("mmap", "pread")],
)
both_frameworks = pytest.mark.parametrize("framework", ["pt", "np"])


def resident_after(path, begin):
    """Returns how many bytes of the file beyond `begin` are in the page cache."""
    return int(resident(path)[-(-begin // PAGE) :].sum()) * PAGE


@pytest.fixture
def path(tmp_path):
    """The path for a large sparse file."""
    yield tmp_path / "sparse.safetensors"
    (tmp_path / "sparse.safetensors").unlink(missing_ok=True)


@pytest.fixture
def cold(path):
    """A file of 24 tensors of 64 MB with no page in the page cache; two rows are not zero."""
    begin = file_builder.write_sparse(path, {f"t{i:02}": (ROWS, 1024) for i in range(COUNT)})
    with open(path, "r+b") as file:
        for index, row, value in ((20, 3, 23), (23, 8000, 1043)):
            file.seek(begin + 4096 * (ROWS * index + row))
            file.write(np.full(1024, value, "f4").tobytes())
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path).any():
        pytest.skip("this file system keeps its files in memory")
    if AHEAD > 32 * MB:
        pytest.skip("this kernel reads too far ahead to tell")
    return os.fspath(path)


@every_kind
def test_open_reads_the_header_only(cold, framework, backend):
    with safe_open(cold, framework, backend=backend) as file:
        assert len(file.keys()) == len(file.offset_keys()) == COUNT
        assert file.metadata() is None
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            assert part.get_shape() == [ROWS, 1024]
            assert part.get_dtype() == "F32"
        assert resident_after(cold, AHEAD) == 0
        assert file.get_slice("t20")[3:4][0, 0] == 23
        assert resident_after(cold, AHEAD) > 0


@both_frameworks
def test_get_tensor_by_mmap_reads_nothing(cold, framework):
    with safe_open(cold, framework) as file:
        tensors = [file.get_tensor(name) for name in file.offset_keys()]
        everything = file.get_tensors()
        assert len(everything) == COUNT
        assert resident_after(cold, AHEAD) == 0
        assert float(tensors[20][3, 0]) == 23
        assert 0 < resident_after(cold, AHEAD) <= AHEAD


@pytest.mark.parametrize("module", [for_torch, for_numpy], ids=["torch", "numpy"])
def test_load_file_reads_nothing(cold, module):
    loaded = module.load_file(cold)
    assert resident_after(cold, AHEAD) == 0
    assert float(loaded["t20"][3, 0]) == 23
    assert 0 < resident_after(cold, AHEAD) <= AHEAD


def soon(is_so):
    """Whether the condition becomes true within a few seconds."""
    end = time.monotonic() + 10
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def use(tensors, count):
    """Reads this many tensors of 64 MB."""
    assert float(sum(tensors[f"t{i:02}"].sum() for i in range(count))) == 0


@pytest.mark.parametrize("module", [for_torch, for_numpy], ids=["torch", "numpy"])
def test_load_file_reads_ahead_of_use(cold, module):
    """It begins once an eighth of the file is used, and reads at most 64 MB ahead."""
    loaded = module.load_file(cold)
    use(loaded, 2)
    time.sleep(0.2)
    assert resident_after(cold, 128 * MB + AHEAD) == 0
    use(loaded, 4)
    assert soon(lambda: resident_after(cold, 256 * MB + AHEAD) > 32 * MB)
    time.sleep(0.2)
    assert resident_after(cold, 0) <= (256 + 64) * MB + AHEAD


def test_single_tensors_are_not_read_ahead(cold):
    """This holds for an open file, and for load_files with names."""
    few = for_torch.load_files(cold, keys=["t00"])
    with safe_open(cold, "pt") as file:
        everything = file.get_tensors()
    use(few, 1)
    use(everything, 4)
    time.sleep(0.2)
    assert resident_after(cold, 256 * MB + AHEAD) == 0


def test_load_files_reads_ahead_of_use(cold):
    """load_files of a whole file reads ahead as load_file does."""
    loaded = for_torch.load_files(cold)
    use(loaded, 4)
    assert soon(lambda: resident_after(cold, 256 * MB + AHEAD) > 32 * MB)


def test_load_model_of_other_dtype_reads_only_what_it_keeps(cold):
    model = torch.nn.Module()
    model.register_parameter("t20", torch.nn.Parameter(torch.zeros(ROWS, 1024).half()))
    _missing, unexpected = for_torch.load_model(model, cold, strict=False)
    assert len(unexpected) == COUNT - 1
    assert float(model.t20.detach()[3, 0]) == 23
    assert 64 * MB <= resident_after(cold, AHEAD) <= 64 * MB + 2 * AHEAD


def test_a_mapping_holds_no_data_page(cold):
    loaded = for_torch.load_file(cold)
    with open("/proc/self/smaps") as smaps:
        areas = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", smaps.read())
    ours = [area for area in areas if os.path.realpath(cold) in area]
    assert ours
    held = sum(int(re.search(r"Rss:\s+(\d+) kB", area)[1]) << 10 for area in ours)
    # One fault may map the 64 KB around it.
    assert held <= 128 << 10
    assert len(loaded) == COUNT


@every_kind
def test_rows_read_their_own_bytes(cold, framework, backend):
    with safe_open(cold, framework, backend=backend) as file:
        rows = file.get_slice("t23")[7999:8001]
        assert float(rows[0, 0]) == 0
        assert float(rows[1, 1023]) == 1043
        assert file.get_slice("t22")[9000:9000, :].shape[0] == 0
    read = resident_after(cold, AHEAD)
    near = resident_after(cold, 4096 * (ROWS * 23 + 8000) - AHEAD)
    assert 0 < read == near
    assert near <= (2 * AHEAD if backend == "mmap" else 256 << 10)


@every_kind
def test_a_file_of_64_gb_opens_and_gives_a_row(path, framework, backend):
    shapes = {"a": (1 << 20, 1 << 12), "b": (3, 1 << 20, 1 << 12), "c": (5,)}
    try:
        data = file_builder.write_sparse(path, shapes)
    except OSError as error:
        pytest.skip(f"no sparse file of 64 GB here: {error}")
    plane = 4 << 32
    with open(path, "r+b") as file:
        file.seek(data + plane + 2 * plane + 4 * (((1 << 20) - 3) * (1 << 12) + 7))
        file.write(np.array([1.5, 2.5], "f4").tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF)
    with safe_open(path, framework, backend=backend) as file:
        part = file.get_slice("b")
        assert part.get_shape() == [3, 1 << 20, 1 << 12]
        row = part[2, -3:-2, 6:10]
        assert np.asarray(row).tolist() == [[0.0, 1.5, 2.5, 0.0]]
        assert float(part[2, (1 << 20) - 3, 8]) == 2.5
        assert file.get_slice("a")[7].shape[0] == 1 << 12
        assert file.get_tensor("c").shape[0] == 5
        if backend == "mmap":
            assert float(file.get_tensor("b")[2, -3, 7]) == 1.5
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults = after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt
    assert faults < 2000


@both_frameworks
def test_get_tensor_causes_no_page_faults(path, framework):
    file_builder.write_sparse(path, {f"t{i}": (16, 1024) for i in range(1024)})

    def faults():
        use = resource.getrusage(resource.RUSAGE_SELF)
        return use.ru_minflt + use.ru_majflt

    def load():
        with safe_open(path, framework) as file:
            return [file.get_tensor(name) for name in file.offset_keys()]

    kept = load()
    before = faults()
    again = load()
    handed_out = faults() - before
    assert len(kept) == len(again) == 1024
    before = faults()
    assert sum(float(tensor[0, 0]) for tensor in again) == 0
    touched = faults() - before
    # They lie 64 KB apart: a touch is a fault for each, or for a few where pages are larger.
    assert touched > 256
    assert handed_out < touched / 2
