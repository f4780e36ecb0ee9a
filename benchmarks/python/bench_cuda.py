"""Times loads to a CUDA device, beside the ceiling of its link and other loaders.

    python benchmarks/python/bench_cuda.py [--gb 8] [--folder /dev/shm] [--quick] [--out FILE]

Files are made in the folder: a dense model's, and one of many small tensors. Printed are gigabytes
a second: of a pinned copy; of this package by readers and chunks, at first and later,
cold and warm; of other loaders that are installed here (fastsafetensors, InstantTensor,
runai-model-streamer); and of upstream in the environment that --upstream names. Each
file is checked once. Without a device it says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import cache
import torch

DENSE = (4096 * 4096, 4096 * 1024, 4096, 11008 * 4096)
MIXTURE = (2048 * 768,) * 8 + (2048, 16)
UPSTREAM = """
import json, sys, time, torch
from safetensors.torch import load_file
path, backend, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.zeros(1, device="cuda")
best = 1e9
for _ in range(repeats):
    tensors = {}
    torch.cuda.synchronize(); begin = time.perf_counter()
    tensors = load_file(path, device="cuda", backend=backend)
    torch.cuda.synchronize(); best = min(best, time.perf_counter() - begin)
print(json.dumps(best))
"""


class Report:
    """Lines of name, seconds and rate."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, seconds: float, nbytes: int) -> None:
        rate = nbytes / seconds / 1e9
        self.rows.append({"name": name, "seconds": seconds, "gb_per_second": rate})
        print(f"{name:64} {seconds:9.4f} s {rate:8.2f} GB/s", flush=True)

    def note(self, name: str, why: object) -> None:
        self.rows.append({"name": name, "left_out": str(why)})
        print(f"{name:64} left out: {why}", flush=True)


def best_of(work: Callable[[], object], repeats: int = 3) -> float:
    """The shortest time, with what it made freed outside the time."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        made = work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
        del made
    return best


def make_file(path: pathlib.Path, nbytes: int, sizes: tuple[int, ...]) -> int:
    """A file of BF16 tensors of these many elements, again and again. Returns the data's bytes."""
    entries, end = {}, 0
    for number in range(10**9):
        if end >= nbytes:
            break
        begin, count = end, sizes[number % len(sizes)]
        end += 2 * count
        entries[f"layer.{number}"] = {
            "dtype": "BF16", "shape": [count], "data_offsets": [begin, end],
        }  # fmt: skip
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    block = random.Random(0).randbytes(1 << 24)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        left = end
        while left:
            left -= file.write(block[: min(left, len(block))])
    return end


def measure_link(report: Report) -> float:
    """Pinned copies in one piece and in several. Returns the best rate."""
    nbytes = 1 << 30
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    seconds = best_of(lambda: device.copy_(host, non_blocking=True), 5)
    report.add("ceiling: pinned copy of 1 GiB", seconds, nbytes)
    for mib in (1, 2, 4, 8, 16):
        step = mib << 20

        def copy(step: int = step) -> None:
            for at in range(0, nbytes, step):
                device[at : at + step].copy_(host[at : at + step], non_blocking=True)

        report.add(f"ceiling: pinned copy in pieces of {mib} MiB", best_of(copy), nbytes)
    return nbytes / seconds


def check(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Some tensors against the file itself."""
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        names = random.Random(1).sample(f.keys(), min(50, len(f)))
        for name in names:
            found, wanted = tensors[name].cpu(), f.get_tensor(name)
            if not torch.equal(found.view(torch.int16), wanted.view(torch.int16)):
                raise SystemExit(f"{path}: {name} was loaded wrong")


def measure_ours(report: Report, kind: str, path: pathlib.Path, nbytes: int, quick: bool) -> None:
    from safetensors import io_config
    from safetensors.torch import load_file

    def load() -> dict[str, torch.Tensor]:
        return load_file(path, device="cuda")

    torch.cuda.empty_cache()
    report.add(f"{kind}: ours, first, torch has no memory yet", best_of(load, 1), nbytes)
    check(path, load())
    before = io_config()
    readers = (8,) if quick else (1, 2, 4, 8, 12, 16)
    for threads in readers:
        for mib in (4,) if quick else (1, 2, 4, 8, 16):
            for slots, streams in (
                ((2, 2),) if quick or threads != 8 else ((2, 1), (2, 2), (3, 2), (4, 4))
            ):
                io_config(threads=threads, chunk_bytes=mib << 20, slots=slots, streams=streams)
                name = (
                    f"{kind}: ours, {threads} readers, {mib} MiB, {slots} slots, {streams} streams"
                )
                report.add(name, best_of(load), nbytes)
    io_config(**before)
    report.add(f"{kind}: ours, as it is", best_of(load), nbytes)
    for backend in ("auto", "pread", "direct"):
        cache.drop(path)
        cold = best_of(lambda backend=backend: load_file(path, device="cuda", backend=backend), 1)
        report.add(f"{kind}: ours, cold, {backend}", cold, nbytes)


def measure_upstream(
    report: Report, kind: str, path: pathlib.Path, nbytes: int, python: str
) -> None:
    for backend in ("mmap", "pread"):
        name = f"{kind}: upstream, {backend}"
        done = subprocess.run(
            [python, "-c", UPSTREAM, str(path), backend, "2"], capture_output=True, text=True
        )
        if done.returncode == 0:
            report.add(name, json.loads(done.stdout), nbytes)
        else:
            report.note(name, done.stderr.strip().splitlines()[-1:])


def load_fastsafetensors(path: pathlib.Path) -> object:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cuda:0"))
    loader.add_filenames({0: [str(path)]})
    buffer = loader.copy_files_to_device()
    return [buffer.get_tensor(name) for name in buffer.key_to_rank_lidx], buffer, loader


def load_instanttensor(path: pathlib.Path) -> object:
    import instanttensor

    with instanttensor.safe_open([str(path)], framework="pt", device=0) as file:
        return {name: tensor.clone() for name, tensor in file.tensors()}


def load_runai(path: pathlib.Path) -> object:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}


PEERS = {
    "fastsafetensors": load_fastsafetensors,
    "instanttensor": load_instanttensor,
    "runai_model_streamer": load_runai,
}


def measure_peers(report: Report, kind: str, path: pathlib.Path, nbytes: int) -> None:
    for module, load in PEERS.items():
        if importlib.util.find_spec(module) is None:
            report.note(f"{kind}: {module}", "not installed")
            continue
        try:
            report.add(f"{kind}: {module}", best_of(lambda load=load: load(path), 2), nbytes)
        except Exception as error:  # whatever another package raises
            report.note(f"{kind}: {module}", error)


def main() -> None:
    """Parse the command line, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=8)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--quick", action="store_true", help="one setting of readers and chunks")
    parser.add_argument("--upstream", help="the Python of an environment that has upstream")
    parser.add_argument("--out", type=pathlib.Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_cuda.py: torch sees no GPU here")
    report = Report()
    print(torch.__version__, torch.cuda.get_device_name(), os.cpu_count(), "processors")
    measure_link(report)
    for kind, sizes in (("dense", DENSE), ("mixture", MIXTURE)):
        path = options.folder / f"bench_cuda_{kind}.safetensors"
        try:
            nbytes = make_file(path, int(options.gb * 1e9), sizes)
            measure_ours(report, kind, path, nbytes, options.quick)
            measure_peers(report, kind, path, nbytes)
            if options.upstream:
                measure_upstream(report, kind, path, nbytes, options.upstream)
        finally:
            path.unlink(missing_ok=True)
    if options.out:
        machine = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
        machine |= {"python": sys.version.split()[0], "processors": os.cpu_count()}
        options.out.write_text(json.dumps({"machine": machine, "rows": report.rows}, indent=1))


if __name__ == "__main__":
    main()
