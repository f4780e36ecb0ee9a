"""load_files(progress=...) of tensors that are views: their pages are read into the page cache."""

import pathlib
import re
import signal
import sys

import numpy as np
import pytest

from support import file_builder, memory
from support.page_cache import drop, resident

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks the Linux page cache"
)
from safetensors.torch import load_files, load_model, save_file  # noqa: E402

MB = 1 << 20
NAMES = [f"t{i}" for i in range(4)]


@pytest.fixture
def cold(tmp_path):
    """A file of four tensors of 32 MB, none of it in the page cache."""
    path = tmp_path / "model.safetensors"
    arrays = {name: np.full((8192, 1024), i, "f4") for i, name in enumerate(NAMES)}
    save_file({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    drop(path)
    if resident(path).any():
        pytest.skip("this file system keeps its files in memory")
    yield path
    path.unlink(missing_ok=True)


def load(path, **options):
    """Returns the tensors, and what `progress` was called with, which it checks."""
    told = []
    tensors = load_files(path, progress=lambda *numbers: told.append(numbers), **options)
    assert len({total for _, total in told}) == 1
    assert told == sorted(set(told))
    assert told[-1][0] == told[-1][1]
    return tensors, told


@pytest.mark.parametrize("backend", ["auto", "mmap"])
def test_a_cold_file_is_read(cold, backend):
    tensors, told = load(cold, backend=backend)
    assert told[-1] == (128 * MB, 128 * MB)
    assert resident(cold).all()
    assert [float(tensors[name][5, 7]) for name in NAMES] == [0, 1, 2, 3]


def test_a_cached_file_is_not_read_again(cold):
    cold.read_bytes()
    before = memory.bytes_read()
    _, told = load(cold)
    assert told[-1] == (128 * MB, 128 * MB)
    assert memory.bytes_read() - before < MB


def test_only_what_is_missing_is_read(cold):
    load(cold, keys=["t1", "t2"])
    before = memory.bytes_read()
    load(cold)
    assert 32 * MB <= memory.bytes_read() - before <= 80 * MB  # the kernel reads ahead


def test_without_progress_nothing_is_read(cold):
    load_files(cold)
    load_files(cold, progress=True)  # nobody sees it
    assert resident(cold).mean() < 0.5


def test_the_total_is_that_of_the_tensors_asked_for(cold):
    _, told = load(cold, keys=["t0", "t3"])
    assert told[-1] == (64 * MB, 64 * MB)
    pages = resident(cold)
    assert pages[: len(pages) // 4].all()
    assert not pages[len(pages) * 3 // 8 : len(pages) * 5 // 8].any()


def test_parts_count_their_own_bytes(cold):
    tensors, told = load(cold, plan={"t2": (slice(None), slice(0, 16))})
    assert told[-1] == (8192 * 64, 8192 * 64)
    assert tensors["t2"].shape == (8192, 16)
    assert bool((tensors["t2"] == 2).all())


def test_views_and_copies_share_one_count(cold):
    places = {"t0": "meta", "*": "cpu"}
    _, told = load(cold, device=places)
    assert told[-1] == (96 * MB, 96 * MB)


def test_nothing_is_read_that_does_not_fit(tmp_path):
    """All of it counts as done at once."""
    text = pathlib.Path("/proc/meminfo").read_text()
    nbytes = int(re.search(r"MemTotal: *(\d+)", text)[1]) * 1024 // 100 * 97
    path = tmp_path / "sparse.safetensors"
    file_builder.write_sparse(path, {"t": (nbytes // 4096, 1024)})
    before = memory.bytes_read()
    tensors, told = load(path, backend="mmap")
    path.unlink()
    assert told == [(tensors["t"].nbytes,) * 2]
    assert memory.bytes_read() - before < MB


def test_what_it_raises_comes_out(cold):
    def stop(done, total):
        raise LookupError(f"{done} of {total}")

    with pytest.raises(LookupError, match=f"of {128 * MB}"):
        load_files(cold, progress=stop)
    assert float(load_files(cold)["t3"][0, 0]) == 3


def test_a_signal_stops_it(tmp_path):
    path = tmp_path / "sparse.safetensors"
    file_builder.write_sparse(path, {f"t{i}": (1 << 16, 1024) for i in range(16)})

    def stop(*_):
        raise InterruptedError("stopped")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(InterruptedError, match="stopped"):
            load_files(path, progress=lambda *_: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        path.unlink()


def test_load_model_has_a_count(cold):
    module = torch.nn.Module()
    for name in NAMES:
        module.register_buffer(name, torch.zeros(8192, 1024))
    told = []
    load_model(module, cold, progress=lambda *numbers: told.append(numbers))
    assert told[-1] == (128 * MB, 128 * MB)
    assert float(module.t3[1, 1]) == 3
