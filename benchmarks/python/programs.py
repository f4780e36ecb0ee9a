"""The rows of whole programs: bench.py and bench_cpp, and bench_header."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import cache
from environments import ROOT, Environment, Unavailable, run_quietly

Answer = dict[str, Any]
HERE = Path(__file__).resolve().parent
ITERATIONS = (1, 10, 100)


def build(folder: Path) -> Path:
    """Build the C++ programs; the folder they are in. Raises Unavailable."""
    cmake = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    try:
        run_quietly(*cmake, "-DSAFETENSORS_BUILD_BENCHMARKS=ON", "-DSAFETENSORS_INSTALL=OFF")
        run_quietly("cmake", "--build", str(folder), "-j", str(os.cpu_count() or 1))
    except FileNotFoundError:
        raise Unavailable("cmake is not installed") from None
    return folder / "benchmarks" / "cpp"


def ask(command: list[str | Path], variables: dict[str, str] | None = None) -> Answer:
    """Run a program that prints one line of JSON."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    answer: Answer = json.loads(done.stdout)
    return answer


def commands(
    environments: dict[str, Environment | str], programs: Path | str, path: Path, iterations: int
) -> dict[str, list[str | Path] | str]:
    """For each implementation, the program to run, or why there is none."""
    found: dict[str, list[str | Path] | str] = {}
    for name in ("ours", "upstream"):
        environment = environments.get(name, "not asked for")
        found[name] = (
            environment
            if isinstance(environment, str)
            else [environment.python, HERE / "bench.py", path, str(iterations)]
        )
    found["ours C++"] = (
        programs if isinstance(programs, str) else [programs / "bench_cpp", path, str(iterations)]
    )
    return found


def run_row(
    environments: dict[str, Environment | str],
    programs: Path | str,
    path: Path,
    iterations: int,
    repeats: int,
) -> Answer:
    """One row: each program in turn, in fresh processes."""
    runs: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    cache.warm(path)
    for _ in range(repeats):
        for label, command in commands(environments, programs, path, iterations).items():
            if isinstance(command, str):
                skipped[label] = command
                continue
            environment = environments.get(label)
            variables = environment.variables if isinstance(environment, Environment) else None
            answer = ask(command, variables)
            if "skipped" in answer:
                skipped[label] = answer["skipped"]
            else:
                runs.setdefault(label, []).append(answer["seconds_per_iteration"])
    figures = {
        label: {"min": min(seconds), "median": statistics.median(seconds), "repeats": len(seconds)}
        for label, seconds in runs.items()
    }
    return {"figures": figures, "skipped": skipped, "same_result": True}


def header_times(programs: Path | str, subject: str | Path) -> Answer:
    """What bench_header says of a file, or of a header of so many megabytes."""
    if isinstance(programs, str):
        return {"skipped": programs}
    return ask([programs / "bench_header", str(subject), "15"])
