"""Times loads of a safetensors file to JAX shardings: this package, and Orbax's own layout.

    python benchmarks/python/bench_jax.py [--megabytes 1024] [--repeats 5] [--folder DIR]

Runs in an environment with this package and the group `jax` of pyproject.toml, on eight devices
that JAX makes of the CPU. Both load the same BF16 matrices from the page cache to the same
shardings, in turns and in one process. Prints a Markdown table of the best times, of the bytes that
were read by system calls, and of the most memory that a load took beyond the tensors.
"""

from __future__ import annotations

import argparse
import gc
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint.experimental.v1 as ocp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from safetensors.jax import load_files  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

TENSORS = 16
COLUMNS = 4096


def field(file: str, name: str) -> int:
    return int(Path(f"/proc/self/{file}").read_text().split(name + ":")[1].split()[0])


def measured(load: Callable[[], Any]) -> tuple[float, int, int, Any]:
    """Returns the seconds, bytes read and most memory of a load, and its result."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    memory, read = field("status", "VmRSS"), field("io", "rchar")
    begin = time.perf_counter()
    found = jax.block_until_ready(load())
    seconds = time.perf_counter() - begin
    return seconds, field("io", "rchar") - read, (field("status", "VmHWM") - memory) << 10, found


def orbax(path: str, abstract: dict[str, Any]) -> Any:
    context = ocp.Context()
    context.checkpoint_layout = "safetensors"
    with context:
        return ocp.load(path, abstract)


def measure(title: str, path: str, sharding: NamedSharding, shape: Any, repeats: int) -> None:
    abstract = {
        f"layers.{i}": jax.ShapeDtypeStruct(shape, ml_dtypes.bfloat16, sharding=sharding)
        for i in range(TENSORS)
    }
    loads = {"orbax": lambda: orbax(path, abstract), "ours": lambda: load_files(path, abstract)}
    rows: dict[str, list[tuple[float, int, int]]] = {name: [] for name in loads}
    for repeat in range(repeats + 1):
        kept = {}
        for name, load in loads.items():
            *row, kept[name] = measured(load)
            if repeat:
                rows[name].append((row[0], row[1], row[2]))
            else:  # the first one starts threads and loads code
                assert all(array.sharding == sharding for array in kept[name].values())
            if repeat:
                del kept[name]
        if not repeat:
            last = f"layers.{TENSORS - 1}"
            assert np.array_equal(*(kept[name][last].view(np.uint16) for name in loads))
        del kept
    ours, theirs = (min(row[0] for row in rows[name]) for name in ("ours", "orbax"))
    cells = [title, f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.1f}"]
    total = TENSORS * shape[0] * shape[1] * 2
    for name in ("orbax", "ours"):
        cells.append(f"{max(row[1] for row in rows[name]) / total:.2f}")
        beyond = max(row[2] for row in rows[name]) - total  # negative if freed memory is used again
        cells.append(f"{max(0, beyond) / 2**20:.0f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    shape = (options.megabytes * 2**20 // TENSORS // COLUMNS // 2, COLUMNS)
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = str(Path(folder) / "model.safetensors")
        values = np.arange(shape[0] * shape[1], dtype=np.uint16).reshape(shape)
        save_file(
            {f"layers.{i}": (values + i).view(ml_dtypes.bfloat16) for i in range(TENSORS)}, path
        )
        units = "orbax (s) | ours (s) | ratio | orbax: read / size | memory (MiB)"
        print(f"| | {units} | ours: read / size | memory |\n|{'---|' * 8}", flush=True)
        for title, spec in {
            "rows of 8": (("x", "y"), None),
            "columns of 8": (None, ("x", "y")),
            "rows of 2, columns of 4": ("x", "y"),
            "columns of 4, twice": (None, "y"),
            "replicated": (),
        }.items():
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            measure(title, path, sharding, shape, options.repeats)


if __name__ == "__main__":
    main()
