"""Compares how long save_file_async keeps its caller waiting.

    python benchmarks/python/bench_async.py [--mib 256] [--rounds 10] [--folder DIR]

Each round runs all ways once, in turn, and waits for the disk after each. Printed are the minima
and medians, and ratios of the minima to memcpy, of one thread, to memory that is in use already.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from safetensors import __version__
from safetensors.torch import save_file, save_file_async

TENSORS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed")
    size = (args.mib << 20) // TENSORS // 2
    tensors = {f"layer.{i}": torch.full((size,), i, dtype=torch.bfloat16) for i in range(TENSORS)}
    warmed = [torch.zeros_like(each) for each in tensors.values()]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder)

        def memcpy() -> None:
            for to, each in zip(warmed, tensors.values(), strict=True):
                ctypes.memmove(to.data_ptr(), each.data_ptr(), each.nbytes)

        def ours() -> object:
            return save_file_async(tensors, path / "async.safetensors")

        def theirs() -> object:
            return dcp.async_save(tensors, checkpoint_id=path / "dcp")

        def synchronous() -> None:
            save_file(tensors, path / "file.safetensors")

        report(args, [memcpy, ours, theirs, synchronous])


def report(args: argparse.Namespace, ways: list[Callable[[], object]]) -> None:
    names = {
        "memcpy": "memcpy to warmed memory",
        "ours": "save_file_async",
        "theirs": "DCP async_save",
        "synchronous": "save_file",
    }
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for i in range(args.rounds + 1):  # the first round warms up
        for way in ways:
            start = time.perf_counter()
            pending = way()
            wait = time.perf_counter() - start
            if pending is not None:
                pending.result()  # type: ignore[attr-defined]
            os.sync()
            if i:
                times[way.__name__].append(wait)
    base = min(times["memcpy"])
    print(f"safetensors {__version__}, torch {torch.__version__}, {args.mib} MiB, "
          f"{TENSORS} tensors, {args.rounds} rounds, {os.cpu_count()} CPUs")  # fmt: skip
    for way, found in times.items():
        least, median = min(found), statistics.median(found)
        shown = f"{least * 1e3:8.1f} ms (median {median * 1e3:8.1f})"
        print(f"{names[way]:26} {shown} {least / base:6.2f}")


if __name__ == "__main__":
    main()
