"""CUDA without a GPU: the engine loads a driver over this machine's memory, and torch makes its
tensors on the CPU. All code between is the real one."""

import contextlib
import ctypes
import os
import pathlib
import threading
import weakref

EAGER, ASYNC, LAZY, GONE = range(4)
PAGEABLE_COPIES, CALLS_WITHOUT_CONTEXT, COPIED_BYTES = 0, 1, 2
RANGES_NBYTES, CONTEXT_DEPTH = 10, 11
STATS = {"pageable": PAGEABLE_COPIES, "no context": CALLS_WITHOUT_CONTEXT, "copied": COPIED_BYTES}


def library():
    """Where the driver is; None when it was not built (cmake --build --preset dev)."""
    root = pathlib.Path(__file__).parents[3]
    built = root / "build" / "dev" / "tests" / "device" / "libfakecuda.so"
    found = pathlib.Path(os.environ.get("SAFETENSORS_FAKE_CUDA", built))
    return str(found) if found.exists() else None


class FakeCuda:
    """The driver's controls, and what torch was asked for."""

    def __init__(self, path):
        self.driver = ctypes.CDLL(path)
        self.driver.fakecuda_fault.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        self.driver.fakecuda_stat.restype = ctypes.c_long
        self.driver.fakecuda_calls.restype = ctypes.c_long
        self.driver.cuMemsetD8Async.argtypes = [
            ctypes.c_ulonglong, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p,
        ]  # fmt: skip
        self.made = []  # (shape, dtype, device) of each tensor
        self.warmed = []
        self.capturing = False
        self.fail_at = None  # the number of the tensor that there is no memory for
        self._of_thread = threading.local()

    @property
    def stream(self):
        """The thread's current stream."""
        return getattr(self._of_thread, "stream", 0)

    @stream.setter
    def stream(self, stream):
        self._of_thread.stream = stream

    @contextlib.contextmanager
    def context(self):
        """The first device's context is the thread's meanwhile, for calls of the driver."""
        context = ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.driver.cuCtxPushCurrent_v2(context) == 0
        try:
            yield
        finally:
            self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))

    def make_stream(self):
        """A stream of the first device, as the driver knows it."""
        stream = ctypes.c_void_p()
        with self.context():
            assert self.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        return stream.value

    def install(self):
        """Take the driver's place and torch's. Returns what puts torch's back."""
        import torch

        from safetensors import _core
        from safetensors._torch import transfer

        _core._use_cuda_driver(self.driver._name)
        hooks = {"empty": self.empty(torch), "warm": lambda *args: self.warmed.append(args)}
        hooks["raw_stream"] = lambda index: self.stream
        hooks["is_capturing"] = lambda: self.capturing
        hooks["record_stream"] = lambda tensor, index: None
        before = {name: getattr(transfer, name) for name in hooks}
        for name, hook in hooks.items():
            setattr(transfer, name, hook)

        def put_back():
            for name, hook in before.items():
                setattr(transfer, name, hook)
            _core._use_cuda_driver("")

        return put_back

    def empty(self, torch):
        """As torch.empty, on the CPU, and filled with what nobody would take for data."""
        real = torch.empty

        def empty(shape, *, dtype, device):
            self.made.append((tuple(shape), dtype, str(device)))
            if self.fail_at is not None and len(self.made) > self.fail_at:
                raise torch.OutOfMemoryError("CUDA out of memory (as the test asked for)")
            tensor = real(shape, dtype=dtype)
            if tensor.nbytes:
                ctypes.memset(tensor.data_ptr(), 0xEE, tensor.nbytes)
            return tensor

        return empty

    def mode(self, mode, delay_us=0):
        """How the device works from now on."""
        self.driver.fakecuda_mode(mode, delay_us)

    def fault(self, function, nth, code):
        """The nth call of a function returns an error."""
        self.driver.fakecuda_fault(function.encode(), nth, code)

    def stat(self, which):
        """One of the driver's counts."""
        return self.driver.fakecuda_stat(which)

    def calls(self, function):
        """Calls of a function since the test began."""
        return self.driver.fakecuda_calls(function.encode())

    def clear(self):
        """As if nothing had happened."""
        self.driver.fakecuda_clear()
        self.made.clear()
        self.warmed.clear()


class Allocator:
    """Gives memory out as torch does for CUDA.

    A dropped tensor's memory is the next tensor's of that size on the stream that it was made on.
    Only work of streams that were recorded for the tensor is waited for.
    """

    def __init__(self, cuda, monkeypatch):
        from safetensors._torch import transfer

        self._cuda = cuda
        self._free = []
        self._blocks = {}  # by address
        monkeypatch.setattr(transfer, "empty", self.empty)
        monkeypatch.setattr(transfer, "record_stream", self.record_stream)

    def empty(self, shape, *, dtype, device):
        """As torch.empty."""
        import torch

        nbytes = torch.Size(shape).numel() * dtype.itemsize
        form = (self._cuda.stream, nbytes)
        usable = [block for block in self._free if block["form"] == form and self._is_done(block)]
        block = usable[0] if usable else {"form": form, "memory": bytearray(nbytes)}
        if usable:
            self._free.remove(block)
        block["recorded"], block["events"] = set(), []
        tensor = torch.frombuffer(block["memory"], dtype=dtype).reshape(shape)
        self._blocks[tensor.data_ptr()] = block
        weakref.finalize(tensor, self._drop, block)
        return tensor

    def record_stream(self, tensor, index):
        """As the tensor's method, with the current stream."""
        self._blocks[tensor.data_ptr()]["recorded"].add(self._cuda.stream)

    def _drop(self, block):
        with self._cuda.context():
            for stream in block["recorded"]:
                event = ctypes.c_void_p()
                assert self._cuda.driver.cuEventCreate(ctypes.byref(event), 2) == 0
                assert self._cuda.driver.cuEventRecord(event, ctypes.c_void_p(stream)) == 0
                block["events"].append(event)
        self._free.append(block)

    def _is_done(self, block):
        with self._cuda.context():
            return all(self._cuda.driver.cuEventQuery(event) == 0 for event in block["events"])
