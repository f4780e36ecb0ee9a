"""How cost grows with the number of tensors and with their size, for this package and upstream."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import files
from growth_plot import COLORS, plot
from rows import Row, packages
from runner import Pace, Runner

Answer = dict[str, Any]
COUNTS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
SIZES = (1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30)
PARTS = 16
GETS = 5000
# A point is left out when the one before it says that it would take longer.
LONGEST = 60.0
OPERATIONS: dict[str, tuple[str, Answer]] = {
    "open": ("open_file", {}),
    "keys()": ("keys", {}),
    "get_tensor, each": ("get_tensor", {"scattered": True, "count": GETS}),
    "load_file, lazy": ("load_torch", {}),
    "load_file, every page touched": ("read_torch", {}),
    "load_file pread": ("load_torch", {"backend": "pread"}),
    "save_file": ("save_file", {}),
}
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
HEAD = ("load_file, lazy", "load_file, every page touched", "load_file pread", "save_file")
"""The operations at the head of docs/performance.md."""


def by_count(count: int) -> files.Spec:
    """Tensors of one element, with names so short that a million fit the longest header."""
    shapes: files.Shapes = {f"t{i}": (1,) for i in range(count)}
    return files.Spec(f"count-{count}", "", "F32", shapes)


def by_size(nbytes: int) -> files.Spec:
    """A few tensors that are so large together."""
    shapes: files.Shapes = {f"t{i}": (nbytes // 4 // PARTS,) for i in range(PARTS)}
    return files.Spec(f"size-{nbytes}", "", "F32", shapes)


def measure(specs: dict[int, files.Spec], runner: Runner) -> Answer:
    """Seconds by operation, package and point."""
    found: Answer = {name: {package: {} for package in COLORS} for name in OPERATIONS}
    before: int | None = None
    for point, spec in specs.items():
        path = files.make(spec, runner.folder / f"{spec.name}.safetensors")
        common = {"path": str(path), "out": str(runner.folder / "out.safetensors")}
        for name, (operation, args) in OPERATIONS.items():
            lines = found[name]
            factor = point / before if before else 1.0
            entries = tuple(
                entry
                for entry in packages(operation, **args)
                if lines[entry.label].get(before, 0) * factor < LONGEST
            )
            answer = runner.run(Row(name, spec.name, entries), path, common)
            for label, figure in answer["figures"].items():
                lines[label][point] = figure["min"]
            print(f"{spec.name}, {name}: {answer['skipped'] or ''}", flush=True)
        path.unlink()
        before = point
    (runner.folder / "out.safetensors").unlink(missing_ok=True)
    return found


def draw_all(every: Answer, folder: Path) -> None:
    """The plots of the head of the page, and those of the other operations."""
    for title, found in every.items():
        word = title.split()[0]
        head = {name: found[name] for name in HEAD}
        (folder / f"growth-{word}.svg").write_text(plot(head, title))
        rest = {name: lines for name, lines in found.items() if name not in HEAD}
        (folder / f"growth-{word}-rest.svg").write_text(plot(rest, title))


def read(path: Path) -> Answer:
    """What growth.json has, with points as numbers again."""
    every: Answer = json.loads(path.read_text())
    return {
        title: {
            name: {
                label: {int(point): seconds for point, seconds in line.items()}
                for label, line in lines.items()
            }
            for name, lines in found.items()
        }
        for title, found in every.items()
    }


def main(environments: dict[str, Any], options: argparse.Namespace) -> None:
    """Measure both ways, write growth.json and the plots."""
    counts = COUNTS[:4] if options.quick else COUNTS
    sizes = SIZES[:3] if options.quick else SIZES
    pace = Pace(1, 2, 0.2, 1) if options.quick else Pace(2, 7, 3.0, 1)
    ways = {
        "number of tensors": {count: by_count(count) for count in counts},
        "bytes": {size: by_size(size) for size in sizes},
    }
    every: Answer = {}
    for title, specs in ways.items():
        runner = Runner(environments, options.folder, pace)
        try:
            every[title] = measure(specs, runner)
        finally:
            runner.close()
        for folder in [options.output, *([IMAGES] if options.publish else [])]:
            draw_all(every, folder)
            (folder / "growth.json").write_text(json.dumps(every, indent=1))
    print(f"the report is in {options.output}")
