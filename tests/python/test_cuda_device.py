"""Tests that need a real CUDA device. They skip without one; others are in test_cuda_load.py and
test_prefetch.py."""

import gc
import os
import signal
import threading
import time

import pytest
import torch

from safetensors import SafetensorError, _core, safe_open
from safetensors.torch import load_file, load_files, load_into, save_file
from support import children
from support.threads import together

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(scope="module")
def tensors():
    """Large, small, odd-sized and empty tensors."""
    made = {f"w{i}": torch.randn(1024, 1000 + i) for i in range(40)}
    made |= {f"s{i}": torch.randn(i + 1).bfloat16() for i in range(500)}
    made |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.0), "byte": torch.ones(1).char()}
    return made


@pytest.fixture(scope="module")
def path(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "model.safetensors"
    save_file(tensors, path)
    return path


def same(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].is_cuda
        assert torch.equal(found[name].cpu(), tensor), name


def test_the_engine_is_there():
    assert _core._has_cuda_driver()


@pytest.mark.parametrize("backend", ["mmap", "pread", "auto", "direct"])
def test_all_tensors(path, tensors, backend):
    before = torch.cuda.current_device()
    same(load_file(path, device="cuda", backend=backend), tensors)
    assert torch.cuda.current_device() == before


def test_slices(path, tensors):
    with safe_open(path, "pt", device="cuda:0") as f:
        part = f.get_slice("w3")
        for index in (slice(5, 900), (slice(None), slice(7, 500)), (slice(None, None, 2), 3), -1):
            assert torch.equal(part[index].cpu(), tensors["w3"][index])
        lists = part[[1, 2, 5]]
        assert lists.is_cuda
        assert torch.equal(lists.cpu(), tensors["w3"][[1, 2, 5]])


def test_torch_owns_the_memory(path, tensors):
    """torch's allocator owns all of it, and each tensor frees its part."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    found = load_file(path, device="cuda")
    rounded = sum(-(-t.nbytes // 512) * 512 for t in tensors.values())
    assert torch.cuda.memory_allocated() - before == rounded
    one = found.pop("w0")
    del found
    gc.collect()
    assert torch.cuda.memory_allocated() - before == -(-one.nbytes // 512) * 512
    assert one.untyped_storage().nbytes() == one.nbytes


def test_memory_that_is_still_in_use(path, tensors):
    """Work that is queued on a block that torch reuses ends before the load writes to it."""
    with safe_open(path, "pt", device="cuda") as f:
        for _ in range(20):
            old = torch.empty_like(tensors["w5"], device="cuda")
            torch.cuda._sleep(50_000_000)
            old.fill_(7)
            del old
            found = f.get_tensor("w5")
            torch.cuda.synchronize()
            assert torch.equal(found.cpu(), tensors["w5"])


def test_other_streams(path, tensors):
    """A tensor made on one stream is ready on all."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        found = load_file(path, device="cuda")
    same(found, tensors)


def test_refused_while_captured(path):
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(SafetensorError, match="captured"):
            load_file(path, device="cuda")
        static += 1
    graph.replay()
    torch.cuda.synchronize()


def test_capture_on_another_thread_goes_on(path, tensors):
    """A load does not invalidate the other thread's capture."""
    with safe_open(path, "pt") as f:
        loader = f.prefetch(device="cuda")
        graph = torch.cuda.CUDAGraph()
        static = torch.zeros(4, device="cuda")
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            static += 1
        graph.replay()
        same(dict(loader), tensors)
    torch.cuda.synchronize()
    assert static.tolist() == [1] * 4


def test_out_of_memory(path, tmp_path):
    """The error is torch's, and the next load works."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(free - (64 << 20), 0), dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(torch.OutOfMemoryError):
            load_file(path, device="cuda")
    finally:
        del held
        torch.cuda.empty_cache()
    assert load_file(path, device="cuda")


def test_no_such_device(path):
    with pytest.raises((RuntimeError, SafetensorError)):
        load_file(path, device="cuda:63")
    assert load_file(path, device="cuda")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_interrupted(tmp_path):
    """After Ctrl-C no copy is in flight, and the device works."""
    path = tmp_path / "long.safetensors"
    save_file({f"t{i}": torch.zeros(1 << 26) for i in range(8)}, path)
    begin = time.monotonic()
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        load_file(path, device="cuda")
        time.sleep(0.2)  # it was faster
    except KeyboardInterrupt:
        assert time.monotonic() - begin < 5
    torch.cuda.synchronize()
    assert len(load_file(path, device="cuda")) == 8


def test_prefetch(path, tensors):
    for budget in (None, 1, 64 << 20):
        with safe_open(path, "pt", device="cuda") as f, f.prefetch(budget_bytes=budget) as loader:
            found = {"w7": loader.take("w7")}
            found.update(loader)
            same(found, tensors)


def test_prefetched_tensors_dropped_on_another_stream(tmp_path):
    """Their memory is reused only after that stream's work on them."""
    path = tmp_path / "model.safetensors"
    wanted = {name: torch.randn(1 << 20) for name in ("a", "b")}
    save_file(wanted, path)
    side = torch.cuda.Stream()
    for _ in range(20):
        with safe_open(path, "pt", device="cuda") as f, f.prefetch(budget_bytes=1) as loader:
            with torch.cuda.stream(side):
                tensor = loader.take("a")  # made on the other stream
                torch.cuda._sleep(50_000_000)
                tensor.fill_(7)
                del tensor
            found = loader.take("b")
            torch.cuda.synchronize()
            assert torch.equal(found.cpu(), wanted["b"])


def test_many_files_and_devices(path, tensors, tmp_path):
    half = sorted(tensors)[: len(tensors) // 2]
    save_file({name: tensors[name] for name in half}, tmp_path / "a.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if name not in half},
        tmp_path / "b.safetensors",
    )
    last = f"cuda:{torch.cuda.device_count() - 1}"
    found = load_files(tmp_path, device={"w*": "cuda:0", "*": last})
    same(found, tensors)
    assert str(found["s3"].device) == last
    for tensor in found.values():
        tensor.zero_()
    load_into(found, tmp_path)
    same(found, tensors)


def test_many_threads(path, tensors):
    together(lambda _: same(load_file(path, device="cuda"), tensors), range(8))


FORKED = """
import os, sys
import torch
from safetensors.torch import load_file
load_file(sys.argv[1], device="cuda")
child = os.fork()
if child == 0:
    try:
        load_file(sys.argv[1], device="cuda")
        os._exit(1)
    except Exception:
        pass
    os._exit(0 if load_file(sys.argv[1]) else 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
load_file(sys.argv[1], device="cuda")
"""


def test_forked(path):
    children.run(FORKED, path)
