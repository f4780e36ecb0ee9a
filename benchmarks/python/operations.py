"""What is timed of a package named safetensors: this one and upstream alike."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from work import Unsupported, Work, fresh, page_sum, page_sum_of_arrays

Args = dict[str, Any]


def backend_of(args: Args) -> dict[str, str]:
    """The keyword for a backend; upstream's default is left unsaid."""
    backend = args.get("backend", "mmap")
    if backend in ("mmap", "pread"):
        return {} if backend == "mmap" else {"backend": backend}
    from safetensors import SafetensorError, safe_open

    try:
        safe_open(args["path"], "np", backend=backend)
    except SafetensorError as error:
        raise Unsupported(f"no such backend: {error}") from None
    return {"backend": backend}


def load_torch(args: Args) -> Work:
    """load_file; lazy when the backend is."""
    from safetensors.torch import load_file

    path, backend = args["path"], backend_of(args)
    return Work(lambda: load_file(path, **backend), check=len)


def clone_torch(args: Args) -> Work:
    """load_file, then a copy of each tensor, as a program makes that changes them."""
    from safetensors.torch import load_file

    path = args["path"]
    return Work(lambda: [tensor.clone() for tensor in load_file(path).values()], check=len)


def load_numpy(args: Args) -> Work:
    """load_file for NumPy. Upstream's has no backends, and reads the file into new arrays."""
    import safetensors
    from safetensors.numpy import load_file

    path = args["path"]
    backend = backend_of(args) if hasattr(safetensors, "load_files") else {}
    return Work(lambda: load_file(path, **backend), check=len)


def read_torch(args: Args) -> Work:
    """load_file, then touch every page."""
    from safetensors.torch import load_file

    path, backend = args["path"], backend_of(args)

    def run() -> tuple[Any, int]:
        tensors = load_file(path, **backend)
        return tensors, page_sum(tensors)

    return Work(run, check=lambda result: result[1])


def read_numpy(args: Args) -> Work:
    """load_file for NumPy, then touch every page."""
    from safetensors.numpy import load_file

    path = args["path"]

    def run() -> tuple[Any, int]:
        arrays = load_file(path)
        return arrays, page_sum_of_arrays(arrays)

    return Work(run, check=lambda result: result[1])


def open_file(args: Args) -> Work:
    """Open and validate; nothing is handed out."""
    from safetensors import safe_open

    path, framework = args["path"], args.get("framework", "pt")
    return Work(lambda: safe_open(path, framework))


def keys(args: Args) -> Work:
    """keys() of an open file."""
    from safetensors import safe_open

    file = safe_open(args["path"], "pt")
    return Work(file.keys, check=len)


def get_tensor(args: Args) -> Work:
    """get_tensor of many names in random order, or of one again and again."""
    from safetensors import safe_open

    file = safe_open(args["path"], args.get("framework", "pt"))
    names = list(file.keys())
    random.Random(5).shuffle(names)
    names = names[: args["count"]] if args.get("scattered") else [names[0]] * args["count"]
    get = file.get_tensor

    def run() -> None:
        for name in names:
            get(name)

    return Work(run, calls=len(names))


def handle_memory(args: Args) -> Work:
    """Resident memory that an open handle takes, for each tensor. For a fresh process."""
    import ctypes
    import gc

    from safetensors import safe_open

    trim = ctypes.CDLL(None).malloc_trim
    size = int(ctypes.CDLL(None).getpagesize())

    def private() -> int:
        gc.collect()
        trim(0)
        fields = Path("/proc/self/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * size

    safe_open(args["small"], "pt")
    before = private()
    file = safe_open(args["path"], "pt")
    grown = private() - before
    return Work(lambda: None, nbytes_kept=lambda: grown / len(file.keys()))


def load_bytes(args: Args) -> Work:
    """load(bytes) for torch or NumPy."""
    data = Path(args["path"]).read_bytes()
    framework = "numpy" if args.get("framework") == "np" else "torch"
    load = importlib.import_module(f"safetensors.{framework}").load
    return Work(lambda: load(data), check=len)


def deserialize(args: Args) -> Work:
    """deserialize(bytes)."""
    from safetensors import deserialize

    data = Path(args["path"]).read_bytes()
    return Work(lambda: deserialize(data), check=len)


def own_tensors(path: str) -> dict[str, Any]:
    """The tensors of a file in memory of their own, as a program that trained them has them."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def save_bytes(args: Args) -> Work:
    """save() to bytes."""
    from safetensors.torch import save

    tensors = own_tensors(args["path"])
    return Work(lambda: save(tensors), check=len)


def save_file(args: Args) -> Work:
    """save_file to a new name, or over a file that is there."""
    from safetensors.torch import save_file

    tensors = own_tensors(args["path"])
    out = Path(args["out"])
    if not args.get("over"):
        return Work(lambda: save_file(tensors, out), before=fresh(out), check=size_of(out))
    save_file(tensors, out)
    return Work(lambda: save_file(tensors, out), check=size_of(out))


def size_of(path: Path) -> Callable[[Any], int]:
    """The size of what was written, whatever the call returned."""
    return lambda _result: path.stat().st_size


def cut(args: Args) -> Work:
    """A slice of a tensor, made contiguous: whole rows, one row, or columns."""
    from safetensors import safe_open

    file = safe_open(args["path"], "pt", **backend_of(args))
    part = file.get_slice(args["tensor"])
    rows, columns = part.get_shape()
    middle, width = rows // 2, columns // 12
    if args["what"] == "rows":
        run = lambda: part[middle : middle + rows // 10].clone()  # noqa: E731
    elif args["what"] == "row":
        run = lambda: part[middle].clone()  # noqa: E731
    else:
        run = lambda: part[:, width : 2 * width].contiguous()  # noqa: E731
    return Work(run, check=lambda result: page_sum({"": result}))


def fused_share(args: Args) -> Work:
    """One rank's share of fused QKV weights: its rows of Q, K and V, side by side."""
    import torch

    from safetensors import safe_open

    file = safe_open(args["path"], "pt", **backend_of(args))
    names = [name for name in file.keys() if name.endswith("qkv.weight")]  # noqa: SIM118
    slices = [file.get_slice(name) for name in sorted(names)[: args["count"]]]

    def rows(part: Any) -> list[slice]:
        block = part.get_shape()[0] // 3
        share, rank = block // args["ranks"], args["ranks"] - 1
        return [slice(i * block + rank * share, i * block + (rank + 1) * share) for i in range(3)]

    if args["lists"]:
        run = lambda: [part[rows(part)] for part in slices]  # noqa: E731
    else:
        run = lambda: [torch.cat([part[r] for r in rows(part)]) for part in slices]  # noqa: E731
    return Work(run, check=lambda result: page_sum(dict(enumerate(result))))


def import_package(_args: Args) -> Work:
    """The first `import safetensors` of a process."""

    def run() -> None:
        import safetensors  # noqa: F401

    return Work(run)


def import_torch_module(_args: Args) -> Work:
    """The first `import safetensors.torch` of a process that has torch and NumPy."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    def run() -> None:
        import safetensors.torch  # noqa: F401

    return Work(run)
