"""Times loads that compare digests, against the same loads without.

    python benchmarks/python/bench_verify.py [--folder DIR] [--repeats 15]

Runs in an environment with this package and torch. Prints a Markdown table of the least times of
loads that alternate, and of the ratios of processor time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from safetensors import io_config
from safetensors._cli.main import main as command
from safetensors.torch import load_into, save_file

MIB = 1 << 20


def make(path: Path, sizes: dict[str, int]) -> None:
    """Writes a file of bytes that its sums describe."""
    tensors = {name: torch.randint(0, 255, (n,), dtype=torch.uint8) for name, n in sizes.items()}
    save_file(tensors, path)
    with contextlib.redirect_stdout(sys.stderr):
        command(["hash", str(path), "--write", "--algorithm", "sha256"])


def least(repeats: int, runs: dict[str, Callable[[], Any]]) -> list[tuple[float, float]]:
    """Returns the least seconds, and the least of all processors, of runs that alternate."""
    best = dict.fromkeys(runs, (1e9, 1e9))
    for _ in range(repeats):
        for name, run in runs.items():
            start, used = time.perf_counter(), time.process_time()
            run()
            found = time.perf_counter() - start, time.process_time() - used
            best[name] = min(best[name][0], found[0]), min(best[name][1], found[1])
    return list(best.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    files = {
        "2 tensors of 256 MiB": {"a": 256 * MIB, "b": 256 * MIB},
        "20,000 tensors of 16 KiB": {f"t{i}": 16 << 10 for i in range(20_000)},
    }
    print("| file | threads | load | + xxh3 | ratio | processor | + sha256 | ratio | processor |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for what, sizes in files.items():
            path = Path(folder) / "m.safetensors"
            make(path, sizes)
            # Into memory that exists: page faults of new memory would be part of both times.
            tensors = {name: torch.zeros(n, dtype=torch.uint8) for name, n in sizes.items()}
            for threads in (1, 2):
                io_config(threads=threads)
                times = least(
                    arguments.repeats,
                    {
                        str(verify): partial(load_into, tensors, path, verify=verify)
                        for verify in (None, True, "sha256")
                    },
                )
                line = f"| {what} | {threads} | {times[0][0] * 1e3:.0f} ms |"
                for elapsed, used in times[1:]:
                    line += f" {elapsed * 1e3:.0f} ms | {elapsed / times[0][0]:.2f} |"
                    line += f" {used / times[0][1]:.2f} |"
                print(line)


if __name__ == "__main__":
    main()
