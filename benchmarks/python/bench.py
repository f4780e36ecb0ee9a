"""Times opening a file and loading all of its tensors with whichever safetensors is installed:
bench.py FILE ITERATIONS [cpu|cuda]. The counterpart of bench_cpp. Prints one line of JSON."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

import torch

import safetensors
from safetensors.torch import load_file


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("iterations", type=int)
    parser.add_argument("device", nargs="?", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--backend", help="how bytes come into memory (default: the package's)")
    options = parser.parse_args()
    if options.iterations < 1:
        parser.error("iterations is a positive number")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench.py: cuda: torch sees no GPU here")
    backend = {"backend": options.backend} if options.backend else {}
    seconds = []
    tensors: dict[str, torch.Tensor] = {}
    for _ in range(options.iterations):
        tensors = {}  # the tensors of the last iteration are freed outside the time
        gc.collect()
        begin = time.perf_counter()
        tensors = load_file(options.file, device=options.device, **backend)
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    answer = {
        "program": "bench.py",
        "safetensors": safetensors.__version__,
        "device": options.device,
        "tensors": len(tensors),
        "nbytes": sum(tensor.nbytes for tensor in tensors.values()),
        "iterations": options.iterations,
        "seconds_per_iteration": statistics.mean(seconds),
        "first": seconds[0],
        "min": min(seconds),
        "median": statistics.median(seconds),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
