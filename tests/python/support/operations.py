"""The operations that tests run on both packages. Results are plain data that pickle can send.

The same functions run in the test's process on our package and in
upstream_server.py on upstream's: both are imported as `safetensors`.
"""

import ctypes
import re
from typing import Any, NamedTuple

from support import dtype_table
from support.file_builder import Raw


class Failure(NamedTuple):
    """An exception, without the object."""

    kind: str
    bases: tuple
    text: str
    errno: int | None


class Outcome(NamedTuple):
    """What an operation returned or raised."""

    value: Any
    failure: Failure | None

    @property
    def ok(self):
        """Whether it returned."""
        return self.failure is None

    def unwrap(self):
        """Returns the value; raises AssertionError if there is none."""
        assert self.failure is None, f"{self.failure.kind}: {self.failure.text}"
        return self.value


class Array(NamedTuple):
    """The type, shape and bytes of a NumPy array or a PyTorch tensor."""

    dtype: str
    shape: tuple
    data: bytes


def run(name, /, *args, **kwargs):
    """Runs a function of this module by its name."""
    try:
        return Outcome(plain(globals()[name](*args, **kwargs)), None)
    except KeyboardInterrupt:
        raise
    # A panic of upstream's derives from BaseException.
    except BaseException as error:
        return Outcome(None, failure(error))


def failure(error):
    """Returns a Failure that describes an exception."""
    names = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    return Failure(names[0], names[1:], str(error), getattr(error, "errno", None))


def plain(value):
    """Returns `value` with arrays as Array, and objects that cannot be pickled as their repr."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (Array, Raw)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if hasattr(value, "untyped_storage"):
        return Array(str(value.dtype), tuple(value.shape), torch_bytes(value))
    if hasattr(value, "tobytes"):
        return Array(str(value.dtype), value.shape, value.tobytes())
    return repr(value)


def torch_bytes(tensor):
    """Returns the bytes of a tensor on the CPU in C order."""
    import torch

    if tensor.numel() == 0:
        return b""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def framework_module(framework):
    """Returns safetensors.torch or safetensors.numpy."""
    if framework == "pt":
        import safetensors.torch as module
    else:
        import safetensors.numpy as module
    return module


def to_tensor(framework, tensor):
    """Returns a Raw as an array or tensor of a framework."""
    import numpy

    flat = numpy.frombuffer(bytearray(tensor.data), numpy.uint8)
    if framework == "np":
        return flat.view(dtype_table.numpy_dtype(tensor.dtype)).reshape(tensor.shape)
    import torch

    dtype = dtype_table.torch_dtype(tensor.dtype)
    shape = dtype_table.torch_shape(tensor.dtype, tensor.shape)
    if not tensor.data:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(flat).view(dtype).reshape(shape)


def to_tensors(framework, tensors):
    """Returns a dict for `save` of a framework."""
    return {name: to_tensor(framework, tensor) for name, tensor in tensors.items()}


def look(path, framework, backend):
    """Returns all properties of a handle, without the tensors."""
    import safetensors

    with safetensors.safe_open(path, framework, backend=backend) as handle:
        names = handle.keys()
        slices = {name: handle.get_slice(name) for name in names}
        return {
            "keys": names,
            "offset_keys": handle.offset_keys(),
            "metadata": handle.metadata(),
            "entries": {n: (s.get_dtype(), s.get_shape()) for n, s in slices.items()},
        }


def get_tensor_each(path, framework, backend):
    """Returns every tensor of a file by get_tensor."""
    import safetensors

    with safetensors.safe_open(path, framework, backend=backend) as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118


def get_tensors(path, framework, backend):
    """Returns every tensor of a file by get_tensors."""
    import safetensors

    with safetensors.safe_open(path, framework, backend=backend) as handle:
        return handle.get_tensors()


def get_slice(path, framework, backend, name, index):
    """Returns one slice of one tensor."""
    import safetensors

    with safetensors.safe_open(path, framework, backend=backend) as handle:
        return handle.get_slice(name)[index]


def load_file(path, framework, backend):
    """Returns the result of a framework's load_file."""
    return framework_module(framework).load_file(path, backend=backend)


def load(content, framework):
    """Returns the result of a framework's load."""
    return framework_module(framework).load(content)


def deserialize(content):
    """Returns the result of deserialize as a dict of Raw, because upstream's order is random."""
    import safetensors

    pairs = safetensors.deserialize(content)
    found = {n: Raw(e["dtype"], tuple(e["shape"]), bytes(e["data"])) for n, e in pairs}
    assert len(found) == len(pairs)
    return found


def keys_by_file(path):
    """Returns the names in a file, with the cheapest call that reads its whole header."""
    import safetensors

    return safetensors.safe_open(path, "np").keys()


def keys_by_bytes(content):
    """Returns the names in a file's bytes."""
    return sorted(deserialize(content))


def save(tensors, metadata, framework):
    """Returns the result of a framework's save of a dict of Raw."""
    return framework_module(framework).save(to_tensors(framework, tensors), metadata)


def save_file(tensors, path, metadata, framework):
    """Runs a framework's save_file and returns the bytes of the file."""
    framework_module(framework).save_file(to_tensors(framework, tensors), path, metadata)
    with open(path, "rb") as file:
        return file.read()


def specs(tensors):
    """Returns TensorSpecs of a dict of Raw, and the objects that own their memory."""
    from safetensors import TensorSpec

    kept, described = [], {}
    for name, tensor in tensors.items():
        row, shape = dtype_table.BY_NAME[tensor.dtype], tensor.shape
        buffer = ctypes.create_string_buffer(tensor.data, max(len(tensor.data), 1))
        kept.append(buffer)
        described[name] = TensorSpec(
            dtype=row.spec,
            shape=list(dtype_table.torch_shape(tensor.dtype, shape)),
            data_ptr=ctypes.addressof(buffer),
            data_len=len(tensor.data),
        )
    return described, kept


def serialize(tensors, metadata):
    """Returns the result of serialize for a dict of Raw."""
    import safetensors

    described, kept = specs(tensors)
    content = safetensors.serialize(described, metadata)
    assert len(kept) == len(tensors)
    return content


def serialize_file(tensors, path, metadata):
    """Runs serialize_file and returns the bytes of the file."""
    import safetensors

    described, kept = specs(tensors)
    safetensors.serialize_file(described, path, metadata)
    assert len(kept) == len(tensors)
    with open(path, "rb") as file:
        return file.read()


def evaluate(source, /, **variables):
    """Evaluates an expression with the names safetensors, safe_open, np, torch, sn and st."""
    import numpy

    import safetensors
    import safetensors.numpy

    scope = dict(variables, np=numpy, sn=safetensors.numpy)
    scope.update(safetensors=safetensors, safe_open=safetensors.safe_open)
    # PyTorch takes seconds to import, and need not be there.
    if re.search(r"\b(torch|st)\b", source):
        import torch

        import safetensors.torch

        scope.update(torch=torch, st=safetensors.torch)
    return eval(source, scope)


def surface(modules):
    """Returns {module: {name: [kind, parameters]}} of the modules that can be imported."""
    import importlib
    import inspect

    def parameters(member):
        try:
            signature = inspect.signature(member)
        except (TypeError, ValueError):
            return None
        listed = list(signature.parameters.values())
        return [(p.name, p.kind.name, repr(p.default)) for p in listed]

    found = {}
    for module in modules:
        loaded = importlib.import_module(module)
        members = {name: getattr(loaded, name) for name in dir(loaded)}
        found[module] = {
            name: [type(member).__name__, parameters(member) if callable(member) else None]
            for name, member in members.items()
            if not name.startswith("__") and not inspect.ismodule(member)
        }
    return found
