"""CUDA without a GPU: the engine loads a driver over this machine's memory, and torch makes its
tensors on the CPU. All code between is the real one."""

import ctypes
import os
import pathlib

EAGER, ASYNC, LAZY, GONE = range(4)
PAGEABLE_COPIES, CALLS_WITHOUT_CONTEXT, COPIED_BYTES = 0, 1, 2
RANGES_NBYTES, CONTEXT_DEPTH = 9, 10
STATS = {"pageable": PAGEABLE_COPIES, "no context": CALLS_WITHOUT_CONTEXT, "copied": COPIED_BYTES}


def library():
    """Where the driver is; None when it was not built (cmake --build --preset dev)."""
    root = pathlib.Path(__file__).parents[2]
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
        self.stream = 0

    def install(self):
        """Take the driver's place and torch's. Returns what puts torch's back."""
        import torch

        from safetensors import _core, _torch_accel

        _core._use_cuda_driver(self.driver._name)
        hooks = {"empty": self.empty(torch), "warm": lambda *args: self.warmed.append(args)}
        hooks["raw_stream"] = lambda index: self.stream
        hooks["is_capturing"] = lambda: self.capturing
        before = {name: getattr(_torch_accel, name) for name in hooks}
        for name, hook in hooks.items():
            setattr(_torch_accel, name, hook)

        def put_back():
            for name, hook in before.items():
                setattr(_torch_accel, name, hook)
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
