"""Times this package against official safetensors: both in turn, in fresh processes."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = dict[str, float]


def make_files(folder: Path, scale: float) -> None:
    """Write the two files that everything is measured on."""
    import torch

    from safetensors.torch import save_file

    width = max(64, int(768 * scale**0.5) // 64 * 64)
    model = {"wte": torch.randn(50257, width), "wpe": torch.randn(1024, width)}
    for layer in range(12):
        sizes = {"attn": (width, 3 * width), "proj": (width, width), "fc": (width, 4 * width)}
        for name, shape in (sizes | {"out": (4 * width, width), "bias": (1024, 1024)}).items():
            model[f"h.{layer}.{name}.weight"] = torch.randn(*shape)
        for norm in range(8):
            model[f"h.{layer}.norm.{norm}"] = torch.randn(width)
    save_file(model, folder / "large.safetensors")
    experts = {
        f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.gate_proj.weight": torch.randn(16, 16)
        for i in range(int(100_000 * scale))
    }
    save_file(experts, folder / "many.safetensors")


def best(work: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of the quickest of some runs."""
    times = []
    for _ in range(repeats):
        gc.collect()
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
        del result
    return min(times) * 1e3


def measure(folder: Path) -> Rows:
    """Run every row with the safetensors that this process imports."""
    import safetensors
    import safetensors.numpy as st_numpy
    import safetensors.torch as st

    large, many = folder / "large.safetensors", folder / "many.safetensors"
    out = folder / "out.safetensors"
    rows: Rows = {}
    rows["load_file, torch, large"] = best(lambda: st.load_file(large), 15)
    rows["load_file, torch, many"] = best(lambda: st.load_file(many), 3)
    rows["load_file, NumPy, large"] = best(lambda: st_numpy.load_file(large), 5)
    rows["open, many"] = best(lambda: safetensors.safe_open(many, "pt"), 3)
    opened = safetensors.safe_open(many, "pt")
    rows["keys(), many"] = best(opened.keys, 5)
    names = opened.keys()[::7]
    rows["get_tensor, every 7th of many"] = best(
        lambda: [opened.get_tensor(name) for name in names], 3
    )
    data = large.read_bytes()
    rows["load(bytes), large"] = best(lambda: st.load(data), 4)
    rows["deserialize, large"] = best(lambda: safetensors.deserialize(data), 3)
    data = b""  # lets its memory go
    rows["load_file, pread, large"] = best(lambda: st.load_file(large, backend="pread"), 4)
    by_pread = safetensors.safe_open(large, "pt", backend="pread").get_slice("wte")
    rows["a row of wte, pread"] = best(lambda: by_pread[100], 20)
    rows["64 columns of wte, pread"] = best(lambda: by_pread[:, :64], 5)
    tensors = {name: tensor.clone() for name, tensor in st.load_file(large).items()}
    rows["save, large"] = best(lambda: st.save(tensors), 4)
    out.unlink(missing_ok=True)
    rows["save_file, new, large"] = best(lambda: st.save_file(tensors, out), 1)
    rows["save_file, over a file, large"] = best(lambda: st.save_file(tensors, out), 4)
    tensors = {name: tensor.clone() for name, tensor in st.load_file(many).items()}
    rows["save, many"] = best(lambda: st.save(tensors), 2)
    rows["save_file, over a file, many"] = best(lambda: st.save_file(tensors, out), 2)
    return rows


def run_child(folder: Path, official: str | None) -> Rows:
    """Measure in a fresh process, with official safetensors when its folder is given."""
    environment = {**os.environ, "PYTHONPATH": official or ""}
    command = [sys.executable, __file__, "--child", str(folder)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    rows: Rows = json.loads(done.stdout)
    return rows


def main() -> None:
    """Make the files, run both in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--official", metavar="DIR", help="folder that holds official safetensors")
    parser.add_argument("--rounds", type=int, default=2, help="fresh processes of each")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the files")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(Path(options.child))))
        return
    if not options.official:
        parser.error("--official DIR is needed")
    with tempfile.TemporaryDirectory(prefix="safetensors-bench-") as name:
        folder = Path(name)
        make_files(folder, options.scale)
        runs: dict[str, list[Rows]] = {"official": [], "this package": []}
        for _ in range(options.rounds):
            runs["official"].append(run_child(folder, options.official))
            runs["this package"].append(run_child(folder, None))
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    line = (
        "| {:<34} | {:>10} | {:>12} | {:>7} |" if options.markdown else "{:<34} {:>10} {:>12} {:>7}"
    )
    print(line.format("milliseconds, page cache warm", "official", "this package", "ratio"))
    if options.markdown:
        print("|---|---|---|---|")
    for row in runs["official"][0]:
        theirs, ours = (min(run[row] for run in each) for each in runs.values())
        print(line.format(row, f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.1f}"))


if __name__ == "__main__":
    main()
