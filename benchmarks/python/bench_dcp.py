"""Times torch.distributed.checkpoint with this package's writer and reader, and with torch's.

    python benchmarks/python/bench_dcp.py [--megabytes 512] [--repeats 5] [--folder DIR]

Runs in an environment with this package and torch. Saves a state dict of BF16 by one rank, and by
two ranks (gloo, rows and columns). torch's writer for several ranks is
`HuggingFaceStorageWriter(save_distributed=True, enable_consolidation=True)`. Then loads what this
package's writer saved, from the page cache, with this package's reader and with torch's
`HuggingFaceStorageReader`, and compares all values. Both take turns in the same processes. Prints a
Markdown table of the best times, of the most memory that a call took in a rank beyond the state
dict, and of the bytes on the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from safetensors.dcp import StorageReader, StorageWriter, consolidate

TENSORS = 32


def status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) << 10


def state_of(megabytes: int, ranks: int, dim: int) -> dict[str, Any]:
    """Tensors of 4096 columns, of which each rank has a part."""
    rows = megabytes * 2**20 // TENSORS // 4096 // 2
    mesh = init_device_mesh("cpu", (ranks,))
    shape = [rows, 4096]
    shape[dim] //= ranks
    random = torch.Generator().manual_seed(dist.get_rank())
    return {
        f"layers.{i}": DTensor.from_local(
            torch.randn(shape, generator=random).to(torch.bfloat16),
            mesh,
            [Shard(dim) if ranks > 1 else Replicate()],
        )
        for i in range(TENSORS)
    }


def measured(call: Any, folder: Path) -> tuple[float, int, int]:
    """Seconds of a call, and bytes of memory and on the disk."""
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    begin = time.perf_counter()
    call()
    dist.barrier()
    seconds = time.perf_counter() - begin
    grown = torch.tensor(status("VmHWM") - before)
    dist.all_reduce(grown, dist.ReduceOp.MAX)
    left = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return seconds, int(grown), left


def saved(state: dict[str, Any], make: Any, folder: Path) -> tuple[float, int, int]:
    """What one save took."""
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()
    return measured(lambda: dcp.save(state, storage_writer=make(str(folder))), folder)


def loaded(state: dict[str, Any], make: Any, folder: Path) -> tuple[float, int, int]:
    """What one load took, of the files that `saved` left."""
    targets = {name: torch.ones_like(tensor) for name, tensor in state.items()}
    found = measured(lambda: dcp.load(targets, storage_reader=make(str(folder))), folder)
    for name, tensor in state.items():
        assert torch.equal(targets[name].to_local(), tensor.to_local()), name
    return found


def rank(number: int, ranks: int, store: str, options: argparse.Namespace, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    theirs = {"save_distributed": True, "enable_consolidation": True} if ranks > 1 else {}
    writers = {
        "torch": lambda path: HuggingFaceStorageWriter(path, **theirs),
        "ours": StorageWriter,
    }
    readers = {"torch": HuggingFaceStorageReader, "ours": StorageReader}
    for dim in range(ranks):
        placed = ("rows", "columns")[dim] if ranks > 1 else "whole"
        state = state_of(options.megabytes, ranks, dim)
        for what, makers in (("save", writers), ("load", readers)):
            rows: dict[str, list[tuple[float, int, int]]] = {name: [] for name in makers}
            for repeat in range(options.repeats + 1):
                for name, make in makers.items():
                    if what == "save":
                        found = saved(state, make, Path(folder) / name)
                    else:
                        found = loaded(state, make, Path(folder) / "ours")
                    if repeat:  # the first one starts threads and loads code
                        rows[name].append(found)
            if number == 0:
                show(f"{what}, ranks: {ranks}, {placed}", rows)
    if ranks > 1 and number == 0:
        consolidated(Path(folder), options.repeats)
    dist.barrier()
    dist.destroy_process_group()


def consolidated(folder: Path, repeats: int) -> None:
    """Times consolidation of the files that torch's writer has left."""
    from torch.distributed.checkpoint._consolidate_hf_safetensors import (
        consolidate_safetensors_files,
    )

    source, out = folder / "torch" / "sharded", folder / "out"
    mapping = {f"layers.{i}": 1 for i in range(TENSORS)}
    makers = {
        "torch": lambda: consolidate_safetensors_files(str(source), str(out), mapping),
        "ours": lambda: consolidate(source, out),
    }
    rows: dict[str, list[tuple[float, int, int]]] = {name: [] for name in makers}
    for repeat in range(repeats + 1):
        for name, make in makers.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()
            Path("/proc/self/clear_refs").write_text("5")
            before, begin = status("VmRSS"), time.perf_counter()
            make()
            seconds = time.perf_counter() - begin
            if repeat:
                left = sum(path.stat().st_size for path in out.iterdir())
                rows[name].append((seconds, status("VmHWM") - before, left))
    show("consolidate, columns", rows)


def show(title: str, rows: dict[str, list[tuple[float, int, int]]]) -> None:
    ours, theirs = (min(each[0] for each in rows[name]) for name in ("ours", "torch"))
    cells = [title, f"{theirs:.3f}", f"{ours:.3f}", f"{ours / theirs:.2f}"]
    for name in ("torch", "ours"):
        cells.append(f"{max(each[1] for each in rows[name]) / 2**20:.0f}")
        cells.append(f"{max(each[2] for each in rows[name]) / 2**20:.0f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder")
    options = parser.parse_args()
    units = "torch (s) | ours (s) | ratio | torch: memory (MiB) | on disk"
    print(f"| | {units} | ours: memory | on disk |\n|{'---|' * 8}", flush=True)
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            args = (ranks, os.path.join(folder, "store"), options, folder)
            torch.multiprocessing.spawn(rank, args=args, nprocs=ranks)


if __name__ == "__main__":
    main()
