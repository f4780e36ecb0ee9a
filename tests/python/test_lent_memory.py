"""Python code that keeps memory which it was lent gets an error, and never reads freed memory."""

import gc
import hashlib
import io
import os
import pathlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from safetensors import SafetensorError, safe_create
from support import children, forked

SIZE = 300_000
SPECS = {"a": ("U8", (SIZE,))}
TREE = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [*TREE.glob("src/python/*.cpp"), *TREE.glob("weights/bindings/*.cpp")]

# Each lends memory to `target`, and drops its owner.
PLACES = {
    "array": """
        with safe_create(target, SPECS) as w:
            w.write("a", np.full(SIZE, 7, np.uint8))
    """,
    "array of bfloat16": """
        ml_dtypes = __import__("ml_dtypes")
        with safe_create(target, {"a": ("BF16", (SIZE,))}) as w:
            w.write("a", np.full(SIZE, 7, ml_dtypes.bfloat16))
    """,
    "array that is prepared": """
        with safe_create(target, {"a": ("F32", (SIZE,))}) as w:
            w.write("a", np.full(SIZE, 7, ">f4"))
    """,
    "bytearray": """
        with safe_create(target, SPECS) as w:
            w.write("a", bytearray(b"7" * SIZE))
    """,
    "bytearray that shrinks": """
        data = bytearray(b"7" * SIZE)
        with contextlib.suppress(SafetensorError), safe_create(target, SPECS) as w:
            w.write("a", data)
        try:
            data.clear()
        except BufferError:
            raise SafetensorError("kept a reference to the bytearray") from None
    """,
    "small tensors": """
        specs = {f"a{i}": ("F32", (10,)) for i in range(1000)}
        with safe_create(target, specs) as w:
            for name in specs:
                w.write(name, np.full(10, 7, np.float32))
    """,
    "part": """
        with safe_create(target, SPECS) as w:
            w.write_slice("a", slice(5, SIZE - 5), np.full(SIZE - 10, 7, np.uint8))
    """,
    "stream of a tensor": """
        with safe_create(target, SPECS) as w, w.open("a") as stream:
            stream.write(b"7" * SIZE)
    """,
    "copy of a mapped file": """
        with safe_open(path, "np", backend="mmap") as f, safe_create(target, specs_of(f)) as w:
            w.copy(f)
    """,
    "copy of a file that is read": """
        with safe_open(path, "np", backend="pread") as f, safe_create(target, specs_of(f)) as w:
            w.copy(f)
    """,
    "cast": """
        with safe_open(path, "np") as f, safe_create(target, {"a": ("F16", (SIZE,))}) as w:
            w.copy(f, cast=True)
    """,
    "file object that seeks": """
        class Seeking(io.BytesIO):
            def write(self, view):
                target(0, view)
                return len(view)

        with safe_create(Seeking(), SPECS) as w:
            w.write("a", np.full(SIZE, 7, np.uint8))
    """,
    "file object in order": """
        class Ordered:
            def write(self, view):
                target(0, view)

        with safe_create(Ordered(), {"a": ("U8", (SIZE,)), "b": ("U8", (SIZE,))}) as w:
            w.write("b", np.full(SIZE, 7, np.uint8))
            w.write("a", np.full(SIZE, 7, np.uint8))
    """,
    "file of fsspec": """
        from fsspec.implementations.memory import MemoryFile

        class Kept(MemoryFile):
            def write(self, view):
                target(0, view)
                return super().write(view)

        with safe_create(Kept(None, "m"), SPECS) as w:
            w.write("a", np.full(SIZE, 7, np.uint8))
    """,
    "save in the background": """
        array = np.full(SIZE, 7, np.uint8)
        specs = safetensors.numpy._flatten({"a": array}, [])
        name = f"{path}.{target.way}"
        start_save(specs, {"a": target}, name, SaveArguments()).result(60)
    """,
    "part of a buffer that is used again": """
        scratch = bytearray(b"7" * SIZE)
        with safe_create(target, SPECS) as w:
            w.write("a", memoryview(scratch)[:SIZE])
        scratch.clear()
    """,
}

PRELUDE = f"""
    import contextlib, io
    import numpy as np
    import safetensors.numpy
    from safetensors import SafetensorError, safe_create, safe_open, specs_of
    from safetensors._saving.arguments import SaveArguments
    from safetensors._saving.save_async import start_save
    from safetensors.numpy import save_file
    from support import keepers

    SIZE, SPECS = {SIZE}, {SPECS}
    path = sys.argv[1]
    save_file({{"a": np.full(SIZE, 7, np.float32)}}, path)

    def lend(target):
"""


def script(place, call):
    return PRELUDE + PLACES[place] + "\n" + call


@pytest.mark.parametrize("place", PLACES)
def test_what_is_kept_is_an_error(tmp_path, place):
    if "bfloat16" in place:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if "fsspec" in place:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    code = script(place, "    keepers.try_all(lend)\n")
    children.run(code, tmp_path / "m.safetensors", imports=forked.NUMPY)


@pytest.mark.parametrize("place", ["array", "small tensors", "save in the background"])
def test_a_target_that_raises_keeps_the_view_in_its_traceback(tmp_path, place):
    """Its own error comes out, and the view can be read in a debugger."""
    call = """
    keeper = keepers.Keeper("raised")
    try:
        lend(keeper)
    except LookupError as error:
        found = error
    junk = [np.full(SIZE, 9, np.uint8) for _ in range(50)]
    assert bytes(keepers.view_of(found)[-100:]) == found.args[0]
    """
    children.run(script(place, call), tmp_path / "m.safetensors", imports=forked.NUMPY)


@pytest.mark.parametrize("how", ["bfloat16", "float32"])
def test_tensors_of_torch(how):
    """A tensor of torch.frombuffer refers to the memoryview, but exports nothing. And the caller
    may give the tensor that was written another storage."""
    children.run(
        """
        import warnings
        import torch
        from safetensors import safe_create
        from support import keepers
        warnings.simplefilter("ignore")  # the memory is read-only
        dtype = getattr(torch, sys.argv[1])
        name = {"bfloat16": "BF16", "float32": "F32"}[sys.argv[1]]

        def lend(target):
            tensor = torch.full((300_000,), 7, dtype=dtype)
            try:
                with safe_create(target, {"a": (name, (300_000,))}) as w:
                    w.write("a", tensor)
            finally:
                tensor.data = torch.empty(0, dtype=dtype)

        keepers.try_all(lend, (*keepers.EVERY_WAY, "torch"))
        """,
        how,
        imports=forked.TORCH,
    )


def test_hashlib_that_was_replaced(tmp_path):
    """Python's own gets the memory of the file; another one, which may keep it, a copy."""
    children.run(
        """
        import gc, hashlib
        import numpy as np
        from safetensors import safe_open
        from safetensors.numpy import save_file
        path = sys.argv[1]
        save_file({"a": np.full(500_000, 7, np.uint8)}, path)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        kept, made = [], hashlib.sha256

        class Keeping:
            def __init__(self, data=b""):
                self._hash = made(data)
            def update(self, data):
                kept.append(memoryview(data)[0:])
                self._hash.update(data)
            def hexdigest(self):
                return self._hash.hexdigest()

        for kind in (made, Keeping):
            hashlib.sha256 = kind
            with safe_open(path, "np", expected_hashes={path: digest}) as f:
                f.get_tensor("a")
        gc.collect()
        assert kept and all(set(bytes(each[-100:])) <= {7} for each in kept)
        """,
        tmp_path / "m.safetensors",
    )


def written(f, size=SIZE, **options):
    data = np.arange(size, dtype=np.uint32).view(np.uint8)[:size]
    with safe_create(f, {"a": ("U8", (size,))}, **options) as w:
        w.write("a", data)
    return data.tobytes()


def test_the_writer_has_failed():
    kept = []
    with safe_create(lambda offset, view: kept.append(view[4:]), SPECS) as w:
        with pytest.raises(
            SafetensorError, match=f"the target kept a reference to the {SIZE} bytes"
        ):
            w.write("a", np.zeros(SIZE, "u1"))
        with pytest.raises(SafetensorError, match="the writer has failed"):
            w.close()


def test_large_tensors_are_not_copied():
    """The view is one of the tensor's own memory, also in a file object and in parts."""
    array = np.zeros(20 << 20, "u1")  # more than one call of the target
    begin = array.ctypes.data
    places = []

    class File:
        def write(self, view):
            places.append(np.frombuffer(view, "u1").ctypes.data)

    def f(offset, view):
        places.append(np.frombuffer(view, "u1").ctypes.data)

    for target in (f, File()):
        for tensor in (array, memoryview(array)):
            places.clear()
            with safe_create(target, {"a": ("U8", array.shape)}) as w:
                w.write("a", tensor)
            assert sum(begin <= each < begin + array.nbytes for each in places) == 2


def test_what_was_lent_cannot_be_exported_again():
    objects = []
    written(lambda offset, view: objects.append(view.obj))
    for each in objects:
        with pytest.raises(BufferError, match="lent for a call that has returned"):
            memoryview(each)


def collected(use):
    """Returns what `use(view, at)` puts at each offset."""
    data = bytearray(2 * SIZE)
    ends = []

    def f(offset, view):
        found = use(view)
        data[offset : offset + len(found)] = found
        ends.append(offset + len(found))

    wanted = written(f)
    return bytes(data[max(ends) - SIZE : max(ends)]) == wanted


def by_pipe(view):
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0):
        found = b""
        while len(found) < len(view):
            done = os.write(writing, view[len(found) : len(found) + 4096])
            found += reader.read(done)
    return found


def by_socket(view):
    one, other = socket.socketpair()
    with one, other:
        found = b""
        while len(found) < len(view):
            done = one.send(view[len(found) : len(found) + 4096])
            found += other.recv(done, socket.MSG_WAITALL)
    return found


def by_file(view):
    file = io.BytesIO()
    file.write(view)
    return file.getvalue()


def by_with(view):
    with view as same:
        return bytes(same)


def by_release(view):
    found = view.tobytes()
    view.release()
    return found


def by_hash(view):
    assert hashlib.sha256(view).digest() == hashlib.sha256(bytes(view)).digest()
    hashlib.new("md5", usedforsecurity=False).update(view)
    return bytes(view)


USES = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": lambda view: memoryview(view).tobytes(),
    "slices": lambda view: b"".join(view[i : i + 999] for i in range(0, len(view), 999)),
    "cast": lambda view: view.cast("H").tobytes() if len(view) % 2 == 0 else bytes(view),
    "numpy": lambda view: np.frombuffer(view, np.uint8).tobytes(),
    "array of numpy": lambda view: np.asarray(view).tobytes(),
    "iteration": lambda view: bytes(iter(view)),
    "hash": by_hash,
    "file": by_file,
    "pipe": by_pipe,
    "socket": by_socket,
    "with": by_with,
    "release": by_release,
}


@pytest.mark.parametrize("use", USES)
def test_the_view_is_a_memoryview(use):
    assert collected(USES[use])


def test_the_properties_of_a_view():
    def f(offset, view):
        assert type(view) is memoryview
        assert (view.format, view.itemsize, view.ndim, view.readonly) == ("B", 1, 1, True)
        assert view.shape == (len(view),) == (view.nbytes,)
        assert view.contiguous
        assert hash(view) == hash(bytes(view))
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1

    written(f)


def test_a_pool_may_drop_its_parts_a_moment_later():
    """Threads that took part may hold a slice after their results came."""
    data = bytearray(2 * SIZE)

    def put(at, part):
        data[at : at + len(part)] = part
        return part  # the future keeps it

    with ThreadPoolExecutor(4) as pool:

        def f(offset, view):
            parts = range(0, len(view), 50_000)
            futures = [pool.submit(put, offset + i, view[i : i + 50_000]) for i in parts]
            for each in futures:
                each.result()
            late = view[0:]
            threading.Timer(0.1, late.__len__).start()

        wanted = written(f)
    assert wanted in bytes(data)


@pytest.mark.timed
def test_reference_cycles_are_collected():
    """A function that calls itself is in a cycle, and so is what it closes over."""

    def f(offset, view):
        def count(n):
            return 0 if n == 0 else 1 + count(n - 1) + len(view[:0])

        assert count(3) == 3

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.monotonic()
        written(f)
        assert time.monotonic() - start < 0.9  # no wait for other threads
    finally:
        if was_enabled:
            gc.enable()


def test_the_memory_is_freed_with_what_was_kept():
    class Array(np.ndarray):
        """Its end can be observed."""

    import weakref

    kept = []
    array = np.zeros(SIZE, "u1").view(Array)
    end = weakref.ref(array)
    with safe_create(lambda offset, view: kept.append(view[4:]), SPECS) as w:
        with pytest.raises(SafetensorError, match="kept a reference"):
            w.write("a", array)
        w.abort()
    del array
    gc.collect()
    assert end() is not None
    kept.clear()
    gc.collect()
    assert end() is None


def test_all_memory_is_lent_by_one_class():
    """Nothing else in the bindings makes memoryviews of memory that it may free."""
    found = [
        path.name
        for path in SOURCES
        if re.search(r"from_memory|PyMemoryView_From", path.read_text())
    ]
    assert found == ["loan.cpp"]
