"""Times loads of a model from object stores and web servers beside raw reads and another loader.

    python benchmarks/python/bench_remote.py [--megabytes 512] [--repeats 5] [--rows WORD]

Starts SeaweedFS (S3) and nginx (HTTP, TLS) on the loopback interface. Each loader runs in a process
of its own; they take turns at each repeat and read the same object:

* obstore: ranges of 8 MiB, 32 at once, that are kept as they come
* reader: the same ranges by this package's RangeReader and 32 threads
* ours: safetensors.torch.load_files
* runai: runai-model-streamer's SafetensorsStreamer, from S3 only

Prints a Markdown table: the best time, its ratio to obstore's, the processor time of the client,
and the most memory beyond the model. `latency` reads 64 MiB in pieces of 256 KiB from a server that
answers after 50 ms; its limit is pieces x 50 ms / 32.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))

CHUNK, AT_ONCE = 8 << 20, 32
TENSORS = 32
LATENCY, PIECE = 0.05, 256 << 10
Run = Callable[[], Any]


# What each loader does, in its process. An address is a dict with the URL and what leads there.


def ours(address: dict[str, Any]) -> Run:
    from safetensors.torch import load_files

    return lambda: load_files(address["url"], storage_options=address["options"])


def reader(address: dict[str, Any]) -> Run:
    from safetensors._remote.open import open_reader

    chunk = address["options"].get("chunk_bytes", CHUNK)

    def run() -> list[Any]:
        each = open_reader(address["url"], address["options"])
        size, _ = each.open(512 << 10)
        parts = [(at, min(chunk, size - at)) for at in range(0, size, chunk)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda part: each.read(*part), parts))

    return run


def raw_obstore(address: dict[str, Any]) -> Run:
    import obstore
    from obstore import store

    url, options = address["url"], address["options"]
    chunk = options.get("chunk_bytes", CHUNK)
    client: dict[str, Any] = {"allow_http": True, "timeout": "600s"}
    if "ca_file" in options:
        client["root_certificate"] = Path(options["ca_file"]).read_bytes()
    made: Any
    if url.startswith("s3://"):
        bucket, _, path = url.removeprefix("s3://").partition("/")
        keys = {name: value for name, value in options.items() if name != "chunk_bytes"}
        made = store.S3Store(bucket, config=keys, client_options=client)
    else:
        base, _, path = url.rpartition("/")
        made = store.HTTPStore.from_url(base, client_options=client)

    async def read(parts: list[Any]) -> None:
        size = (await obstore.get_async(made, path, options={"range": (0, 512 << 10)})).meta["size"]
        turns = asyncio.Semaphore(AT_ONCE)

        async def part(at: int) -> None:
            async with turns:
                end = min(size, at + chunk)
                parts.append(await obstore.get_range_async(made, path, start=at, end=end))

        await asyncio.gather(*(part(at) for at in range(0, size, chunk)))

    def run() -> list[Any]:
        parts: list[Any] = []
        # Not its result: in the main thread, asyncio.run takes seconds for the repr of large ones.
        asyncio.run(read(parts))
        return parts

    return run


def runai(address: dict[str, Any]) -> Run:
    options = address["options"]
    os.environ["AWS_ENDPOINT_URL"] = options["endpoint"]
    os.environ["AWS_ACCESS_KEY_ID"] = options["access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = options["secret_access_key"]
    os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = options["region"]
    os.environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] = "0"
    os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(AT_ONCE)
    from runai_model_streamer import SafetensorsStreamer

    def run() -> dict[str, Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(address["url"])
            return {name: tensor.clone() for name, tensor in streamer.get_tensors()}

    return run


LOADERS = {"obstore": raw_obstore, "reader": reader, "ours": ours, "runai": runai}


# The process of a loader


def status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) << 10


def size_of(result: Any) -> int:
    """The bytes that a loader returned."""
    values = result.values() if isinstance(result, dict) else result
    return sum(each.nbytes if hasattr(each, "nbytes") else len(each) for each in values)


def serve(name: str, address: dict[str, Any]) -> None:
    """Answers each line of the input with what one run took."""
    libc = ctypes.CDLL(None)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # loaders print
    run = LOADERS[name](address)
    for _ in sys.stdin:
        gc.collect()
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before, cpu, begin = status("VmRSS"), time.process_time(), time.perf_counter()
        result = run()
        taken = [time.perf_counter() - begin, time.process_time() - cpu]
        taken += [status("VmHWM") - before - size_of(result), size_of(result)]
        del result
        print(json.dumps(taken), file=out, flush=True)


class Loader:
    """A process that runs one loader."""

    def __init__(self, name: str, address: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--serve", name, json.dumps(address)]
        pipe = subprocess.PIPE
        self.name = name
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.taken: list[list[float]] = []

    def run(self) -> list[float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} failed")
        found: list[float] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# Rows


@contextmanager
def s3(path: Path) -> Iterator[dict[str, Any]]:
    import obstore

    from support import real_servers

    with real_servers.seaweedfs() as server:
        obstore.put(server.make_bucket("models"), path.name, path, chunk_size=64 << 20)
        keys = {"access_key_id": server.key, "secret_access_key": server.secret}
        options = {"endpoint": server.endpoint, "region": server.region, **keys}
        yield {"url": f"s3://models/{path.name}", "options": options}


@contextmanager
def http(path: Path) -> Iterator[dict[str, Any]]:
    from support import real_servers

    with real_servers.nginx(path.parent) as urls:
        yield {"url": f"{urls.http}/{path.name}", "options": {}}


@contextmanager
def https(path: Path) -> Iterator[dict[str, Any]]:
    from support import certificates, real_servers

    with real_servers.nginx(path.parent) as urls:
        options = {"ca_file": str(certificates.certificate().authority)}
        yield {"url": f"{urls.https}/{path.name}", "options": options}


@contextmanager
def latency(path: Path) -> Iterator[dict[str, Any]]:
    from support.servers import RangeServer

    def wait(_: Any) -> Path:
        time.sleep(LATENCY)
        return path

    with RangeServer({"/" + path.name: wait}) as server:
        yield {"url": server.url("/" + path.name), "options": {"chunk_bytes": PIECE}}


ROWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "s3": (s3, ("obstore", "reader", "ours", "runai")),
    "https": (https, ("obstore", "reader", "ours")),
    "http": (http, ("obstore", "reader", "ours")),
    "latency": (latency, ("obstore", "reader", "ours")),
}


def row(name: str, path: Path, repeats: int) -> None:
    """Runs the loaders of a row in turns, and prints a line for each."""
    server, names = ROWS[name]
    with ExitStack() as stack:
        address = stack.enter_context(server(path))
        loaders = [Loader(each, address) for each in names]
        for loader in loaders:
            stack.callback(loader.close)
        for repeat in range(repeats + 1):
            for loader in list(loaders):
                try:
                    taken = loader.run()
                except RuntimeError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    loaders.remove(loader)
                    continue
                if repeat:  # the first one starts threads and loads code
                    loader.taken.append(taken)
    if name == "latency":
        limit = -(-path.stat().st_size // PIECE) * LATENCY / AT_ONCE
        print(f"| latency | limit | {limit:.3f} | | | | |")
    base = min(each[0] for each in loaders[0].taken)
    cpu = min(each[1] for each in loaders[0].taken)
    for loader in loaders:
        best = min(loader.taken)
        seconds, used, size = best[0], min(each[1] for each in loader.taken), best[3]
        cells = [name, loader.name, f"{seconds:.3f}", f"{size / seconds / 1e9:.2f}"]
        cells += [f"{base / seconds:.2f}", f"{used:.2f} ({used / cpu:.2f})"]
        cells.append(f"{max(each[2] for each in loader.taken) / 2**20:.0f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def write_model(path: Path, megabytes: int) -> None:
    """Writes a file of BF16 tensors whose bytes are random, so that nobody compresses them."""
    size = (megabytes << 20) // TENSORS
    entries = {
        f"layers.{i}": {
            "dtype": "BF16",
            "shape": [size // 2],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(TENSORS)
    }
    header = json.dumps(entries).encode()
    with path.open("wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for _ in range(TENSORS):
            out.write(os.urandom(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", action="append", choices=ROWS)
    parser.add_argument("--folder")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], json.loads(options.serve[1]))
        return
    units = "s | GB/s | ratio to obstore | CPU s (ratio) | memory beyond the model (MiB)"
    print(f"| server | loader | {units} |\n|{'---|' * 7}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.rows or ROWS:
            path = Path(folder) / f"{name}.safetensors"
            write_model(path, 64 if name == "latency" else options.megabytes)
            row(name, path, options.repeats)
            path.unlink()


if __name__ == "__main__":
    main()
