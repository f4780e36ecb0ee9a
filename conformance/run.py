"""Runs the cases with a program, the subject; see README.md.

python run.py [options] PROGRAM [ARGUMENT]...
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import cases

FAULTS = ("accepted", "refused", "wrong", "crash", "hang")


def run(arguments, options):
    """Returns the lines that the program printed, and its end if that was not good."""

    def limit():
        memory = (options.memory << 20) or resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            [*options.subject, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
            start_new_session=True, preexec_fn=limit,
        )  # fmt: skip
        end = None
        try:
            if status := program.wait(options.seconds):
                errors.seek(0)
                last = errors.read()[-2000:].decode(errors="replace").strip().split("\n")[-1]
                name = signal.Signals(-status).name if status < 0 else f"status {status}"
                end = {"crash": f"{name} {last}".strip()}
        except subprocess.TimeoutExpired:
            end = {"hang": f"no answer in {options.seconds} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):  # it, and what it has started
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        out.seek(0)
        return out.read().decode(errors="replace").split("\n")[:-1], end


def parse(line):
    """Returns the answer in a line that the program printed."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(answer := json.loads(line), dict):
            return answer
    return {"crash": f"printed {line[:100]!r}"}


def answers(folder, request, rows, options):
    """Yields the answer to each row of expected.json."""
    items = [[*(str(folder / name) for name in row["files"]), *row["part"]] for row in rows]
    while items:
        batch = items[: options.batch]
        lines, end = run([request, *itertools.chain(*batch)], options)
        if end and len(lines) >= len(batch):  # which of them was it?
            lines = []
        items = items[len(lines[: len(batch)]) :]
        yield from map(parse, lines[: len(batch)])
        if len(lines) < len(batch):  # alone, so that the fault is not another item's
            alone, end = run([request, *items.pop(0)], options)
            yield parse(alone[0]) if alone and not end else end or {"crash": "printed no answer"}


def difference(answer, wanted):
    """Returns how an answer differs from the one that is wanted, or an empty text."""
    if "shape" in wanted:
        found, wanted = ({"part": [each["shape"], each["digest"]]} for each in (answer, wanted))
    else:
        if "metadata" in answer and (answer["metadata"] or {}) != wanted["metadata"]:
            return f"the metadata is {answer['metadata']}"
        found, wanted = answer["tensors"], wanted["tensors"]
    if set(found) != set(wanted):
        return f"the names are {sorted(found)[:9]}"
    for name, (*kind, digest) in found.items():
        if kind != wanted[name][:-1]:
            return f"{name!r} is {kind}, not {wanted[name][:-1]}"
        if digest[:4] == "hex:":
            digest = cases.digest(bytes.fromhex(digest[4:]))
        if digest != wanted[name][-1]:
            return f"the bytes of {name!r} differ"
    return ""


def judge(folder, row, answer):
    """Returns the outcome of a case and its detail."""
    for outcome in ("crash", "hang"):
        if outcome in answer:
            return outcome, answer[outcome]
    if "unsupported" in answer:
        return "not offered", answer["unsupported"]
    if "error" in answer:
        return "refused" if row["verdict"] == "must accept" else "ok", answer["error"]
    if row["verdict"] == "must reject":
        return "accepted", ""
    try:
        if len(row["files"]) == 2:  # a spec, and the file that was written
            answer = cases.values((folder / row["files"][1]).read_bytes())
        detail = difference(answer, row["answer"]) if "answer" in row else ""
    except Exception as error:  # the answer and the file can be anything
        detail = f"{type(error).__name__}: {error}"
    return "wrong" if detail else "ok", detail


def results(folder, options):
    """Yields (request, row, outcome, detail) for each case."""
    expected = cases.write(folder, options.match)
    for request in [options.only] if options.only else expected["cases"]:
        rows = expected["cases"][request]
        for row, answer in zip(rows, answers(folder, request, rows, options), strict=True):
            yield request, row, *judge(folder, row, answer)
    if options.heavy and options.only in (None, "read"):
        for case in cases.reads():
            if case.heavy and options.match in case.name:  # one file at a time, each alone
                row = cases.write_read(folder, "heavy", case)
                (answer,) = answers(folder, "read", [row], options)
                yield "read", row, *judge(folder, row, answer)


def main():
    """Prints a table of results; returns 1 if there are faults."""
    parser = argparse.ArgumentParser(description="Runs the cases of the safetensors format.")
    parser.add_argument("--only", choices=("read", "write", "slice"), help="one kind of request")
    parser.add_argument("--match", default="", help="only cases with this text in their name")
    parser.add_argument("--heavy", action="store_true", help="also files of 40 to 100 MB")
    parser.add_argument("--seconds", type=float, default=10, help="limit of a run (default: 10)")
    parser.add_argument("--memory", type=int, default=4096, help="limit in MiB; 0: none (4096)")
    parser.add_argument("--batch", type=int, default=200, help="cases in one run (default: 200)")
    parser.add_argument("--all", action="store_true", help="list every fault")
    parser.add_argument("subject", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args()
    if not options.subject or options.batch < 1 or options.seconds <= 0 or options.memory < 0:
        parser.error("a program is needed, and limits above 0")
    counts, faults = defaultdict(Counter), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for request, row, outcome, detail in results(Path(folder), options):
                counts[request][outcome] += 1
                if outcome in FAULTS:
                    detail = " ".join(str(detail).split())[:200]
                    line = f"    {row['name']}" + (f": {detail}" if detail else "")
                    faults[request, outcome, row["rule"]].append(line)
        except OSError as error:
            parser.error(f"{options.subject[0]} cannot be started: {error}")
    for (request, outcome, rule), lines in faults.items():
        why = cases.TABLE["rules"][rule]
        print(f"{request}: {outcome}, {len(lines)} times. {why['verdict']} [{rule}]: {why['why']}")
        print(*lines[: None if options.all else 3], sep="\n")
    columns = ("ok", *FAULTS, "not offered")
    for title, found in {"": {name: name for name in columns}, **counts}.items():
        print(f"{title:8}" + "".join(f"{found[column]:>13}" for column in columns))
    if not counts:
        parser.error("no case has this text in its name")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
