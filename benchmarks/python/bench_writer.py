"""Times saving tensor by tensor, beside save_file and what others use.

    python benchmarks/python/bench_writer.py [--rounds 5] [--folder DIR] [--with NAME=DIR]...

Every figure comes from a process of its own, which makes the tensors, and takes the time of one
save and the growth of its peak memory meanwhile. The implementations of a row take turns, in
random order. `--with` adds a folder to the path of some of them: upstream=DIR (where `pip install
--target DIR safetensors==0.8.0` put it) and mergekit=DIR. Without a folder, implementations that
need it are left out. Printed are minima, and the ratio to the first implementation of the row.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

MB = 1 << 20
Save = Callable[[str], object]


def dense(count: int, nbytes: int) -> dict[str, Any]:
    """`count` BF16 tensors of `nbytes` bytes."""
    import torch

    return {
        f"t{i:06}": torch.full((nbytes // 2,), i % 99, dtype=torch.bfloat16) for i in range(count)
    }


def generated(count: int, nbytes: int) -> Iterator[tuple[str, Any]]:
    """The same tensors, one at a time."""
    import torch

    for i in range(count):
        yield f"t{i:06}", torch.full((nbytes // 2,), i % 99, dtype=torch.bfloat16)


def discard(descriptor: int) -> None:
    """Reads a pipe to its end."""
    while os.read(descriptor, MB):
        pass


def to_pipe(write: Callable[[Any], object]) -> None:
    """Calls `write` with a file object of a pipe that a thread reads."""
    reader, writer = os.pipe()
    thread = threading.Thread(target=discard, args=(reader,))
    thread.start()
    with open(writer, "wb") as file:
        write(file)
    thread.join()
    os.close(reader)


def create(target: Any, tensors: dict[str, Any], **options: Any) -> None:
    from safetensors import safe_create

    with safe_create(target, tensors, **options) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)


def save_file(count: int, nbytes: int) -> Save:
    from safetensors.torch import save_file

    tensors = dense(count, nbytes)
    return lambda folder: save_file(tensors, folder + "/f")


def save_file_fsync(count: int, nbytes: int) -> Save:
    save = save_file(count, nbytes)

    def run(folder: str) -> None:
        save(folder)
        with open(folder + "/f", "rb") as file:
            os.fsync(file.fileno())

    return run


def safe_create_dict(count: int, nbytes: int) -> Save:
    tensors = dense(count, nbytes)
    return lambda folder: create(folder + "/f", tensors)


def safe_create_fsync(count: int, nbytes: int) -> Save:
    tensors = dense(count, nbytes)
    return lambda folder: create(folder + "/f", tensors, fsync=True)


def safe_create_generator(count: int, nbytes: int) -> Save:
    from safetensors import safe_create

    specs = {f"t{i:06}": ("BF16", (nbytes // 2,)) for i in range(count)}

    def run(folder: str) -> None:
        with safe_create(folder, specs, max_shard_size="256MiB") as writer:
            for name, tensor in generated(count, nbytes):
                writer.write(name, tensor)

    return run


def mergekit_generator(count: int, nbytes: int) -> Save:
    from mergekit.io.tensor_writer import TensorWriter

    def run(folder: str) -> None:
        writer = TensorWriter(folder, max_shard_size=256 * MB)
        for name, tensor in generated(count, nbytes):
            writer.save_tensor(name, tensor)
        writer.finalize()

    return run


def only_generate(count: int, nbytes: int) -> Save:
    def run(folder: str) -> None:
        for _ in generated(count, nbytes):
            pass

    return run


def save_files(count: int, nbytes: int) -> Save:
    from safetensors.torch import save_files

    tensors = dense(count, nbytes)
    return lambda folder: save_files(tensors, folder, max_shard_size=count * nbytes // 4)


def hub(count: int, nbytes: int) -> Save:
    from huggingface_hub import save_torch_state_dict

    tensors = dense(count, nbytes)
    return lambda folder: save_torch_state_dict(tensors, folder, max_shard_size=count * nbytes // 4)


def safe_create_bytesio(count: int, nbytes: int) -> Save:
    tensors = dense(count, nbytes)
    return lambda folder: create(io.BytesIO(), tensors)


def save_bytesio(count: int, nbytes: int) -> Save:
    from safetensors.torch import save

    tensors = dense(count, nbytes)
    return lambda folder: io.BytesIO().write(save(tensors))


def safe_create_pipe(count: int, nbytes: int) -> Save:
    tensors = dense(count, nbytes)
    return lambda folder: to_pipe(lambda file: create(file, tensors))


def save_pipe(count: int, nbytes: int) -> Save:
    from safetensors.torch import save

    tensors = dense(count, nbytes)
    return lambda folder: to_pipe(lambda file: file.write(save(tensors)))


OURS, UPSTREAM, MERGEKIT = (), ("upstream",), ("mergekit",)
# Row: tensors, bytes of each, and the implementations (name, function, folders of --with).
ROWS: dict[str, tuple[int, int, list[tuple[str, str, tuple[str, ...]]]]] = {
    "from a dict": (
        32,
        16 * MB,
        [
            ("safe_create", "safe_create_dict", OURS),
            ("save_file", "save_file", OURS),
            ("upstream save_file", "save_file", UPSTREAM),
        ],
    ),
    "many small tensors": (
        100_000,
        1024,
        [
            ("safe_create", "safe_create_dict", OURS),
            ("save_file", "save_file", OURS),
            ("upstream save_file", "save_file", UPSTREAM),
        ],
    ),
    "flushed": (
        32,
        16 * MB,
        [
            ("safe_create, fsync", "safe_create_fsync", OURS),
            ("upstream save_file, os.fsync", "save_file_fsync", UPSTREAM),
        ],
    ),
    "from a generator": (
        16,
        64 * MB,
        [
            ("safe_create", "safe_create_generator", OURS),
            ("mergekit", "mergekit_generator", MERGEKIT),
            ("mergekit with upstream", "mergekit_generator", ("mergekit", "upstream")),
            ("the generator alone", "only_generate", OURS),
        ],
    ),
    "four shards": (
        32,
        16 * MB,
        [
            ("save_files", "save_files", OURS),
            ("huggingface_hub", "hub", OURS),
            ("huggingface_hub with upstream", "hub", UPSTREAM),
        ],
    ),
    "to BytesIO": (
        32,
        8 * MB,
        [
            ("safe_create", "safe_create_bytesio", OURS),
            ("write(save())", "save_bytesio", OURS),
            ("write(save()), upstream", "save_bytesio", UPSTREAM),
        ],
    ),
    "to a pipe": (
        32,
        8 * MB,
        [
            ("safe_create", "safe_create_pipe", OURS),
            ("write(save())", "save_pipe", OURS),
            ("write(save()), upstream", "save_pipe", UPSTREAM),
        ],
    ),
}


def status(field: str) -> int:
    """Returns a field of /proc/self/status in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) << 10


def measure(function: str, count: int, nbytes: int, folder: str) -> dict[str, float]:
    """Runs one save in this process."""
    import torch  # noqa: F401  # its import is no part of a save

    save: Save = globals()[function](count, nbytes)
    # A virtual machine gets memory from its host page by page, which takes longer than to write it:
    # so that the save finds enough, take it and give it back.
    del_later = b"x" * (3 * count * nbytes)
    del del_later
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    begin = time.perf_counter()
    save(folder)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak": status("VmHWM") - before}


def run_child(
    function: str, count: int, nbytes: int, parent: str, paths: list[str]
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, __file__, "--one", function, str(count), str(nbytes), folder]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rows", action="append", help="only rows of this name")
    parser.add_argument("--with", dest="folders", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        function, count, nbytes, folder = options.one
        print(json.dumps(measure(function, int(count), int(nbytes), folder)))
        return
    folders = dict(each.split("=", 1) for each in options.folders)
    for row, (count, nbytes, entries) in ROWS.items():
        if options.rows and row not in options.rows:
            continue
        usable = [entry for entry in entries if all(name in folders for name in entry[2])]
        results: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in usable}
        for _ in range(options.rounds):
            # In any order: a save leaves the machine's memory and disk in another state.
            for name, function, needed in random.sample(usable, len(usable)):
                paths = [folders[each] for each in needed]
                results[name].append(run_child(function, count, nbytes, options.folder, paths))
        first = None
        for name, runs in results.items():
            seconds = min(run["seconds"] for run in runs)
            peak = min(run["peak"] for run in runs) / 1e6
            first = first or seconds
            print(
                f"{row:20} {name:32} {seconds * 1e3:9.0f} ms {seconds / first:6.2f}x "
                f"peak {peak:+7.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
