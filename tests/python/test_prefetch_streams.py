"""Prefetch and CUDA streams: memory in use by one stream while others load."""

import ctypes
import threading

import pytest
import torch

from safetensors import safe_open
from safetensors.torch import save_file
from support import fake_cuda
from support.fake_cuda import LAZY

TENSORS = {f"t{i}": torch.full((1000,), i, dtype=torch.int32) for i in range(4)}


@pytest.fixture
def path(tmp_path):
    """A file of tensors of one size, so that the memory of one can be reused for the next."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def take_by(how, loader):
    """Returns one tensor by take() or by iterating."""
    return loader.take("t0") if how == "take" else next(iter(loader))[1]


@pytest.mark.parametrize("how", ["take", "iterate"])
@pytest.mark.parametrize("budget", [None, 4000])
def test_work_that_is_pending_on_another_threads_stream(cuda, path, monkeypatch, how, budget):
    """The memory of a dropped tensor is not reused before its thread's work on it is done."""
    fake_cuda.Allocator(cuda, monkeypatch)
    cuda.mode(LAZY)
    other_stream = cuda.make_stream()
    with safe_open(path, "pt", device="cuda") as f, f.prefetch(budget_bytes=budget) as loader:

        def use_and_drop():
            cuda.stream = other_stream
            tensor = take_by(how, loader)
            with cuda.context():  # it writes over the tensor, later
                code = cuda.driver.cuMemsetD8Async(
                    tensor.data_ptr(), 0x55, tensor.nbytes, ctypes.c_void_p(other_stream)
                )
            assert code == 0

        thread = threading.Thread(target=use_and_drop)
        thread.start()
        thread.join()
        found = {"t1": loader.take("t1"), "again": f.get_tensor("t2")}
        cuda.driver.fakecuda_run()
        assert torch.equal(found["t1"], TENSORS["t1"])
        assert torch.equal(found["again"], TENSORS["t2"])


@pytest.mark.parametrize("how", ["take", "iterate"])
def test_nothing_is_recorded_on_the_stream_of_the_memory(cuda, path, monkeypatch, how):
    """The stream orders its work before later loads to the same memory."""
    fake_cuda.Allocator(cuda, monkeypatch)
    recorded = []
    monkeypatch.setattr(
        "safetensors._torch.transfer.record_stream", lambda tensor, index: recorded.append(index)
    )
    cuda.stream = cuda.make_stream()
    with safe_open(path, "pt", device="cuda") as f, f.prefetch(budget_bytes=4000) as loader:
        address = take_by(how, loader).data_ptr()
        assert loader.take("t1").data_ptr() == address  # allocated on that stream again
        assert recorded == []
        cuda.stream = cuda.make_stream()
        loader.take("t2")  # made, and taken, on the new stream
        assert recorded == []
