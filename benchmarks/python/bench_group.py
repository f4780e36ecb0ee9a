"""Times loads by a group of ranks on this machine, beside gloo's broadcast and other ways to load.

    python benchmarks/python/bench_group.py [--megabytes 512] [--repeats 5] [--rows WORD]

Starts 2 ranks (4 for one row), each a process with one thread of torch. What is compared takes
turns at each repeat:

* broadcast: `torch.distributed.broadcast` of tensors of 16 MiB from rank 0's memory
* group: `load_files(group=)`
* rank 0: rank 0 loads, then broadcasts tensor by tensor
* alone: each rank loads for itself

Sources:

* memory: a reader that returns bytes of one buffer, so that only the schedule takes time
* files: a file in the page cache
* small: a file of 100,000 tensors, or 20,000, of 12 bytes in the page cache
* slow: a reader of 0.3 GB/s for each rank; its limit is the ranks' sum, or the broadcast if that
  takes longer
* s3: row-parallel tensor parallelism (`Shard(1)`) from SeaweedFS, through a proxy of 20 ms
* s3, narrow: the same, and all answers of the server share 1 Gbit/s

Prints a Markdown table: the best time of the slowest rank, the least processor time of the busiest
one, and the bytes read for each byte of the model.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))

PIECE = 16 << 20
COLUMNS = 4096
OPENED = 512 << 10
RATE = 0.3e9  # of a slow reader, in bytes a second
LATENCY = 0.02
NARROW = 125e6  # of a network, in bytes a second


def header(megabytes: int) -> bytes:
    """Returns the header of a file of BF16 matrices of 16 MiB.

    It is as long as what opening a file returns, so that readers read tensors only.
    """
    rows = PIECE // (2 * COLUMNS)
    entries = {
        f"layers.{i}.down_proj.weight": {
            "dtype": "BF16",
            "shape": [rows, COLUMNS],
            "data_offsets": [i * PIECE, (i + 1) * PIECE],
        }
        for i in range((megabytes << 20) // PIECE)
    }
    text = json.dumps(entries).encode()
    text = text.ljust(OPENED - 8)
    return len(text).to_bytes(8, "little") + text


class Reader:
    """A model whose bytes cost nothing, or come at a rate."""

    def __init__(self, megabytes: int, rate: float | None = None) -> None:
        self.name = "model"
        self.nbytes_read = 0
        self._header = header(megabytes)
        self._size = len(self._header) + (megabytes << 20)
        self._data = memoryview(bytes(os.urandom(1 << 20) * 16))
        self._rate, self._free_at, self._lock = rate, 0.0, threading.Lock()

    def open(self, nbytes: int) -> tuple[int, bytes]:
        first = self._header[:nbytes]
        return self._size, first

    def read(self, offset: int, nbytes: int) -> memoryview:
        with self._lock:
            self.nbytes_read += nbytes
            if self._rate:
                now = time.perf_counter()
                self._free_at = max(self._free_at, now) + nbytes / self._rate
                wait = self._free_at - now
        if self._rate:
            time.sleep(wait)
        return self._data[:nbytes]


# What a rank does


class Rank:
    """A process of the group. Its methods `run_...` are what is timed."""

    def __init__(self, source: dict[str, Any]) -> None:
        import torch.distributed as dist

        self._dist, self._source = dist, source
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.megabytes = source["megabytes"]

    def prepare(self, what: str) -> None:
        """Called before the clock starts."""
        self._reader: Any = None
        self._sent: list[Any] = []
        if what == "broadcast" and self.rank == 0:
            self._sent = self._made()
        if "path" in self._source:
            self._file, self._options = self._source["path"], self._source.get("options")
        else:
            self._file, self._options = Reader(self.megabytes, self._source["rate"]), None
            self._reader = self._file

    def _made(self) -> list[Any]:
        import torch

        count = (self.megabytes << 20) // PIECE
        return [torch.full([PIECE], number, dtype=torch.uint8) for number in range(count)]

    def _load(self, **arguments: Any) -> dict[str, Any]:
        from safetensors.torch import load_files

        arguments.setdefault("storage_options", self._options)
        if "group" not in arguments:
            arguments["backend"] = "pread"
        return load_files(self._file, **arguments)

    def _plan(self) -> dict[str, Any] | None:
        from safetensors.plan import Shard

        return {"*": Shard(1, self.rank, self.size)} if self._source.get("is_parallel") else None

    def run_group(self) -> Any:
        return self._load(plan=self._plan(), group=self._dist.group.WORLD)

    def run_alone(self) -> Any:
        return self._load(plan=self._plan())

    def run_rank_0(self) -> Any:
        import torch

        shape = (PIECE // (2 * COLUMNS), COLUMNS)
        if self.rank == 0:
            tensors = [*self._load().values()]
        else:
            count = (self.megabytes << 20) // PIECE
            tensors = [torch.empty(shape, dtype=torch.bfloat16) for _ in range(count)]
        for tensor in tensors:
            self._dist.broadcast(tensor, 0)
        return tensors

    def run_broadcast(self) -> Any:
        import torch

        tensors = self._sent
        if self.rank != 0:
            count = (self.megabytes << 20) // PIECE
            tensors = [torch.empty(PIECE, dtype=torch.uint8) for _ in range(count)]
        for tensor in tensors:
            self._dist.broadcast(tensor, 0)
        return tensors

    def nbytes_read(self) -> int:
        return 0 if self._reader is None else self._reader.nbytes_read


def serve(source: dict[str, Any], store: str, size: int, rank: int) -> None:
    """Answers each line of the input, the name of what to run, with its time, its processor time
    and the bytes read."""
    import torch
    import torch.distributed as dist

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    this = Rank(source)
    for what in map(str.strip, sys.stdin):
        this.prepare(what)
        gc.collect()
        dist.barrier()
        begin, worked = time.perf_counter(), time.process_time()
        kept = getattr(this, f"run_{what}")()
        seconds, worked = time.perf_counter() - begin, time.process_time() - worked
        dist.barrier()
        del kept
        print(json.dumps([seconds, worked, this.nbytes_read()]), file=out, flush=True)


class Ranks:
    """The processes of a group."""

    def __init__(self, size: int, source: dict[str, Any], folder: str) -> None:
        store = tempfile.mktemp(dir=folder)
        command = [sys.executable, __file__, "--serve", json.dumps(source), store, str(size)]
        pipe = subprocess.PIPE
        self._processes = [
            subprocess.Popen([*command, str(rank)], stdin=pipe, stdout=pipe, text=True)
            for rank in range(size)
        ]

    def run(self, what: str) -> tuple[float, float, int]:
        """Returns the time of the slowest rank, the processor time of the busiest one, and the
        bytes that all readers returned."""
        for process in self._processes:
            assert process.stdin
            process.stdin.write(what + "\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{what} failed")
            answers.append(json.loads(line))
        seconds, worked, nbytes = zip(*answers, strict=True)
        return max(seconds), max(worked), sum(nbytes)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


# Rows


@contextmanager
def memory(folder: str, megabytes: int) -> Iterator[dict[str, Any]]:
    yield {"megabytes": megabytes, "rate": None}


@contextmanager
def slow(folder: str, megabytes: int) -> Iterator[dict[str, Any]]:
    yield {"megabytes": megabytes, "rate": RATE}


def write_model(path: Path, megabytes: int) -> None:
    with path.open("wb") as out:
        out.write(header(megabytes))
        for _ in range(megabytes):
            out.write(os.urandom(1 << 20))


@contextmanager
def files(folder: str, megabytes: int) -> Iterator[dict[str, Any]]:
    path = Path(folder) / "model.safetensors"
    write_model(path, megabytes)
    yield {"megabytes": megabytes, "path": str(path)}
    path.unlink()


@contextmanager
def small(folder: str, megabytes: int, count: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    from safetensors.numpy import save_file

    path = Path(folder) / "model.safetensors"
    save_file({f"layers.{i}.bias": np.zeros(3, np.float32) for i in range(count)}, path)
    yield {"megabytes": 0, "path": str(path), "nbytes": 12 * count}
    path.unlink()


@contextmanager
def s3(folder: str, megabytes: int, bandwidth: float | None = None) -> Iterator[dict[str, Any]]:
    import obstore

    from support import real_servers
    from support.delay_proxy import DelayProxy

    path = Path(folder) / "model.safetensors"
    write_model(path, megabytes)
    with ExitStack() as stack:
        server = stack.enter_context(real_servers.seaweedfs())
        obstore.put(server.make_bucket("models"), path.name, path, chunk_size=64 << 20)
        port = int(server.endpoint.rpartition(":")[2])
        proxy = stack.enter_context(DelayProxy(port, latency=LATENCY, bandwidth=bandwidth))
        keys = {"access_key_id": server.key, "secret_access_key": server.secret}
        options = {"endpoint": proxy.url(), "region": server.region, **keys}
        source = {"megabytes": megabytes, "path": f"s3://models/{path.name}", "options": options}
        yield {**source, "is_parallel": True, "proxy": proxy}


ROWS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "memory": (memory, 2, ("broadcast", "group")),
    "memory, 4 ranks": (memory, 4, ("broadcast", "group")),
    "files": (files, 2, ("broadcast", "group")),
    "small": (functools.partial(small, count=100_000), 2, ("alone", "group")),
    "small, 20,000": (functools.partial(small, count=20_000), 2, ("alone", "group")),
    "slow": (slow, 2, ("broadcast", "rank_0", "group")),
    "s3": (s3, 2, ("alone", "group")),
    "s3, narrow": (functools.partial(s3, bandwidth=NARROW), 2, ("alone", "group")),
}


def row(name: str, folder: str, megabytes: int, repeats: int) -> None:
    """Runs what a row compares in turns, and prints a line for each."""
    make, size, runs = ROWS[name]
    with ExitStack() as stack:
        source = stack.enter_context(make(folder, megabytes))
        proxy = source.pop("proxy", None)
        ranks = Ranks(size, source, folder)
        stack.callback(ranks.close)
        best: dict[str, float] = {}
        least: dict[str, float] = {}
        read: dict[str, int] = {}
        for repeat in range(repeats + 1):
            for what in runs:
                before = proxy.bytes_received if proxy else 0
                seconds, worked, nbytes = ranks.run(what)
                read[what] = proxy.bytes_received - before if proxy else nbytes
                if repeat:  # the first one connects the ranks and loads code
                    best[what] = min(seconds, best.get(what, seconds))
                    least[what] = min(worked, least.get(what, worked))
    total = source.get("nbytes", megabytes << 20)
    if name == "slow":
        best = {"limit": max(total / (size * RATE), best["broadcast"]), **best}
    for what, seconds in best.items():
        cells = [name, what.replace("_", " "), f"{seconds:.3f}", f"{total / seconds / 1e9:.2f}"]
        cells.append(f"{next(iter(best.values())) / seconds:.2f}")
        cells.append(f"{least[what]:.3f}" if what in least else "")
        cells.append(f"{read[what] / total:.3f}" if read.get(what) else "")
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", action="append", choices=ROWS)
    parser.add_argument("--folder")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        source, store, size, rank = options.serve
        serve(json.loads(source), store, int(size), int(rank))
        return
    print("| source | | s | GB/s | ratio to the first | CPU s | bytes read |")
    print(f"|{'---|' * 7}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.rows or ROWS:
            row(name, folder, options.megabytes, options.repeats)


if __name__ == "__main__":
    main()
