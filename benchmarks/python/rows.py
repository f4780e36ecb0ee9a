"""The rows of the suite: what is timed, on which file, for whom, and against what limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Args = dict[str, Any]
PACKAGES = ("ours", "upstream")


@dataclass(frozen=True)
class Entry:
    """One implementation's way to do what a row asks."""

    label: str
    environment: str
    operation: str
    args: Args = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of the table. `ours` is the label whose ratio to upstream is wanted."""

    name: str
    file: str
    entries: tuple[Entry, ...]
    limits: tuple[Entry, ...] = ()
    parses: bool = False  # its limit includes RapidJSON's pass over the header
    cold: bool = False
    fresh: bool = False  # a new process for each run; medians are compared, not minima
    unit: str = "ms"
    wanted: float | str | None = None  # ratio to upstream that it ought to have, or "fastest"
    ours: str = "ours"
    upstream: str = "upstream"


def limit(operation: str, label: str = "", **args: Any) -> Entry:
    """Something of the machine itself."""
    return Entry(label or operation, "base", f"limits.{operation}", args)


def packages(operation: str, **args: Any) -> tuple[Entry, ...]:
    """The same call on this package and on upstream."""
    return tuple(Entry(name, name, f"operations.{operation}", args) for name in PACKAGES)


def new_memory(operation: str) -> tuple[Entry, ...]:
    """The machine's ways to fill memory that it has not handed out yet."""
    ways = {
        "1 thread": {"threads": 1, "how": "faults"},
        "2 threads": {"threads": 2, "how": "faults"},
        "2 threads, madvise": {"threads": 2, "how": "madvise"},
        "2 threads, huge pages": {"threads": 2, "how": "huge"},
    }
    return tuple(limit(operation, f"{operation}, {way}", **args) for way, args in ways.items())


def first_rows() -> Iterator[Row]:
    """What a program waits for: the first call of a process, which has imported the package."""

    def row(name: str, file: str, entries: tuple[Entry, ...], **more: Any) -> Row:
        return Row(f"first: {name}", file, entries, fresh=True, **more)

    touch, read, write = (limit("touch"),), new_memory("read_new"), (limit("write"),)
    lazy = packages("load_torch")
    yield row("load_file torch, gpt2", "gpt2", lazy, parses=True)
    yield row("load_file torch, moe", "moe", lazy, parses=True)
    touched = packages("read_torch")
    yield row("load_file torch, gpt2, touched", "gpt2", touched, limits=touch)
    yield row("load_file torch, moe, touched", "moe", touched, limits=touch)
    default = tuple(
        Entry(name, name, "operations.read_torch", {"backend": backend})
        for name, backend in (("ours", "auto"), ("upstream", "mmap"))
    )
    floor = (limit("read"), limit("read_direct"))
    for file in ("gpt2", "vggt"):
        name = f"load_file torch, {file}, cold, touched"
        yield row(name, file, default, limits=floor, cold=True)
    clone = packages("clone_torch")
    yield row("load_file torch, gpt2, cloned", "gpt2", clone, limits=new_memory("copy_new"))
    for file, wanted in (("gpt2", 2.2), ("vggt", 2.2), ("lora", None)):
        entries = packages("load_torch", backend="pread")
        yield row(f"load_file pread, {file}", file, entries, limits=read, wanted=wanted)
    arrays = packages("read_numpy")
    yield row("load_file NumPy, gpt2, touched", "gpt2", arrays, limits=touch)
    for file in ("small", "tiny"):
        entries = packages("load_numpy", backend="pread")
        yield row(f"load_file NumPy pread, {file}", file, entries, limits=read)
    copy = new_memory("copy_new")
    yield row("load(bytes), gpt2", "gpt2", packages("load_bytes"), limits=copy, wanted=2)
    yield row("save() to bytes, gpt2", "gpt2", packages("save_bytes"), limits=copy, wanted=5)
    over = packages("save_file", over=True)
    yield row("save_file, gpt2, new", "gpt2", packages("save_file"), limits=write)
    yield row("save_file, gpt2, over", "gpt2", over, limits=write)
    yield row("save_file, moe, new", "moe", packages("save_file"), limits=write, wanted=22)
    yield row("import safetensors", "lora", packages("import_package"), wanted=1)
    entries = packages("import_torch_module")
    yield row("import safetensors.torch after torch", "lora", entries, wanted=1)


def peers(touch: bool) -> tuple[Entry, ...]:
    """All tensors of a file by the other packages."""
    names = ("fastsafetensors", "runai", "tensorizer", "mlx")
    found = [Entry(name, name, f"peers.{name}", {"touch": touch}) for name in names]
    torch_mmap = Entry("torch.load(mmap=True)", "upstream", "peers.torch_mmap", {"touch": touch})
    return (*found, torch_mmap)


def lazy_rows() -> Iterator[Row]:
    """load_file as it is called most: nothing is read before it is touched."""
    wanted = {"gpt2": 10, "vggt": 20, "moe": 13, "lora": 10}
    for name, ratio in wanted.items():
        entries = packages("load_torch")
        if name != "moe":
            entries += peers(touch=False)
        floor = (limit("objects"),)
        yield Row(f"load_file torch, {name}", name, entries, floor, True, wanted=ratio)
    for name in ("gpt2", "vggt"):
        entries = packages("load_torch")
        yield Row(f"load_file torch, {name}, cold", name, entries, (), True, True, wanted=30)
    for name in ("gpt2", "vggt"):
        entries = packages("load_numpy")
        yield Row(f"load_file NumPy, {name}", name, entries, (), True, wanted=500)


def handle_rows() -> Iterator[Row]:
    """An open file: opening, names, single tensors."""
    for name in ("gpt2", "moe", "lora"):
        ratio = 5 if name == "moe" else None
        yield Row(f"open, {name}", name, packages("open_file"), (), True, wanted=ratio)
    yield Row("keys(), moe", "moe", packages("keys"), (limit("names"),), wanted=6)
    again = {"count": 20_000}
    torch_floor = (limit("one_object", count=20_000),)
    array_floor = (limit("one_array", count=20_000),)
    everywhere = {"count": 20_000, "scattered": True}
    yield Row(
        "get_tensor torch, moe, scattered",
        "moe",
        packages("get_tensor", **everywhere),
        torch_floor,
        unit="us",
        wanted=12,
    )
    yield Row(
        "get_tensor torch, one again and again",
        "moe",
        packages("get_tensor", **again),
        torch_floor,
        unit="us",
        wanted=12,
    )
    yield Row(
        "get_tensor NumPy, moe, scattered",
        "moe",
        packages("get_tensor", framework="np", **everywhere),
        array_floor,
        unit="us",
    )
    yield Row(
        "get_tensor NumPy, one again and again",
        "moe",
        packages("get_tensor", framework="np", **again),
        array_floor,
        unit="us",
    )
    entries = packages("handle_memory")
    yield Row(
        "memory of an open handle, moe", "moe", entries, fresh=True, unit="B/tensor", wanted=1
    )


def bytes_rows() -> Iterator[Row]:
    """Whole files in memory."""
    floor = (limit("memcpy"),)
    yield Row("load(bytes) torch, gpt2", "gpt2", packages("load_bytes"), floor, wanted=3)
    entries = packages("load_bytes", framework="np")
    yield Row("load(bytes) NumPy, gpt2", "gpt2", entries, floor, wanted=3)
    yield Row("load(bytes) torch, moe", "moe", packages("load_bytes"), floor)
    yield Row("deserialize, gpt2", "gpt2", packages("deserialize"), floor, wanted=3)
    yield Row("save() to bytes, gpt2", "gpt2", packages("save_bytes"), floor, wanted=6)
    yield Row("save() to bytes, moe", "moe", packages("save_bytes"), floor, wanted=6)


def save_rows() -> Iterator[Row]:
    """Saving to files."""
    floor = (limit("write"),)
    others = (
        Entry("torch.save", "upstream", "peers.save_torch"),
        Entry("tensorizer", "tensorizer", "peers.save_tensorizer"),
        Entry("mlx", "mlx", "peers.save_mlx"),
    )
    entries = packages("save_file") + others
    yield Row("save_file, gpt2, new", "gpt2", entries, floor, wanted=1)
    yield Row("save_file, gpt2, over", "gpt2", packages("save_file", over=True), floor, wanted=3)
    yield Row("save_file, moe, new", "moe", packages("save_file"), floor, wanted=20)
    yield Row("save_file, lora, new", "lora", packages("save_file"), floor)


def pread_rows() -> Iterator[Row]:
    """Reading into memory of the tensors' own, and slices."""
    for name in ("gpt2", "vggt"):
        entries = packages("load_torch", backend="pread")
        yield Row(f"load_file pread, {name}", name, entries, (limit("read"),), wanted=3)
    wanted = {"rows": (None, 10), "row": (None, 10), "columns": (1.5, 4)}
    for what, ratios in wanted.items():
        for backend, ratio in zip(("mmap", "pread"), ratios, strict=True):
            args = {"tensor": "wte.weight", "what": what, "backend": backend}
            yield Row(
                f"slice {what}, {backend}, gpt2", "gpt2", packages("cut", **args), wanted=ratio
            )

    for backend, ratio in (("mmap", 1.5), ("pread", 5)):
        entries = tuple(
            Entry(
                name,
                name,
                "operations.fused_share",
                {"backend": backend, "ranks": 8, "count": 16, "lists": name == "ours"},
            )
            for name in PACKAGES
        )
        yield Row(f"fused QKV share of 8, {backend}, vggt", "vggt", entries, wanted=ratio)


def full_rows() -> Iterator[Row]:
    """Every page read, whatever the way."""
    for name in ("gpt2", "moe"):
        entries = packages("read_numpy")
        yield Row(f"load NumPy and touch all, {name}, warm", name, entries, (limit("touch"),))
    entries = packages("read_torch")
    yield Row("load and touch all, moe, warm", "moe", entries, (limit("touch"),))
    for name, cold in (("gpt2", False), ("gpt2", True), ("vggt", True)):
        entries = [
            Entry(f"{package} {backend}", package, "operations.read_torch", {"backend": backend})
            for package, backends in (
                ("ours", ("mmap", "pread", "auto", "direct")),
                ("upstream", ("mmap", "pread")),
            )
            for backend in backends
        ]
        yield Row(
            f"load and touch all, {name}, {'cold' if cold else 'warm'}",
            name,
            (*entries, *peers(touch=True)),
            (limit("read"), limit("read_direct")) if cold else (limit("touch"),),
            cold=cold,
            wanted="fastest" if cold else None,
            ours="ours auto" if cold else "ours mmap",
            upstream="upstream mmap",
        )


def all_rows() -> list[Row]:
    """The rows in the order of the table; the rows of whole programs come before these."""
    makers = (
        first_rows,
        lazy_rows,
        handle_rows,
        bytes_rows,
        pread_rows,
        save_rows,
        full_rows,
    )
    return [row for maker in makers for row in maker()]
