"""Times the iterators of the plug-ins for vLLM and sglang beside `stream_files`.

    python benchmarks/python/bench_engines.py [--folder DIR] [--repeats 7]

Runs in an environment with this package and torch. The engines are the stubs of the tests, and the
consumer drops each tensor. Prints a Markdown table of the best times; files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from safetensors.plugins import sglang, vllm
from safetensors.torch import save_file, stream_files

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))

import test_plugin_sglang
import test_plugin_vllm

BUDGET = 1 << 30


def drain(tensors: Iterable[object]) -> None:
    for _ in tensors:
        pass


def compare(repeats: int, *runs: Callable[[], None]) -> list[float]:
    """Returns the least seconds of each run. They take turns, each as often as the first one."""
    best = [float("inf")] * len(runs)
    for first in range(repeats * len(runs)):
        for i in (*range(first % len(runs), len(runs)), *range(first % len(runs))):
            begin = time.perf_counter()
            runs[i]()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def measure(folder: Path, name: str, files: list[str], repeats: int) -> None:
    engine = test_plugin_vllm.Vllm(folder)
    other = test_plugin_sglang.Sglang()
    experts = set(range(128))
    with engine.stub(), other.stub():
        vllm.register()
        sglang.register()
        loader, source = engine.loader(), engine.source()
        loader.local_expert_ids = experts
        rows = {
            "vLLM": lambda: loader._get_weights_iterator(source),
            "sglang": lambda: other.iterate(test_plugin_sglang.THREADS, files, max_workers=8),
        }
        # The same rule is asked for each tensor.
        plain = {"vLLM": lambda name: not engine.skips(name, experts), "sglang": None}
        for row, iterate in rows.items():
            ours, theirs = compare(
                repeats,
                lambda iterate=iterate: drain(iterate()),
                lambda keys=plain[row]: drain(stream_files(files, keys=keys, budget_bytes=BUDGET)),
            )
            print(
                f"| {row}'s iterator / `stream_files`, {name} | {ours * 1e3:.1f} ms "
                f"| {theirs * 1e3:.1f} ms | {theirs / ours:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    os.environ["SAFETENSORS_SGLANG"] = "1"
    print("| row | plug-in | stream_files | rate |\n|---|---|---|---|")
    cases = {
        "1 GiB in 64 tensors": [torch.ones(4 << 20) for _ in range(16)],
        "40,000 experts of 16 KiB": [torch.ones(4 << 10) for _ in range(10_000)],
    }
    for name, tensors in cases.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            folder, files = Path(temporary), []
            for shard in range(4):
                files.append(str(folder / f"model-{shard}.safetensors"))
                named = {
                    f"layers.{shard}.{i}.mlp.experts.{i % 128}.up_proj.weight": tensor
                    for i, tensor in enumerate(tensors)
                }
                save_file(named, files[-1])
            measure(folder, name, files, options.repeats)


if __name__ == "__main__":
    main()
