"""Many threads use one handle; long calls release the GIL."""

import contextlib
import gc
import itertools
import threading
import time

import numpy as np
import pytest

import safetensors.numpy as for_numpy
from safetensors import SafetensorError, deserialize, safe_open
from support import file_builder
from support.threads import together

# torch is rarely installed on a free-threaded Python; there NumPy does all the work.
MODULES = {"np": for_numpy}
with contextlib.suppress(ModuleNotFoundError):
    import torch

    import safetensors.torch as for_torch

    MODULES["pt"] = for_torch
FRAMEWORKS = [*MODULES]

pytestmark = pytest.mark.slow

THREADS = 16
NAMES = [f"layer.{i}" for i in range(24)]
ARRAYS = {name: np.full((64, 9), i, "f4") for i, name in enumerate(NAMES)}

every_kind = pytest.mark.parametrize(
    ("framework", "backend"),
    [(framework, backend) for framework in FRAMEWORKS for backend in ("mmap", "pread")],
)


@pytest.fixture
def path(tmp_path):
    """A file of 24 tensors, each filled with its own number."""
    return str(file_builder.write(tmp_path / "layers.safetensors", ARRAYS, {"k": "v"}))


def framework_of(number):
    """Returns a framework for each thread or file; they take turns."""
    return FRAMEWORKS[number % len(FRAMEWORKS)]


def check_once(file, number, turn):
    """Makes one call of each kind and checks its result."""
    i = (number * 7 + turn) % len(NAMES)
    tensor = file.get_tensor(NAMES[i])
    assert tuple(tensor.shape) == (64, 9)
    assert float(tensor[0, 0]) == float(tensor[63, 8]) == i
    part = file.get_slice(NAMES[i])
    assert part.get_shape() == [64, 9]
    row = part[turn % 64 :]
    assert tuple(row.shape) == (64 - turn % 64, 9)
    assert float(row[0, 3]) == i
    assert float(part[1:2, turn % 9 : turn % 9 + 1][0, 0]) == i
    assert file.keys() == sorted(NAMES)
    assert file.metadata() == {"k": "v"}


@every_kind
def test_one_handle_serves_many_threads(path, framework, backend):
    with safe_open(path, framework, backend=backend) as file:

        def work(number):
            for turn in range(60):
                check_once(file, number, turn)
            return number

        assert together(work, range(THREADS)) == list(range(THREADS))


@every_kind
def test_each_call_works_or_says_closed_while_another_thread_closes(path, framework, backend):
    for delay in (0, 0.002, 0.01, 0.03):
        file = safe_open(path, framework, backend=backend)
        deadline = time.monotonic() + 20
        held = []

        def work(number, file=file, delay=delay, deadline=deadline, held=held):
            if number == 0:
                time.sleep(delay)
                file.close()
                return "closer"
            turn = 0
            while time.monotonic() < deadline:
                try:
                    held.append((NAMES.index("layer.3"), file.get_tensor("layer.3")))
                    check_once(file, number, turn)
                except SafetensorError as error:
                    return str(error)
                turn += 1
            return "never closed"

        answers = together(work, range(THREADS))
        assert answers[0] == "closer"
        assert all(answer.startswith("File is closed") for answer in answers[1:]), answers
        for i, tensor in held:
            assert float(tensor[63, 8]) == i


@every_kind
def test_many_threads_may_close(path, framework, backend):
    file = safe_open(path, framework, backend=backend)
    together(lambda number: file.close(), range(THREADS))
    with pytest.raises(SafetensorError, match=r"^File is closed"):
        file.keys()


@every_kind
def test_slices_are_read_by_many_threads_after_close(path, framework, backend):
    with safe_open(path, framework, backend=backend) as file:
        parts = [file.get_slice(name) for name in NAMES]

    def work(number):
        for turn in range(60):
            i = (number + turn) % len(NAMES)
            assert float(parts[i][turn : turn + 1][0, 0]) == i

    together(work, range(THREADS))


def test_opens_in_parallel(path):
    def work(number):
        for turn in range(30):
            backend = ("mmap", "pread")[turn % 2]
            with safe_open(path, framework_of(number), backend=backend) as file:
                check_once(file, number, turn)

    together(work, range(THREADS))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_saves_in_parallel(tmp_path, framework):
    module = MODULES[framework]
    make = torch.full if framework == "pt" else np.full
    common = tmp_path / "common.safetensors"

    def work(number):
        mine = tmp_path / f"{number}.safetensors"
        for turn in range(10):
            tensors = {name: make((50, 50), float(number + i)) for i, name in enumerate(NAMES[:8])}
            module.save_file(tensors, mine, {"turn": str(turn)})
            module.save_file(tensors, common)
            data = module.save(tensors)
            for loaded in (module.load_file(mine), module.load(data)):
                for i, name in enumerate(NAMES[:8]):
                    assert float(loaded[name].min()) == float(loaded[name].max()) == number + i

    together(work, range(THREADS))
    whole = module.load_file(common)
    first = float(whole[NAMES[0]][0, 0])
    assert [float(whole[name].min()) for name in NAMES[:8]] == [first + i for i in range(8)]
    assert [float(whole[name].max()) for name in NAMES[:8]] == [first + i for i in range(8)]
    assert len(list(tmp_path.iterdir())) == THREADS + 1


def test_everything_at_once(tmp_path):
    """Handles are opened, read, sliced and closed while the file is saved over and over."""
    path = tmp_path / "one.safetensors"
    for_numpy.save_file(ARRAYS, path, {"k": "v"})
    shared = [safe_open(path, framework_of(i), backend=("mmap", "pread")[i // 2]) for i in range(4)]

    def read(number, turn):
        check_once(shared[number % 4], number, turn)

    def reopen(number, turn):
        file = safe_open(path, framework_of(number), backend=("mmap", "pread")[turn % 2])
        part = file.get_slice(NAMES[3])
        check_once(file, number, turn)
        file.close()
        assert float(part[5:6][0, 8]) == 3

    def save(number, turn):
        module = MODULES[framework_of(number)]
        module.save_file(module.load_file(path), path, {"k": "v"})

    def load(number, turn):
        loaded = MODULES[framework_of(number)].load_file(path, backend="pread")
        assert float(loaded[NAMES[7]][63, 8]) == 7

    roles = [read, reopen, save, load]
    stop = time.monotonic() + 2

    def work(number):
        for turn in itertools.count():
            roles[number // 2 % 4](number, turn)
            if time.monotonic() > stop:
                break

    together(work, range(THREADS))
    for file in shared:
        file.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.safetensors"]


def test_loads_in_parallel_leave_the_garbage_collector_on(tmp_path):
    many = {f"t{i}": np.full(1, i, "f4") for i in range(2000)}
    path = str(file_builder.write(tmp_path / "many.safetensors", many))
    assert gc.isenabled()

    def work(number):
        load = MODULES[framework_of(number)].load_file
        for _ in range(6):
            assert float(load(path)["t1999"][0]) == 1999

    together(work, range(THREADS))
    assert gc.isenabled()


def longest_pause(call):
    """Returns the time of the call and the longest pause of another thread meanwhile."""
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        while len(ticks) < 5:
            time.sleep(0.001)
        begin = time.perf_counter()
        kept = call()  # noqa: F841  giving it back is not part of the call
        end = time.perf_counter()
    finally:
        stop.set()
        ticker.join()
    inside = [begin, *(when for when in ticks if begin < when < end), end]
    pause = max(after - before for before, after in itertools.pairwise(inside))
    return end - begin, pause


BIG = 400 << 20


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """A sparse file of one tensor of 400 MB."""
    path = tmp_path_factory.mktemp("gil") / "sparse.safetensors"
    file_builder.write_sparse(path, {"a": (BIG // 4096, 1024)})
    return path


@pytest.fixture(scope="module")
def in_memory(sparse):
    """The same file as bytes."""
    return sparse.read_bytes()


LONG_CALLS = {
    "pread get_tensor, numpy": lambda path, data, out: safe_open(
        path, "np", backend="pread"
    ).get_tensor("a"),
    "pread get_tensor, torch": lambda path, data, out: safe_open(
        path, "pt", backend="pread"
    ).get_tensor("a"),
    "pread slice, numpy": lambda path, data, out: safe_open(path, "np", backend="pread").get_slice(
        "a"
    )[1:],
    "pread load_file, torch": lambda path, data, out: for_torch.load_file(path, backend="pread"),
    "load, torch": lambda path, data, out: for_torch.load(data),
    "load, numpy": lambda path, data, out: for_numpy.load(data),
    "deserialize": lambda path, data, out: deserialize(data),
    "save, numpy": lambda path, data, out: for_numpy.save({"a": np.zeros(BIG, "u1")}),
    "save, torch": lambda path, data, out: for_torch.save({"a": torch.zeros(BIG // 4)}),
    "save_file, numpy": lambda path, data, out: for_numpy.save_file(
        {"a": np.zeros(BIG, "u1")}, out
    ),
}


@pytest.mark.timed
@pytest.mark.parametrize(
    "name", [name for name in LONG_CALLS if "pt" in MODULES or "torch" not in name]
)
def test_other_threads_run_during_a_long_call(sparse, in_memory, tmp_path, name):
    out = tmp_path / "out.safetensors"
    # A busy machine can stop a thread for long by itself: one good run of three is proof.
    for _ in range(3):
        taken, pause = longest_pause(lambda: LONG_CALLS[name](sparse, in_memory, out))
        out.unlink(missing_ok=True)
        if pause < max(0.4 * taken, 0.02):
            return
    pytest.fail(f"another thread stood still for {pause:.3f} s of {taken:.3f} s")
