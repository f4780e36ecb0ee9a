"""Times plans: expert filters, resolving rules, and destinations that are views.

    python benchmarks/python/bench_plan.py [--upstream DIR] [--folder DIR] [--repeats 5]

Runs in an environment with this package and torch. DIR of `--upstream` holds upstream's package
(`pip install --target DIR safetensors==0.8.0`), whose loop over names is the other side of the
first row. Prints a Markdown table of the best times and of bytes read, each with its ratio.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from safetensors import safe_open
from safetensors.plan import Shard, experts, resolve
from safetensors.torch import load_files, load_into, save_file

EXPERTS, RANKS = 128, 8
LAYERS = 100_000 // (EXPERTS * 3)

# Upstream's users choose the tensors of a rank by this loop.
LOOP = """
import re, sys, time, torch
from safetensors import safe_open
search, best = re.compile(r"\\.experts\\.(\\d+)\\.").search, 1e9
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    found = {}
    with safe_open(sys.argv[1], "pt") as f:
        for name in f.keys():
            match = search(name)
            if match is None or int(match[1]) < int(sys.argv[3]):
                found[name] = f.get_tensor(name)
    best = min(best, time.perf_counter() - start)
print(best)
"""


def best(repeats: int, run: Callable[[], Any]) -> float:
    """Returns the least seconds of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - start)
        del found
    return min(times)


def read_bytes() -> int:
    """Returns the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def row(name: str, ours: float, other: float, ratio: float, unit: str = "ms") -> None:
    scale = 1e3 if unit == "ms" else 1 / 2**20
    print(f"| {name} | {ours * scale:.1f} {unit} | {other * scale:.1f} {unit} | {ratio:.2f} |")


def measure(folder: Path, upstream: str | None, repeats: int) -> None:
    many = folder / "many.safetensors"
    kinds = ("gate_proj", "up_proj", "down_proj")
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{kind}.weight"
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for kind in kinds
    ]
    save_file({name: torch.zeros(8, dtype=torch.bfloat16) for name in names}, many)
    print("| row | ours | other | ratio |\n|---|---|---|---|")
    if upstream is not None:
        ours = best(repeats, lambda: load_files(many, keys=experts(EXPERTS, 0, RANKS)))
        command = [sys.executable, "-c", LOOP, str(many), str(repeats), str(EXPERTS // RANKS)]
        child = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": upstream},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        other = float(child.stdout)
        row(f"experts of 1 of {RANKS} ranks / upstream's loop", ours, other, other / ours)

    patterns = [f"*.layers.{i}?.*.experts.7.gate_proj.*" for i in range(1, 9)]
    patterns += [f"*.experts.{i}?.up_proj.weight" for i in range(1, 10)]
    patterns += [f"*.{kind}.weight" for kind in kinds]
    rules = dict.fromkeys(patterns, Shard(0, 0, 2))
    opened = best(repeats, lambda: safe_open(many, "np"))
    resolved = best(repeats, lambda: resolve(many, rules))
    row("resolve 20 patterns, 17 with digits / open", resolved, opened, resolved / opened)

    large = folder / "large.safetensors"
    tensor = torch.zeros(64 << 10, 512, dtype=torch.bfloat16)  # rows of 1 KiB
    save_file({"a": tensor}, large)
    wide = torch.zeros(tensor.shape[0], 1024, dtype=torch.bfloat16)
    target = torch.zeros_like(tensor)
    dense = best(repeats, lambda: load_into({"a": target}, large))
    strided = best(repeats, lambda: load_into({"a": wide[:, :512]}, large))
    row("load_into rows of 1 KiB of a wider tensor / dense", strided, dense, strided / dense)

    for name, rule in (
        ("Shard(0)", Shard(0, 3, 8)),
        ("two fused blocks", Shard(0, 3, 8, blocks=2)),
    ):
        before = read_bytes()
        found = load_files(large, plan={"a": rule}, backend="pread")
        count = read_bytes() - before
        row(
            f"bytes read by {name} / share",
            count,
            found["a"].nbytes,
            count / found["a"].nbytes,
            "MiB",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream")
    parser.add_argument("--folder")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder), options.upstream, options.repeats)


if __name__ == "__main__":
    main()
