"""Runs rows: one long-lived process for each implementation, in turn at every repeat."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cache
from environments import Environment
from rows import Entry, Row

Answer = dict[str, Any]
HERE = Path(__file__).resolve().parent
PATIENCE = 240  # seconds for one run, after which a worker is given up


class Worker:
    """The other end of worker.py."""

    def __init__(self, environment: Environment) -> None:
        self.process = subprocess.Popen(
            [environment.python, HERE / "worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment.variables, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.prepared: set[str] = set()

    def ask(self, **command: Any) -> Answer:
        """Send a command and wait for what came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            line = self.process.stdout.readline() if ready else ""
        except OSError:
            line = ""
        if line:
            answer: Answer = json.loads(line)
            return answer
        self.stop()
        return {"skipped": f"no answer (exit status {self.process.wait()})"}

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@dataclass
class Pace:
    """How often a row is run."""

    least: int
    most: int
    seconds: float  # no further repeat once a row took so long
    processes: int  # of each implementation, for rows of fresh processes


class Runner:
    """Holds the workers."""

    def __init__(
        self, environments: dict[str, Environment | str], folder: Path, pace: Pace
    ) -> None:
        self.environments = environments
        self.folder = folder
        self.pace = pace
        self.workers: dict[str, Worker] = {}

    def worker(self, name: str) -> Worker | str:
        """The worker of an environment, started when first asked for; or why there is none."""
        environment = self.environments.get(name, "not asked for")
        if isinstance(environment, str):
            return environment
        if name not in self.workers or not self.workers[name].alive:
            self.workers[name] = Worker(environment)
        return self.workers[name]

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.stop()
        self.workers.clear()

    def run(self, row: Row, path: Path, common: Answer) -> Answer:
        """All repeats of a row; figures by label."""
        runs: dict[str, list[Answer]] = {}
        skipped: dict[str, str] = {}
        entries = [*row.entries, *row.limits]
        if not row.cold:
            cache.warm(path)
        began = 0.0
        for repeat in range(self.pace.processes if row.fresh else self.pace.most):
            for entry in entries:
                if entry.label in skipped:
                    continue
                if row.fresh and entry.environment in self.workers:
                    self.workers.pop(entry.environment).stop()
                answer = self.run_entry(row, entry, path, common)
                if "skipped" in answer:
                    skipped[entry.label] = answer["skipped"]
                else:
                    runs.setdefault(entry.label, []).append(answer)
            if row.fresh:
                continue
            if repeat == 0:
                began = time.monotonic()  # the first repeat includes what only the first takes
            elif repeat + 1 >= self.pace.least:
                spent = time.monotonic() - began
                if spent * (repeat + 1) / repeat > self.pace.seconds:
                    break
        for name in {entry.environment for entry in entries} & set(self.workers):
            self.workers[name].ask(do="forget")
            self.workers[name].prepared.clear()
        checks = {
            run["check"]
            for entry in row.entries
            for run in runs.get(entry.label, ())
            if "check" in run
        }
        figures = {label: summary(answers) for label, answers in runs.items()}
        return {"figures": figures, "skipped": skipped, "same_result": len(checks) <= 1}

    def run_entry(self, row: Row, entry: Entry, path: Path, common: Answer) -> Answer:
        """One run of one implementation."""
        worker = self.worker(entry.environment)
        if isinstance(worker, str):
            return {"skipped": worker}
        if entry.label not in worker.prepared:  # a new worker has nothing prepared
            command = {"operation": entry.operation, "args": {**common, **entry.args}}
            answer = worker.ask(do="prepare", label=entry.label, **command)
            if "skipped" in answer:
                return answer
            worker.prepared.add(entry.label)
        if row.cold:
            for each in sorted(path.parent.glob(f"{path.stem}.*")):
                left = cache.drop(each)
                if left > 0.005:
                    return {"skipped": f"{left:.0%} of {each.name} stayed in the page cache"}
        return worker.ask(do="run", label=entry.label)


def summary(answers: list[Answer]) -> Answer:
    """Minimum, median and maximum of the time, and the least of everything else."""
    if "bytes" in answers[0]:
        least = min(answer["bytes"] for answer in answers)
        return {"min": least, "median": least, "max": least, "repeats": len(answers)}
    seconds = [answer["seconds"] for answer in answers]
    counts = ("cpu", "peak", "minor_faults", "major_faults")
    return {
        "min": min(seconds),
        "median": statistics.median(seconds),
        "max": max(seconds),
        "repeats": len(seconds),
        **{key: min(answer[key] for answer in answers) for key in counts},
    }
