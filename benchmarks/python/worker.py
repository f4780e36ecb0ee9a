"""A process that times operations for suite.py: one line of JSON in, one out."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from work import Unsupported, Work

Answer = dict[str, Any]


def status_kb(key: str) -> int:
    """A figure of /proc/self/status, in KB; 0 where there is none."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.split(f"{key}:")[1].split()[0])


def reset_peak() -> None:
    """Make the kernel forget the peak of resident memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def settle() -> None:
    """Give back what earlier runs left: each begins as in a fresh process."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def measure(work: Work) -> Answer:
    """Run once."""
    if work.nbytes_kept is not None:
        return {"bytes": work.nbytes_kept()}
    if work.before is not None:
        work.before()
    settle()
    reset_peak()
    resident = status_kb("VmRSS")
    use = resource.getrusage(resource.RUSAGE_SELF)
    cpu, begin = time.process_time(), time.perf_counter()
    result = work.run()
    end, cpu_end = time.perf_counter(), time.process_time()
    after = resource.getrusage(resource.RUSAGE_SELF)
    answer = {
        "seconds": (end - begin) / work.calls,
        "cpu": (cpu_end - cpu) / work.calls,
        "peak": max(0, status_kb("VmHWM") - resident) * 1024,
        "minor_faults": after.ru_minflt - use.ru_minflt,
        "major_faults": after.ru_majflt - use.ru_majflt,
    }
    if work.check is not None:
        answer["check"] = work.check(result)
    del result
    gc.collect()
    return answer


def prepare(command: Answer) -> Work:
    """Look the operation up and let it get ready."""
    module, function = command["operation"].split(".")
    work = getattr(importlib.import_module(module), function)(command["args"])
    assert isinstance(work, Work)
    return work


def main() -> None:
    """Obey until the other end closes."""
    # What a package prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ready: dict[str, Work] = {}
    for line in sys.stdin:
        command = json.loads(line)
        answer: Answer = {}
        try:
            if command["do"] == "prepare":
                ready[command["label"]] = prepare(command)
            elif command["do"] == "forget":
                ready.clear()
                settle()
            else:
                answer = measure(ready[command["label"]])
        except Unsupported as error:
            answer = {"skipped": str(error)}
        except Exception as error:
            answer = {"skipped": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
