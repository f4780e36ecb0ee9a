"""safe_open.prefetch has upstream 0.9's rules and texts, on the CPU and on a fake device."""

import gc
import inspect
import os
import threading
import time

import pytest
import torch

from safetensors import PrefetchLoader, SafetensorError, _core, safe_open
from safetensors._torch import transfer
from safetensors.torch import save_file
from support import fake_cuda
from support.fake_cuda import ASYNC, LAZY
from support.threads import together

TENSORS = {
    **{f"l{i:02}": torch.randn(100 + i, 50) for i in range(40)},
    "rows": torch.arange(4 * 6).reshape(4, 6),
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "big": torch.randn(1 << 20),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefetch") / "model.safetensors"
    save_file(TENSORS, path)
    return path


@pytest.fixture(params=["cpu", "cuda:0", "cuda:1"])
def device(request):
    """A device's name; installs the fake driver for CUDA."""
    if request.param != "cpu":
        request.getfixturevalue("cuda").mode(ASYNC, 50)
    return request.param


def same(found, names):
    assert set(found) == set(names)
    for name, tensor in found.items():
        assert torch.equal(tensor, TENSORS[name]), name


def test_iterating(path, device):
    """Each tensor comes once."""
    with safe_open(path, "pt") as f, f.prefetch(device=device) as loader:
        assert isinstance(loader, PrefetchLoader)
        assert len(loader) == len(TENSORS)
        assert loader.names() == f.offset_keys()
        pairs = list(loader)
        assert len(pairs) == len(TENSORS)
        same(dict(pairs), TENSORS)
        assert list(loader) == []
        assert len(loader) == len(TENSORS)


@pytest.mark.parametrize("budget", [None, 0, 1, 100_000, 10**9])
def test_taking_and_iterating(path, device, budget):
    """take() works in any order, and the iterator skips tensors that were taken."""
    with safe_open(path, "pt") as f, f.prefetch(device=device, budget_bytes=budget) as loader:
        taken = {name: loader.take(name) for name in ("l39", "empty", "l05", "big", "scalar")}
        same(taken, taken)
        same(dict(loader), set(TENSORS) - set(taken))
        for name in TENSORS:
            with pytest.raises(SafetensorError, match="already delivered"):
                loader.take(name)


def test_a_plan(path, device):
    """Rows equal a slice's, and the order is the file's."""
    rows = TENSORS["rows"]
    plans = [
        (slice(1, 3), rows[1:3]), (slice(None), rows), (slice(-1, None), rows[3:]),
        (slice(0, 4, 1), rows), (slice(3, 1), rows[3:1]), (slice(None, -1), rows[:3]),
        (slice(4, None), rows[4:]), (slice(2, 2), rows[2:2]), (None, rows),
    ]  # fmt: skip
    with safe_open(path, "pt", device=device) as f:
        order = [name for name in f.offset_keys() if name in ("rows", "l07", "big")]
        for plan, wanted in plans:
            with f.prefetch({"rows": plan, "l07": None, "big": slice(5, 9)}) as loader:
                assert loader.names() == order
                found = dict(loader)
            assert torch.equal(found["rows"], wanted)
            assert found["rows"].shape == wanted.shape
            assert torch.equal(found["big"], TENSORS["big"][5:9])


WRONG_PLANS = [
    ({}, "prefetch plan selects no tensors"),
    ({"nope": None}, "File does not contain tensor nope"),
    ({3: None}, "prefetch plan keys must be tensor names"),
    ({"rows": 3}, "prefetch plan values must be None or a slice, got <class 'int'> for rows"),
    ({"rows": slice(0, 4, 2)}, "prefetch plan slices must have step 1, got 2 for rows"),
    ({"rows": slice(0, 4, -1)}, "prefetch plan slices must have step 1, got -1 for rows"),
    ({"rows": slice(0, 4, 0)}, "invalid prefetch plan slice for rows: ValueError: slice step"),
    ({"rows": slice(0, 4, "x")}, "invalid prefetch plan slice for rows: TypeError: slice indices"),
    ({"rows": slice(0, 9)}, "prefetch plan slice stop 9 for rows is out of range for 4 rows"),
    ({"rows": slice(5, None)}, "prefetch plan slice start 5 for rows is out of range for 4 rows"),
    ({"rows": slice(-5, 2)}, "prefetch plan slice start -5 for rows is out of range for 4 rows"),
    ({"rows": slice("a", 2)}, "prefetch plan slice bounds for rows must be integers or None"),
    ({"rows": slice(1.5, 2)}, "prefetch plan slice bounds for rows must be integers or None"),
    ({"rows": slice(0, 2**70)}, "prefetch plan slice bounds for rows must be integers or None"),
    ({"scalar": slice(0, 1)}, "cannot slice rows of the 0-d tensor scalar"),
]


@pytest.mark.parametrize(("plan", "words"), WRONG_PLANS, ids=[words for _, words in WRONG_PLANS])
def test_wrong_plans(cuda, path, plan, words):
    """The error has upstream's text and comes before anything is allocated."""
    with safe_open(path, "pt", device="cuda") as f:
        with pytest.raises(SafetensorError) as caught:
            f.prefetch(plan)
        assert str(caught.value).startswith(words)
    assert cuda.made == []


def test_signatures():
    """Signatures are upstream's with one more keyword."""
    parameters = inspect.signature(safe_open.prefetch).parameters
    assert list(parameters) == ["self", "plan", "device", "threads", "budget_bytes"]
    assert [parameters[name].default for name in ("plan", "device", "threads")] == [None, None, 8]
    assert parameters["plan"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {parameters[name].kind for name in ("device", "threads", "budget_bytes")} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert list(inspect.signature(PrefetchLoader.take).parameters) == ["self", "name"]
    for method in (PrefetchLoader.names, PrefetchLoader.close):
        assert list(inspect.signature(method).parameters) == ["self"]


def test_wrong_arguments(path):
    with safe_open(path, "pt") as f:
        with pytest.raises(TypeError, match="'list' object is not an instance of 'dict'"):
            f.prefetch(["rows"])
        with pytest.raises(TypeError):
            f.prefetch({"rows": None}, "cpu")
        for argument in ("threads", "budget_bytes"):
            for wrong, error in ((-1, OverflowError), (2**70, OverflowError), (1.5, TypeError)):
                with pytest.raises(error, match=argument):
                    f.prefetch(**{argument: wrong})
        with pytest.raises(SafetensorError, match="device bogus is invalid"):
            f.prefetch(device="bogus")
        # A torch that is built for CUDA takes a number for one of its devices on every machine.
        if not torch.cuda.is_available():
            no_device = r"device 0 is invalid: .*accelerator|no CUDA driver"
            with pytest.raises(SafetensorError, match=no_device) as caught:
                f.prefetch(device=0)
            assert caught.value.code == "device"
        with pytest.raises(SafetensorError, match="prefetch loads to cuda devices, not mps"):
            f.prefetch(device="mps")
    with (
        safe_open(path, "np") as f,
        pytest.raises(SafetensorError, match='prefetch is only compatible with framework="pt"'),
    ):
        f.prefetch()


def test_no_driver(cuda, path):
    """One error says so."""
    _core._use_cuda_driver("/nowhere/libcuda.so.1")
    with safe_open(path, "pt") as f, pytest.raises(SafetensorError, match="no CUDA driver"):
        f.prefetch(device="cuda")


def test_amd_devices(cuda, path, monkeypatch):
    """torch calls them cuda, but prefetch does not support them."""
    monkeypatch.setattr(torch.version, "hip", "6.0")
    with safe_open(path, "pt") as f, pytest.raises(SafetensorError, match="AMD devices"):
        f.prefetch(device="cuda")
    assert cuda.made == []
    assert cuda.calls("cuInit") == 0


def test_errors_of_take(path, device):
    with safe_open(path, "pt") as f:
        loader = f.prefetch({"rows": None}, device=device)
        with pytest.raises(SafetensorError, match="^l00 is not in the prefetch plan"):
            loader.take("l00")
        with pytest.raises(TypeError):
            loader.take(3)
        loader.take("rows")
        words = r"^tensor already delivered \(prefetch hands each tensor out once, via take or iter"
        with pytest.raises(SafetensorError, match=words):
            loader.take("rows")
        loader.close()
        loader.close()
        for call in (lambda: loader.take("rows"), lambda: next(iter(loader))):
            with pytest.raises(SafetensorError, match="^prefetch loader closed"):
                call()
        assert loader.names() == ["rows"]


def test_the_handle_stays_as_it_is(path, device):
    """Slices, tensors and other loaders work during a prefetch and after its end."""
    f = safe_open(path, "pt")
    first, second = f.prefetch(device=device), f.prefetch(device="cpu")
    assert torch.equal(f.get_tensor("rows"), TENSORS["rows"])
    assert torch.equal(f.get_slice("rows")[1:2], TENSORS["rows"][1:2])
    f.close()
    same(dict(first), TENSORS)
    same(dict(second), TENSORS)


def test_tensors_outlive_the_loader(path, device):
    with safe_open(path, "pt") as f, f.prefetch(device=device) as loader:
        rows = loader.take("rows")
    del loader
    gc.collect()
    assert torch.equal(rows, TENSORS["rows"])


def test_the_budget_is_kept(cuda, path, monkeypatch):
    """Bytes that are loaded and not taken stay within it, but one tensor is always loaded."""
    nbytes, alive, most = {}, 0, 0
    real = transfer.empty

    def empty(shape, *, dtype, device):
        nonlocal alive, most
        tensor = real(shape, dtype=dtype, device=device)
        nbytes[tensor.data_ptr()] = tensor.nbytes
        alive += tensor.nbytes
        most = max(most, alive)
        return tensor

    monkeypatch.setattr(transfer, "empty", empty)
    small = {name: None for name in TENSORS if name != "big"}
    with safe_open(path, "pt") as f:
        for budget in (60_000, 200_000):
            most = alive = 0
            with f.prefetch(small, device="cuda", budget_bytes=budget) as loader:
                for _, tensor in loader:
                    alive -= tensor.nbytes
            assert budget / 2 < most <= budget
        most = alive = 0
        with f.prefetch(device="cuda", budget_bytes=1) as loader:
            for _, tensor in loader:
                alive -= tensor.nbytes
        assert most == TENSORS["big"].nbytes


def test_closed_during_the_load(cuda, tmp_path):
    """Nothing is written afterwards, and the threads have ended."""
    path = tmp_path / "long.safetensors"
    save_file({f"t{i}": torch.zeros(1 << 16) for i in range(300)}, path)
    before = _core.io_config()
    _core.io_config(chunk_bytes=1 << 16)
    cuda.mode(ASYNC, 5_000)
    try:
        with safe_open(path, "pt") as f:
            loader = f.prefetch(device="cuda", threads=4)
            loader.take("t0")
            loader.close()
    finally:
        _core.io_config(**before)
    copied = cuda.stat(fake_cuda.COPIED_BYTES)
    time.sleep(0.05)
    assert cuda.stat(fake_cuda.COPIED_BYTES) == copied < 300 << 18


def test_destroyed_during_the_load(cuda, path):
    """Nothing is printed, and no thread and no pinned memory is left."""
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    with safe_open(path, "pt") as f:
        for _ in range(5):
            loader = f.prefetch(device="cuda", budget_bytes=1)
            next(iter(loader))
            del loader
    gc.collect()
    threads = len(os.listdir("/proc/self/task"))
    assert (threading.active_count(), threads) <= (before[0], before[1] + 6)  # the device's own


def test_several_take_the_same(path, device):
    """One thread gets it."""
    with safe_open(path, "pt") as f:
        for _ in range(10):
            with f.prefetch(device=device) as loader:

                def take(_, loader=loader):
                    try:
                        return loader.take("big")
                    except SafetensorError as error:
                        return str(error)

                results = together(take, range(4))
                tensors = [result for result in results if isinstance(result, torch.Tensor)]
                assert len(tensors) == 1
                assert sum("already delivered" in str(r) for r in results) == 3


def test_several_iterate(path, device):
    """Each tensor is returned to one thread, and a budget blocks nobody forever."""
    with safe_open(path, "pt") as f:
        for budget in (None, 30_000):
            with f.prefetch(device=device, budget_bytes=budget) as loader:
                found = []

                def walk(_, loader=loader, found=found):
                    for name, tensor in loader:
                        found.append((name, tensor))

                together(walk, range(3))
                assert len(found) == len(TENSORS)
                same(dict(found), TENSORS)


def test_closing_wakes_waiting_threads(cuda, path):
    """A thread that waits for a tensor gets an error when the loader is closed."""
    cuda.mode(ASYNC, 200_000)
    with safe_open(path, "pt") as f:
        loader = f.prefetch(device="cuda", threads=1)
        caught = []

        def take():
            try:
                for _ in loader:
                    pass
            except SafetensorError as error:
                caught.append(str(error))

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.02)
        loader.close()
        thread.join(20)
        assert not thread.is_alive()
        assert caught in ([], ["prefetch loader closed"])  # or it had come already


def test_out_of_memory(cuda, path):
    """The error is torch's; with a budget, the tensor can be requested again."""
    with safe_open(path, "pt") as f:
        cuda.fail_at = 3
        with pytest.raises(torch.OutOfMemoryError):
            f.prefetch(device="cuda")
        cuda.made.clear()
        loader = f.prefetch({"l00": None, "l01": None}, device="cuda", budget_bytes=1)
        cuda.fail_at = 0
        first, second = loader.names()
        with pytest.raises(torch.OutOfMemoryError):
            loader.take(second)
        cuda.fail_at = None
        same({name: loader.take(name) for name in (second, first)}, [first, second])


def test_a_device_that_fails(cuda, path):
    """Each request raises its error."""
    cuda.mode(LAZY)
    with safe_open(path, "pt") as f:
        cuda.fault("cuMemcpyHtoDAsync_v2", 3, 700)
        loader = f.prefetch(device="cuda")
        for _ in range(2):
            with pytest.raises(SafetensorError, match=r"\(700\)"):
                for _ in loader:
                    pass
        loader.close()
        cuda.clear()
        with f.prefetch(device="cuda") as again:
            same(dict(again), TENSORS)


def test_an_empty_file(tmp_path, device):
    path = tmp_path / "empty.safetensors"
    save_file({}, path)
    with safe_open(path, "pt") as f, f.prefetch(device=device) as loader:
        assert len(loader) == 0
        assert loader
        assert list(loader) == []
