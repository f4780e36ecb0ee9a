"""A binding of the C library by ctypes, and a program that uses it.

    python examples/ctypes/bindings.py LIBRARY MODEL TENSOR QUANTISED WEIGHT FILE

Lists MODEL, reads a slice of TENSOR as floats, writes it to FILE, reads FILE through callbacks, and
decodes row 1 of a WEIGHT of the model QUANTISED. Floats are printed as their bits.
"""

import contextlib
import ctypes as c
import os
import sys
from collections.abc import Iterator
from typing import Any

F32 = 4
RANGE = 2


class Error(c.Structure):
    _fields_ = [
        ("code", c.c_int32),
        ("os_error", c.c_int32),
        ("detail", c.c_int32),
        ("path", c.c_uint16),
        ("subject", c.c_uint16),
        ("text", c.c_char * 1008),
    ]


class Tensor(c.Structure):
    _fields_ = [
        ("name", c.c_void_p),
        ("name_size", c.c_size_t),
        ("shape", c.POINTER(c.c_uint64)),
        ("rank", c.c_size_t),
        ("data", c.c_void_p),
        ("nbytes", c.c_uint64),
        ("begin", c.c_uint64),
        ("dtype", c.c_int32),
        ("file", c.c_uint32),
    ]


class Index(c.Structure):
    _fields_ = [
        ("kind", c.c_int32),
        ("count", c.c_uint32),
        ("start", c.c_int64),
        ("stop", c.c_int64),
        ("step", c.c_int64),
    ]


class Request(c.Structure):
    _fields_ = [
        ("tensor", c.POINTER(Tensor)),
        ("indices", c.POINTER(Index)),
        ("index_count", c.c_size_t),
        ("to", c.c_void_p),
        ("room", c.c_uint64),
        ("dtype", c.c_int32),
        ("reserved", c.c_uint32),
    ]


READ = c.CFUNCTYPE(c.c_int64, c.c_void_p, c.c_uint64, c.c_void_p, c.c_size_t, c.POINTER(Error))
RELEASE = c.CFUNCTYPE(None, c.c_void_p)


class Source(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("context", c.c_void_p),
        ("nbytes", c.c_uint64),
        ("read", READ),
        ("release", RELEASE),
        ("concurrency", c.c_uint32),
        ("is_request", c.c_uint32),
        ("chunk_nbytes", c.c_uint64),
        ("gap_nbytes", c.c_uint64),
    ]


class Weight(c.Structure):
    _fields_ = [
        *(
            (f"{name}{end}", kind)
            for name in ("name", "source", "type_name", "scheme")
            for end, kind in (("", c.c_void_p), ("_size", c.c_size_t))
        ),
        ("shape", c.POINTER(c.c_int64)),
        ("rank", c.c_size_t),
        *((name, c.c_uint64) for name in ("stored_nbytes", "group_rows", "group_columns")),
        ("norm_offset", c.c_double),
        *((name, c.c_uint32) for name in ("type", "scales_type")),
        *((name, c.c_int32) for name in ("storage", "quant_mode")),
        *((name, c.c_uint32) for name in ("bits", "part_count", "flags", "reserved")),
    ]


class Value(c.Structure):
    _fields_ = [
        ("kind", c.c_int32),
        ("stored_type", c.c_int32),
        ("integer", c.c_int64),
        ("number", c.c_double),
        ("string", c.c_void_p),
        ("string_size", c.c_size_t),
        ("items", c.c_void_p),
        ("count", c.c_size_t),
    ]


class SafetensorsError(Exception):
    """What a function of the library failed with."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.text.decode(errors="replace"))
        self.code = error.code


def text_of(data: int, size: int) -> str:
    """Copies a text of the library."""
    return c.string_at(data, size).decode(errors="replace")


class Library:
    """The C functions. ctypes releases the GIL while one runs."""

    def __init__(self, path: str) -> None:
        self._library = c.CDLL(path)
        self._library.safetensors_count.restype = c.c_size_t
        self._library.safetensors_dtype_name.restype = c.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that can fail. A str becomes a pointer and a size."""
        flat: list[Any] = []
        for each in arguments:
            if isinstance(each, str):
                text = each.encode()
                flat += [c.c_char_p(text), c.c_size_t(len(text))]
            else:
                flat.append(each)
        error = Error()
        if getattr(self._library, f"safetensors_{name}")(*flat, c.byref(error)) != 0:
            raise SafetensorsError(error)

    @contextlib.contextmanager
    def handle(self, open_name: str, free_name: str, *arguments: Any) -> Iterator[c.c_void_p]:
        """Opens something and frees it at the end."""
        handle = c.c_void_p()
        self.call(open_name, *arguments, c.byref(handle))
        try:
            yield handle
        finally:
            getattr(self._library, f"safetensors_{free_name}")(handle)

    def open_model(self, path: str) -> contextlib.AbstractContextManager[c.c_void_p]:
        return self.handle("open_model", "close", path, None)

    def stream(self, descriptor: int) -> contextlib.AbstractContextManager[c.c_void_p]:
        """Opens a file that the library reads by callbacks, on threads of its own."""

        @READ
        def read(_context: int, offset: int, to: int, nbytes: int, error: Any) -> int:
            try:
                data = os.pread(descriptor, nbytes, offset)
            except OSError as failure:
                error.contents.os_error = failure.errno
                return -1
            c.memmove(to, data, len(data))
            return len(data)

        release = RELEASE(lambda _context: os.close(descriptor))
        size = os.fstat(descriptor).st_size
        source = Source(c.sizeof(Source), None, size, read, release)
        self._callbacks = (read, release)  # ctypes does not keep them
        return self.handle("open_source", "close", c.byref(source), "stream", None)

    def tensors(self, file: c.c_void_p) -> Iterator[Tensor]:
        for index in range(self._library.safetensors_count(file)):
            tensor = Tensor()
            self.call("at", file, c.c_size_t(index), c.byref(tensor))
            yield tensor

    def find(self, file: c.c_void_p, name: str) -> Tensor:
        tensor = Tensor()
        self.call("find", file, name, c.byref(tensor))
        return tensor

    def dtype_name(self, dtype: int) -> str:
        return self._library.safetensors_dtype_name(dtype).decode()

    def floats(self, file: c.c_void_p, tensor: Tensor, indices: list[Index], count: int) -> Any:
        """Reads the elements that the indices select as floats."""
        values = (c.c_float * count)()
        request = Request(
            c.pointer(tensor),
            (Index * len(indices))(*indices),
            len(indices),
            c.addressof(values),
            c.sizeof(values),
            F32,
        )
        self.call("read", file, c.byref(request), c.c_size_t(1), None)
        return values

    def write(self, path: str, name: str, shape: tuple[int, ...], values: Any) -> None:
        """Writes a file of one tensor of floats."""
        text = name.encode()
        spec = Tensor(
            name=c.cast(c.c_char_p(text), c.c_void_p),
            name_size=len(text),
            shape=(c.c_uint64 * len(shape))(*shape),
            rank=len(shape),
            dtype=F32,
        )
        arguments = (path, c.byref(spec), c.c_size_t(1), None)
        with self.handle("writer_create", "writer_free", *arguments) as writer:
            nbytes = c.c_uint64(c.sizeof(values))
            self.call("writer_write", writer, name, c.c_uint64(0), values, nbytes)
            self.call("writer_commit", writer)

    def config(self, model: c.c_void_p, field: str) -> Value:
        value = Value()
        self.call("weights_config", model, field, c.byref(value))
        return value

    def weight(self, model: c.c_void_p, name: str) -> Weight:
        weight = Weight()
        self.call("weights_find", model, name, c.byref(weight))
        return weight

    def row(self, model: c.c_void_p, name: str, row: int, columns: int) -> Any:
        values = (c.c_float * columns)()
        first, rows, room = c.c_int64(row), c.c_int64(1), c.c_uint64(c.sizeof(values))
        self.call("weights_decode", model, name, first, rows, F32, values, room, None)
        return values


def show(what: str, values: Any) -> None:
    bits = (c.c_uint32 * len(values)).from_buffer(values)
    print(what, *(f"{each:08x}" for each in bits))


def main(library: str, model: str, name: str, quantised: str, weight: str, path: str) -> None:
    lib = Library(library)
    with lib.open_model(model) as file:
        for tensor in lib.tensors(file):
            shape = tensor.shape[: tensor.rank]
            print(
                "tensor",
                text_of(tensor.name, tensor.name_size),
                lib.dtype_name(tensor.dtype),
                shape,
            )
        # Every second of the first four rows, and columns 1 to 3.
        part = [Index(RANGE, 0, 0, 4, 2), Index(RANGE, 0, 1, 4, 1)]
        values = lib.floats(file, lib.find(file, name), part, 6)
        show("slice", values)
        lib.write(path, "slice", (2, 3), values)
        with lib.stream(os.open(path, os.O_RDONLY)) as streamed:
            show("streamed", lib.floats(streamed, lib.find(streamed, "slice"), [], 6))
        try:
            lib.find(file, "no such tensor")
        except SafetensorsError as error:
            print("missing", error.code)
    with lib.handle("weights_open", "weights_close", quantised, None) as opened:
        architecture = lib.config(opened, "architecture")
        layers = lib.config(opened, "n_layers").integer
        print("model", text_of(architecture.string, architecture.string_size), layers)
        found = lib.weight(opened, weight)
        print("weight", text_of(found.type_name, found.type_name_size), found.part_count)
        show("row", lib.row(opened, weight, 1, found.shape[found.rank - 1]))


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit("usage: bindings.py LIBRARY MODEL TENSOR QUANTISED WEIGHT FILE")
    try:
        main(*sys.argv[1:])
    except SafetensorsError as error:
        sys.exit(str(error))
