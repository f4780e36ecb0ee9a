"""CUDA without a GPU.

The compiled module loads a fake driver whose device memory is the host's, and torch's hooks
allocate tensors on the CPU. Everything in between is real.
"""

import contextlib
import ctypes
import os
import pathlib
import threading
import weakref

EAGER, ASYNC, LAZY, GONE = range(4)
PAGEABLE_COPIES, CALLS_WITHOUT_CONTEXT, COPIED_BYTES = 0, 1, 2
RANGES_NBYTES, CONTEXT_DEPTH = 10, 11


def library():
    """Returns the fake driver's path; None if it is not built (cmake --build --preset dev)."""
    root = pathlib.Path(__file__).parents[3]
    built = root / "build" / "dev" / "tests" / "device" / "libfakecuda.so"
    found = pathlib.Path(os.environ.get("SAFETENSORS_FAKE_CUDA", built))
    return str(found) if found.exists() else None


class FakeCuda:
    """The controls of the fake driver, and a log of the calls to torch."""

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
        """Makes the first device's context current, for calls of the driver."""
        context = ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.driver.cuCtxPushCurrent_v2(context) == 0
        try:
            yield
        finally:
            self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))

    def make_stream(self):
        """Returns the driver's handle of a new stream on the first device."""
        stream = ctypes.c_void_p()
        with self.context():
            assert self.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        return stream.value

    def install(self):
        """Replaces the driver and torch's hooks. Returns a function that restores them."""
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
        """Returns torch.empty for the CPU, filled with bytes that are no test's data."""
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
        """Sets how the device runs its work from now on."""
        self.driver.fakecuda_mode(mode, delay_us)

    def fault(self, function, nth, code):
        """Makes the nth call of a function return an error."""
        self.driver.fakecuda_fault(function.encode(), nth, code)

    def stat(self, which):
        """Returns one of the driver's counters."""
        return self.driver.fakecuda_stat(which)

    def calls(self, function):
        """Returns the number of calls of a function since the test began."""
        return self.driver.fakecuda_calls(function.encode())

    def clear(self):
        """Resets all counters and logs."""
        self.driver.fakecuda_clear()
        self.made.clear()
        self.warmed.clear()


class Allocator:
    """Allocates memory as torch does for CUDA.

    The memory of a freed tensor is reused by the next tensor of its size on the stream that it was
    allocated on, once work on the streams that were recorded for it is done.
    """

    def __init__(self, cuda, monkeypatch):
        from safetensors._torch import transfer

        self._cuda = cuda
        self._free = []
        self._blocks = {}  # by address
        monkeypatch.setattr(transfer, "empty", self.empty)
        monkeypatch.setattr(transfer, "record_stream", self.record_stream)

    def empty(self, shape, *, dtype, device):
        """Does what torch.empty does."""
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
        """Does what the tensor's method does with the current stream."""
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
