"""Tensors on a CUDA device, loaded by the engine with a fake driver; see fake_cuda."""

import os
import re
import signal
import subprocess
import threading
import time

import pytest
import torch

from safetensors import SafetensorError, _core, safe_open
from safetensors._torch import transfer
from safetensors.torch import load_file, load_files, save_file
from support import children, fake_cuda
from support.fake_cuda import ASYNC, EAGER, LAZY
from support.fake_device import FakeDevice
from support.threads import together

MANY = {f"layer.{i}.weight": torch.randn(64 + i, 33) for i in range(60)}
TENSORS = {
    **MANY,
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "byte": torch.tensor([7], dtype=torch.uint8),
    "half": torch.randn(1000, 1001).bfloat16(),
    "large": torch.arange(3_000_000, dtype=torch.int64),
}
BACKENDS = ["mmap", "pread", "auto", "direct"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of tensors of all kinds."""
    path = tmp_path_factory.mktemp("cuda") / "model.safetensors"
    save_file(TENSORS, path)
    return path


def same(found, wanted=None):
    """Checks that all tensors are equal, bit for bit."""
    wanted = TENSORS if wanted is None else wanted
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [EAGER, ASYNC, LAZY])
def test_all_tensors(cuda, path, backend, mode):
    """torch allocates each tensor on the device, in file order, and the engine fills it."""
    cuda.mode(mode, 20)
    same(load_file(path, device="cuda:1", backend=backend))
    with safe_open(path, "pt") as f:
        assert [shape for shape, _, _ in cuda.made] == [
            tuple(TENSORS[name].shape) for name in f.offset_keys()
        ]
    assert {device for _, _, device in cuda.made} == {"cuda:1"}
    assert cuda.stat(fake_cuda.COPIED_BYTES) == sum(t.nbytes for t in TENSORS.values())
    assert cuda.stat(fake_cuda.PAGEABLE_COPIES) == 0


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda:0"), torch.device("cuda")])
def test_words_for_the_device(cuda, path, device):
    """The name cuda means the first device."""
    with safe_open(path, "pt", device=device) as f:
        assert torch.equal(f.get_tensor("half"), TENSORS["half"])
    assert cuda.made == [((1000, 1001), torch.bfloat16, "cuda:0")]


def test_one_tensor_after_another(cuda, path):
    """Each call returns a new tensor."""
    with safe_open(path, "pt", device="cuda") as f:
        same({name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118
        first, second = f.get_tensor("half"), f.get_tensor("half")
        assert first.data_ptr() != second.data_ptr()
        with pytest.raises(SafetensorError, match="does not contain tensor nope"):
            f.get_tensor("nope")


INDEXES = [
    slice(10, 20), slice(-3, None), 5, -1, (slice(None), slice(3, 700)), (slice(None), 7),
    (slice(None, None, 3), slice(1, None, 7)), (Ellipsis, 4), None, slice(5, 5), (2, 3),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("index", INDEXES, ids=repr)
def test_slices(cuda, path, backend, index):
    """Only the slice's bytes are copied to the device."""
    with safe_open(path, "pt", device="cuda", backend=backend) as f:
        part = f.get_slice("half")[index]
    wanted = TENSORS["half"][index]
    assert part.shape == wanted.shape
    assert torch.equal(part, wanted)
    assert cuda.stat(fake_cuda.COPIED_BYTES) == wanted.nbytes


def test_invalid_slices(cuda, path):
    with safe_open(path, "pt", device="cuda") as f:
        part = f.get_slice("half")
        for index in (1000, (0, 0, 0), slice(None, None, 0)):
            with pytest.raises((IndexError, ValueError)):
                part[index]


def test_memory_is_warmed_for_many(cuda, path):
    """It is warmed once, for the tensors above 1 MB, and not for a few tensors."""
    load_file(path, device="cuda:1")
    large = [t.nbytes for t in TENSORS.values() if t.nbytes > 1 << 20]
    assert cuda.warmed == [(sum(-(-n // 512) * 512 for n in large), 1)]
    cuda.warmed.clear()
    with safe_open(path, "pt", device="cuda") as f:
        f.get_tensor("half")
    assert cuda.warmed == []


def test_out_of_memory_is_torchs_error(cuda, path):
    """It propagates unchanged before anything is read, and the next load works."""
    cuda.fail_at = 20
    with pytest.raises(torch.OutOfMemoryError, match="as the test asked for"):
        load_file(path, device="cuda")
    assert cuda.calls("cuMemcpyHtoDAsync_v2") == 0
    cuda.fail_at = None
    same(load_file(path, device="cuda"))


def test_refused_while_a_graph_is_captured(cuda, path):
    """torch's state refuses before allocating; the driver's refuses before the first copy."""
    cuda.capturing = True
    with pytest.raises(SafetensorError, match="captured"):
        load_file(path, device="cuda")
    assert cuda.made == []
    cuda.capturing = False
    cuda.driver.fakecuda_capturing(0, 1)
    with pytest.raises(SafetensorError, match="captured"):
        load_file(path, device="cuda")
    cuda.driver.fakecuda_capturing(0, 0)
    assert cuda.calls("cuMemcpyHtoDAsync_v2") == 0
    same(load_file(path, device="cuda"))


def test_copies_follow_the_work_that_is_queued(cuda, path):
    """torch may return memory that a queued kernel of its stream still uses."""
    import ctypes

    with safe_open(path, "pt", device="cuda") as f:
        f.get_tensor("byte")  # the device is open
        real = transfer.empty
        context = ctypes.c_void_p()
        cuda.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)

        def empty(shape, **options):
            tensor = real(shape, **options)
            cuda.driver.cuCtxPushCurrent_v2(context)
            cuda.driver.cuMemsetD8Async(tensor.data_ptr(), 0x55, tensor.nbytes, None)
            cuda.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            return tensor

        transfer.empty = empty
        tensor = f.get_tensor("half")
        cuda.driver.fakecuda_run()
        assert torch.equal(tensor, TENSORS["half"])


@pytest.mark.parametrize(
    ("function", "code"), [("cuMemcpyHtoDAsync_v2", 1), ("cuStreamSynchronize", 719)]
)
def test_a_driver_that_refuses(cuda, path, function, code):
    """The error names the function and the code, and the next load works."""
    cuda.fault(function, 0, code)
    # A device that died refuses everything: another reader may come first, with another call.
    name = "cu" if code == 719 else function.removesuffix("_v2")
    with pytest.raises(SafetensorError, match=rf"\({code}\) in {name}"):
        load_file(path, device="cuda")
    cuda.clear()
    same(load_file(path, device="cuda"))


def test_no_such_device(cuda, path):
    with pytest.raises(SafetensorError, match=r"CUDA error .*\(101\) in cuDeviceGet"):
        load_file(path, device="cuda:17")


def test_a_driver_that_is_too_old(cuda, path):
    """torch copies, as without a driver; calls that need the engine say why they fail."""
    _core._use_cuda_driver("libm.so.6")
    assert not _core._has_cuda_driver()
    wanted = "the CUDA driver is too old: it has no cuInit"
    with safe_open(path, "pt", device="cuda") as f, pytest.raises(SafetensorError, match=wanted):
        f.prefetch()


def test_a_truncated_file(cuda, tmp_path):
    """The error names the file and the tensor, and nothing is written afterwards."""
    path = tmp_path / "cut.safetensors"
    save_file({"a": torch.zeros(1 << 18), "b": torch.zeros(1 << 22)}, path)
    with safe_open(path, "pt", device="cuda") as f:
        os.truncate(path, path.stat().st_size - (1 << 20))
        copied = cuda.stat(fake_cuda.COPIED_BYTES)
        with pytest.raises(SafetensorError, match=r"tensor `b`: .*truncated.*cut\.safetensors"):
            f.get_tensor("b")
        copied = cuda.stat(fake_cuda.COPIED_BYTES)
        cuda.driver.fakecuda_run()
        assert cuda.stat(fake_cuda.COPIED_BYTES) == copied
        assert torch.equal(f.get_tensor("a"), torch.zeros(1 << 18))


def test_a_file_that_was_replaced(cuda, tmp_path):
    """A handle reads the file that it opened, as without a device."""
    path = tmp_path / "r.safetensors"
    old, new = torch.arange(1000), torch.arange(1000) + 7
    save_file({"a": old}, path)
    with safe_open(path, "pt", device="cuda") as f, safe_open(path, "pt") as mapped:
        save_file({"a": new}, path)
        assert torch.equal(f.get_tensor("a"), old)
        with mapped.prefetch(device="cuda") as loader:
            assert torch.equal(loader.take("a"), old)
    assert torch.equal(load_file(path, device="cuda")["a"], new)


def load_and_interrupt(path):
    """Starts a load after setting a timer that sends SIGINT."""
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    load_file(path, device="cuda")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_interrupted(cuda, tmp_path):
    """Ctrl-C ends a long load soon, and nothing is written afterwards."""
    path = tmp_path / "long.safetensors"
    save_file({f"t{i}": torch.zeros(1 << 18) for i in range(200)}, path)
    before = _core.io_config()
    _core.io_config(chunk_bytes=4096 * 16, threads=2)
    cuda.mode(ASYNC, 40_000)
    try:
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            load_and_interrupt(path)
        assert time.monotonic() - begin < 10
    finally:
        _core.io_config(**before)
    copied = cuda.stat(fake_cuda.COPIED_BYTES)
    time.sleep(0.1)
    assert cuda.stat(fake_cuda.COPIED_BYTES) == copied < 200 << 20
    cuda.mode(LAZY)
    assert len(load_file(path, device="cuda")) == 200


def test_many_threads_and_devices(cuda, path):
    cuda.mode(ASYNC, 100)

    def work(number):
        for _ in range(3):
            same(load_file(path, device=f"cuda:{number % 2}"))

    together(work, range(6))


FORKED = """
import os, sys
from support import fake_cuda
fake = fake_cuda.FakeCuda(fake_cuda.library())
fake.install()
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
path = sys.argv[1]
handle = safe_open(path, "pt", device="cuda")
wanted = handle.get_tensor("half")
loader = safe_open(path, "pt").prefetch(device="cuda")
child = os.fork()
if child == 0:
    try:
        handle.get_tensor("half")
        os._exit(1)
    except SafetensorError as error:
        if "forked" not in str(error): os._exit(2)
    try:
        loader.take("half")
        os._exit(3)
    except SafetensorError as error:
        if "forked" not in str(error): os._exit(4)
    loader.close()
    if not torch.equal(load_file(path)["half"], wanted): os._exit(5)
    with safe_open(path, "pt").prefetch() as own:
        if not torch.equal(own.take("half"), wanted): os._exit(6)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(loader.take("half"), wanted)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked(cuda, path):
    """A forked process cannot use the device, and the error says so; it can load to the CPU."""
    if "asan" in _core.__version__:
        pytest.skip("the sanitizer's allocator may be locked for ever in a forked process")
    children.run(FORKED, path)


OFF = """
import sys
from support import fake_cuda
fake = fake_cuda.FakeCuda(fake_cuda.library())
fake.install()
from safetensors.torch import load_file
try:
    load_file(sys.argv[1], device="cuda")
except Exception as error:
    print(type(error).__name__)
print("copies", fake.calls("cuMemcpyHtoDAsync_v2"), "inits", fake.calls("cuInit"))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch would load to the real device")
def test_switched_off(cuda, path):
    """With SAFETENSORS_CUDA_ENGINE=off torch makes the copies, which fails here without CUDA."""
    env = {**os.environ, "SAFETENSORS_CUDA_ENGINE": "off"}
    assert children.run(OFF, path, env=env).split()[-4:] == ["copies", "0", "inits", "0"]


def test_unknown_value_of_the_switch(cuda, path):
    """A misspelt value is an error, and not the default."""
    env = {**os.environ, "SAFETENSORS_CUDA_ENGINE": "of"}
    assert children.run(OFF, path, env=env).split() == [
        "SafetensorError",
        "copies",
        "0",
        "inits",
        "0",
    ]


def test_amd_devices_are_loaded_by_torch(cuda, path, monkeypatch):
    """A ROCm build of torch calls them cuda; an installed CUDA driver is not used."""
    monkeypatch.setattr(torch.version, "hip", "6.0")
    device = FakeDevice(monkeypatch)
    same(load_file(path, device="cuda:1"))
    same(load_files([path], device="cuda:1"))
    assert set(device.made) == {"cuda:1"}
    assert device.log_of("copy")
    assert cuda.calls("cuInit") == 0


@pytest.mark.slow
def test_nothing_is_linked():
    """The module links no CUDA library, and loads none before a device is used."""
    readelf = subprocess.run(["readelf", "-d", _core.__file__], capture_output=True, text=True)
    if readelf.returncode != 0:
        pytest.skip("readelf is not installed")
    needed = re.findall(r"NEEDED.*\[(.*)\]", readelf.stdout)
    assert needed
    assert not [name for name in needed if re.search("cuda|nv|torch", name)]
    script = (
        "import safetensors.torch, sys\nprint([l for l in open('/proc/self/maps') "
        "if 'libcuda.so' in l])"
    )
    assert children.run(script).strip() == "[]"


def test_settings():
    """They apply to all loads of the process; test_call_errors.py has those that are refused."""
    before = _core.io_config()
    assert set(before) == {"threads", "chunk_bytes", "staging_bytes", "streams", "slots"}
    try:
        assert _core.io_config(threads=3, chunk_bytes=8192)["chunk_bytes"] == 8192
        assert _core.io_config()["threads"] == 3
    finally:
        _core.io_config(**before)


def test_pinned_memory_is_kept_and_given_back(cuda, path):
    """By one thread: how many of several threads get memory depends on their timing."""
    _core.release_staging()
    lost = cuda.stat(fake_cuda.RANGES_NBYTES)  # by devices that died in other tests
    before = _core.io_config()
    _core.io_config(threads=1)
    try:
        load_file(path, device="cuda")
        kept = cuda.stat(fake_cuda.RANGES_NBYTES) - lost
        assert kept > 0
        load_file(path, device="cuda")
        assert cuda.stat(fake_cuda.RANGES_NBYTES) == lost + kept
    finally:
        _core.io_config(**before)
    assert _core.release_staging() == kept
    assert cuda.stat(fake_cuda.RANGES_NBYTES) == lost
    assert _core.release_staging() == 0
    same(load_file(path, device="cuda"))
