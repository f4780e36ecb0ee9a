"""save_file_async copies tensors, and writes them in the background."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

import safetensors
import safetensors.numpy
import safetensors.torch
from safetensors import SafetensorError, _extra
from safetensors._saving.save_async import SaveFuture
from safetensors._torch import transfer
from safetensors._torch.save_file_async import _flat_bytes, _reader_of
from safetensors.numpy import load_file
from support import fake_cuda
from support.threads import together

pytestmark = pytest.mark.slow

CHUNK = 16 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
both = pytest.mark.parametrize("module", [safetensors.torch, safetensors.numpy])


def arrays_of(module, seed=0, nbytes=20 << 20):
    """Returns tensors that begin and end within chunks."""
    made = {f"t{i}": np.full(n, seed + i, "i4") for i, n in enumerate([3, nbytes // 4, 0, 1 << 20])}
    if module is safetensors.torch:
        return {name: torch.from_numpy(array) for name, array in made.items()}
    return made


@pytest.fixture(autouse=True)
def nothing_is_used():
    yield
    used, _ = _extra._staging_state()
    assert used == 0


def until(condition):
    """Waits at most 20 s."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gate:
    """Keeps saves from being written: a pipe that has no reader yet."""

    def __init__(self, folder):
        self.futures = []
        self.paths = [folder / f"pipe{i}" for i in range(2)]
        for path in self.paths:
            os.mkfifo(path)
            self.futures.append(safetensors.numpy.save_file_async({"a": np.zeros(2)}, path))
        until(lambda: all(future.running() for future in self.futures))

    def open(self):
        for path, future in zip(self.paths, self.futures, strict=True):
            with open(path, "rb") as file:
                file.read()
            future.result(60)


@pytest.fixture
def gate(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no named pipes")
    folder = tmp_path / "gate"
    folder.mkdir()
    made = Gate(folder)
    yield made
    if not made.futures[0].done():
        made.open()


@both
def test_the_file_has_the_values_of_the_call(module, tmp_path, gate):
    path = tmp_path / "async.safetensors"
    expected = tmp_path / "expected.safetensors"
    tensors = arrays_of(module)
    module.save_file(tensors, expected, {"k": "v"})
    future = module.save_file_async(tensors, path, {"k": "v"})
    for tensor in tensors.values():
        tensor[:] = -1
    tensors.clear()
    assert not future.done()
    assert future.nbytes_done == 0
    assert not path.exists()
    gate.open()
    assert future.result(60) is None
    assert isinstance(future, concurrent.futures.Future)
    assert path.read_bytes() == expected.read_bytes()
    assert future.nbytes_done == 12 + (20 << 20) + (4 << 20)
    assert sorted(os.listdir(tmp_path)) == ["async.safetensors", "expected.safetensors", "gate"]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_sizes_at_the_borders_of_chunks(tmp_path, size):
    array = np.arange(size, dtype="u1")
    safetensors.numpy.save_file_async({"a": array}, tmp_path / "file").result(60)
    np.testing.assert_array_equal(load_file(tmp_path / "file")["a"], array)


def test_the_values_are_those_of_the_call_however_the_dict_changes(tmp_path):
    arrays = {"a": np.arange(3), "b": np.ones(2)}
    future = safetensors.numpy.save_file_async(arrays, tmp_path / "file")
    arrays["c"] = arrays.pop("a")
    future.result(60)
    assert set(load_file(tmp_path / "file")) == {"a", "b"}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7, dtype=torch.bfloat16),
        torch.tensor(3.5),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.arange(6.0)[2:4],
    ],
    ids=["bf16", "scalar", "conj", "view"],
)
def test_parts_of_a_tensor_on_a_device(tensor):
    """As the reader of a tensor on a GPU copies them."""
    flat = _flat_bytes(tensor)
    expected = safetensors.torch._tobytes(tensor)
    memory = bytearray(len(expected))
    for begin in range(0, len(memory), 3):
        _reader_of(flat)(begin, memoryview(memory)[begin : begin + 3])
    assert memory == expected


def test_a_future_serves_asyncio(tmp_path):
    async def save():
        future = safetensors.numpy.save_file_async({"a": np.ones(2)}, tmp_path / "file")
        await asyncio.wrap_future(future)
        with pytest.raises(FileNotFoundError):
            await asyncio.wrap_future(
                safetensors.numpy.save_file_async({"a": np.ones(2)}, tmp_path / "none" / "file")
            )

    asyncio.run(save())
    assert os.listdir(tmp_path) == ["file"]


@both
def test_bad_tensors_raise_at_once(module, tmp_path):
    bad = {"a": torch.zeros(2, 3).T} if module is safetensors.torch else {"a": np.array("text")}
    with pytest.raises((ValueError, SafetensorError)):
        module.save_file_async(bad, tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_arrays_that_need_a_copy(tmp_path):
    arrays = {"a": np.arange(6, dtype=">i4").reshape(2, 3).T}
    safetensors.numpy.save_file_async(arrays, tmp_path / "file").result(60)
    np.testing.assert_array_equal(load_file(tmp_path / "file")["a"], arrays["a"])


def test_tensors_of_a_device_are_read_in_parts(tmp_path):
    """Here a reader takes the place of a device."""
    from safetensors._saving.arguments import SaveArguments
    from safetensors._saving.save_async import start_save

    source = np.random.default_rng(0).integers(0, 255, 3 * CHUNK + 5, "u1")
    keep = []
    specs = safetensors.numpy._flatten({"a": np.arange(4), "b": source, "c": np.ones(3)}, keep)
    calls = []

    def read(begin, to):
        calls.append((begin, len(to)))
        to[:] = source[begin : begin + len(to)]

    start_save(specs, {"b": read}, tmp_path / "file", SaveArguments(budget_bytes=CHUNK)).result(60)
    found = load_file(tmp_path / "file")
    np.testing.assert_array_equal(found["b"], source)
    np.testing.assert_array_equal(found["a"], np.arange(4))
    assert len(calls) == 4
    assert sum(size for _, size in calls) == len(source)

    def broken(begin, to):
        raise KeyError("device")

    with pytest.raises(KeyError, match="device"):
        start_save(specs, {"b": broken}, tmp_path / "other", SaveArguments())
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def on_cuda(cuda, monkeypatch):
    """Takes all tensors for those of the first device of the fake driver."""
    monkeypatch.setattr(transfer, "device_of", lambda tensor: torch.device("cuda:0"))
    return cuda


def test_tensors_of_cuda_are_copied_through_pinned_memory(on_cuda, tmp_path):
    tensors = arrays_of(safetensors.torch, nbytes=40 << 20)
    on_cuda.stream = on_cuda.make_stream()
    big = tensors["t1"]
    with on_cuda.context():  # work that is queued, and has not run
        queued = big.data_ptr(), 0x55, big.nbytes, on_cuda.stream
        assert on_cuda.driver.cuMemsetD8Async(*queued) == 0
    assert big[0] == 1
    future = safetensors.torch.save_file_async(tensors, tmp_path / "file")
    assert big[-1] == 0x55555555
    wanted = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.fill_(-1)  # too late for the file
    future.result(60)
    found = load_file(tmp_path / "file")
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    assert on_cuda.stat(fake_cuda.PAGEABLE_COPIES) == 0
    assert on_cuda.calls("cuMemcpyDtoHAsync_v2") >= 3


def test_an_error_of_cuda_leaves_no_file(on_cuda, tmp_path):
    tensors = arrays_of(safetensors.torch)
    on_cuda.fault("cuMemcpyDtoHAsync_v2", 2, 719)
    with pytest.raises(SafetensorError, match=r"\(719\) in cuMemcpyDtoHAsync"):
        safetensors.torch.save_file_async(tensors, tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_the_last_call_wins(tmp_path):
    path = tmp_path / "file"
    futures = [
        safetensors.numpy.save_file_async({"a": np.full(1 << 20, i)}, path) for i in range(8)
    ]
    for future in futures:
        future.result(60)
    assert (load_file(path)["a"] == 7).all()
    assert os.listdir(tmp_path) == ["file"]


def test_saves_of_one_file_by_other_names_keep_their_order(tmp_path, monkeypatch, gate):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("file")
    futures = [
        safetensors.numpy.save_file_async({"a": np.full(1 << 20, i)}, name)
        for i, name in enumerate(["file", tmp_path / "link", b"gate/../file"])
    ]
    monkeypatch.chdir("/")
    gate.open()
    for future in futures:
        future.result(60)
    assert (load_file(tmp_path / "file")["a"] == 2).all()


def test_the_call_waits_beyond_the_budget(tmp_path, gate):
    safetensors.release_staging()
    array = np.random.default_rng(0).integers(0, 255, 5 * CHUNK, "u1")
    waiting = threading.Thread(
        target=lambda: futures.append(
            safetensors.numpy.save_file_async(
                {"a": array}, tmp_path / "file", budget_bytes=4 * CHUNK + 1
            )
        )
    )
    futures = []
    used = 0
    waiting.start()
    until(lambda: _extra._staging_state()[0] == 4 * CHUNK)  # two of them are the gate's
    time.sleep(0.2)
    assert not futures, "the save cannot be written, so the call has to wait"
    assert _extra._staging_state()[0] == 4 * CHUNK
    gate.open()
    while waiting.is_alive():
        used = max(used, _extra._staging_state()[0])
        time.sleep(0.001)
    assert used <= 4 * CHUNK
    futures[0].result(60)
    np.testing.assert_array_equal(load_file(tmp_path / "file")["a"], array)


def test_memory_is_kept_until_it_is_released(tmp_path):
    safetensors.release_staging()
    for _ in range(3):
        array = np.zeros(3 * CHUNK, "u1")
        safetensors.numpy.save_file_async({"a": array}, tmp_path / "file").result(60)
        assert _extra._staging_state() == (0, 3 * CHUNK)
    assert safetensors.release_staging() >= 3 * CHUNK
    assert _extra._staging_state() == (0, 0)


def test_errors_are_delivered(tmp_path):
    future = safetensors.numpy.save_file_async({"a": np.zeros(3)}, tmp_path / "none" / "file")
    with pytest.raises(FileNotFoundError) as caught:
        future.result(60)
    assert isinstance(caught.value, SafetensorError)
    assert future.exception() is caught.value
    assert future.done()


def test_an_error_that_nobody_collects_is_reported(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    path = tmp_path / "none" / "file"
    future = safetensors.numpy.save_file_async({"a": np.zeros(3)}, path)
    concurrent.futures.wait([future])
    assert not seen
    gc.disable()  # no cycle keeps it
    try:
        del future
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert len(seen) == 1
    assert isinstance(seen[0].exc_value, FileNotFoundError)


def test_a_collected_error_is_not_reported(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    for collect in (SaveFuture.result, SaveFuture.exception):
        future = safetensors.numpy.save_file_async({"a": np.zeros(3)}, tmp_path / "none" / "file")
        with contextlib.suppress(FileNotFoundError):
            collect(future, 60)
        del future
        gc.collect()
    assert not seen


def test_cancel_works_while_the_save_waits(tmp_path, gate):
    futures = [
        safetensors.numpy.save_file_async({"a": np.full(CHUNK, i, "u1")}, tmp_path / name)
        for i, name in enumerate(["one", "one", "two"])
    ]
    used = _extra._staging_state()[0]
    assert futures[1].cancel()
    assert _extra._staging_state()[0] < used
    assert futures[2].cancel()
    assert not gate.futures[0].cancel(), "it is being written"
    assert futures[1].cancelled()
    gate.open()
    futures[0].result(60)
    assert not futures[0].cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        futures[2].result(60)
    concurrent.futures.wait(futures)
    safetensors.numpy.save_file_async({"b": np.ones(3)}, tmp_path / "two").result(60)
    assert sorted(os.listdir(tmp_path)) == ["gate", "one", "two"]
    assert (load_file(tmp_path / "one")["a"] == 0).all()


def test_several_threads_save_at_once(tmp_path):
    def work(number):
        for i in range(5):
            array = np.full(CHUNK // 2 + number, 10 * number + i, "u1")
            path = tmp_path / f"{number}.{i}"
            future = safetensors.numpy.save_file_async({"a": array}, path, budget_bytes=2 * CHUNK)
            array[:] = 255
            future.result(60)
            assert (load_file(path)["a"] == 10 * number + i).all()

    together(work, range(4))
    assert len(os.listdir(tmp_path)) == 20
