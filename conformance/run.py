"""Runs the cases of cases.json with a program, the subject; see README.md.

python run.py [options] PROGRAM [ARGUMENT]...
"""

import argparse
import contextlib
import hashlib
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

PARTS = ("read", "write", "slice")
FAULTS = ("accepted", "refused", "wrong", "crash", "hang")


class Subject:
    """Starts the program, with limits of time and memory, and reads its answers."""

    def __init__(self, options):
        """Takes the program and the limits from the command line's options."""
        self.command, self.seconds, self.batch = options.subject, options.seconds, options.batch
        self.memory = (options.memory << 20) if options.memory else resource.RLIM_INFINITY

    def answers(self, verb, fixed, items, prepare):
        """Yields an answer for each item. `prepare` makes the files of an item: its arguments."""
        at = 0
        while at < len(items):
            batch = items[at : at + self.batch]
            arguments = [prepare(item) for item in batch]
            lines, end = self._run([verb, *fixed, *(text for item in arguments for text in item)])
            if end and len(lines) >= len(batch):  # which of them was it?
                lines = lines[:0]
            lines = lines[: len(batch)]
            yield from (_parse(line) for line in lines)
            at += len(lines)
            if len(lines) < len(batch):  # alone, so that the fault is not another item's
                alone, end = self._run([verb, *fixed, *arguments[len(lines)]])
                is_answer = alone and not end
                yield _parse(alone[0]) if is_answer else end or {"crash": "printed no answer"}
                at += 1

    def _run(self, arguments):
        """Returns the lines that the program printed, and its end if that was not good."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            program = subprocess.Popen(
                [*self.command, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                start_new_session=True, preexec_fn=self._limit,
            )  # fmt: skip
            end = None
            try:
                if status := program.wait(self.seconds):
                    errors.seek(0)
                    text = errors.read()[-2000:].decode(errors="replace").strip()
                    last = text.splitlines()[-1] if text else ""
                    name = signal.Signals(-status).name if status < 0 else f"status {status}"
                    end = {"crash": f"{name} {last}".strip()}
            except subprocess.TimeoutExpired:
                end = {"hang": f"no answer in {self.seconds} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):  # it, and what it has started
                    os.killpg(program.pid, signal.SIGKILL)
                program.wait()
            out.seek(0)
            return out.read().decode(errors="replace").split("\n")[:-1], end

    def _limit(self):
        resource.setrlimit(resource.RLIMIT_DATA, (self.memory, self.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _parse(line):
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"crash": f"printed {line[:100]!r}"}


def name_of(case):
    """Returns the name of a case's file."""
    return hashlib.sha256(case.encode()).hexdigest()[:20] + ".safetensors"


def slice_name(row):
    """Returns the name of a slice."""
    return f"{row['tensor']}[{row['index']}]"


def judge(verdict, answer, difference):
    """Returns the outcome and its detail; `difference()` says what is wrong with the values."""
    for outcome in ("crash", "hang"):
        if outcome in answer:
            return outcome, answer[outcome]
    if "unsupported" in answer:
        return "not offered", answer["unsupported"]
    if "error" in answer:
        return "refused" if verdict == "must accept" else "ok", answer["error"]
    if verdict == "must reject":
        return "accepted", ""
    try:
        found = difference()
    except (ValueError, KeyError, TypeError, OSError) as error:
        found = f"{type(error).__name__}: {error}"
    return ("wrong", found) if found else ("ok", "")


def read_difference(answer, case):
    """Compares the answer to `read` with the file."""
    if case.expect != "ok":
        return ""
    tensors, metadata = cases.contents(case.file())
    found = answer["tensors"]
    if set(found) != set(tensors):
        return f"the names are {sorted(found)[:9]}"
    for name, (dtype, shape, data) in tensors.items():
        if found[name][:2] != [dtype, shape]:
            return f"{name!r} is {found[name][0]} {found[name][1]}, not {dtype} {shape}"
        if not cases.matches(found[name][2], data):
            return f"the bytes of {name!r} differ"
    is_same = "metadata" not in answer or (answer["metadata"] or {}) == metadata
    return "" if is_same else f"the metadata is {answer['metadata']}"


def write_difference(row, path):
    """Compares the file that the subject wrote with what it should hold."""
    tensors, metadata = cases.contents(path.read_bytes())
    wanted = {
        t["name"]: [t["dtype"], t["shape"], bytes.fromhex(t["bytes"])] for t in row["tensors"]
    }
    if tensors != wanted:
        return f"the file holds {str(tensors)[:200]}"
    return "" if metadata == row.get("metadata", {}) else f"its metadata is {metadata}"


def slice_difference(answer, row):
    """Compares the answer to `slice` with the table."""
    if answer["shape"] != row["shape"]:
        return f"the shape is {answer['shape']}, not {row['shape']}"
    same = cases.matches(answer["digest"], bytes.fromhex(row["bytes"]))
    return "" if same else "the bytes differ"


def run(subject, options, folder):
    """Yields (part, name, rule, outcome, detail) for each case."""
    parts, table = [options.only] if options.only else PARTS, cases.TABLE
    reads = [case for case in cases.reads() if options.match in case.name]
    writes = [row for row in table["writes"] if options.match in row["name"]]
    slices = [row for row in table["slices"]["rows"] if options.match in slice_name(row)]

    def verdict(row):
        return table["rules"][row["rule"]]["verdict"]

    def prepare(case):
        path = folder / name_of(case.name)
        path.write_bytes(case.file())
        return [str(path)]

    def prepare_spec(row):
        out = folder / name_of(row["name"])
        out.with_suffix(".json").write_text(json.dumps(row))
        return [str(out.with_suffix(".json")), str(out)]

    if "read" in parts:
        light = [case for case in reads if not case.heavy]
        for case, answer in zip(light, subject.answers("read", [], light, prepare), strict=True):
            outcome = judge(
                verdict(case.row), answer, lambda a=answer, c=case: read_difference(a, c)
            )
            yield "read", case.name, case.row["rule"], *outcome
    if "read" in parts and options.heavy:
        for case in (case for case in reads if case.heavy):
            (answer,) = subject.answers("read", [], [case], prepare)
            yield "read", case.name, case.row["rule"], *judge(verdict(case.row), answer, str)
            (folder / name_of(case.name)).unlink()
    if "write" in parts:
        for row, answer in zip(
            writes, subject.answers("write", [], writes, prepare_spec), strict=True
        ):
            path = folder / name_of(row["name"])
            outcome = judge(verdict(row), answer, lambda r=row, p=path: write_difference(r, p))
            yield "write", row["name"], row["rule"], *outcome
    if "slice" in parts:
        path = prepare(cases.Case("slices", "ok", table["slices"]["file"]))[0]
        for tensor in dict.fromkeys(row["tensor"] for row in slices):
            rows = [row for row in slices if row["tensor"] == tensor]
            found = subject.answers("slice", [path, tensor], rows, lambda row: [row["index"]])
            for row, answer in zip(rows, found, strict=True):
                outcome = judge(
                    verdict(row), answer, lambda a=answer, r=row: slice_difference(a, r)
                )
                yield "slice", slice_name(row), row["rule"], *outcome


def main():
    """Prints a table of results; returns 1 if there are faults."""
    parser = argparse.ArgumentParser(description="Runs the cases of the safetensors format.")
    parser.add_argument("--only", choices=PARTS, help="one part of the cases")
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
            results = run(Subject(options), options, Path(folder))
            for part, name, rule, outcome, detail in results:
                counts[part][outcome] += 1
                if outcome in FAULTS:
                    faults[part, outcome, rule].append((name, detail))
        except OSError as error:
            parser.error(f"{options.subject[0]} cannot be started: {error}")
    for (part, outcome, rule), found in faults.items():
        why = cases.TABLE["rules"][rule]
        print(f"{part}: {outcome}, {len(found)} times. {why['verdict']} [{rule}]: {why['why']}")
        for name, detail in found if options.all else found[:3]:
            print(f"    {name}" + (f": {' '.join(detail.split())[:200]}" if detail else ""))
    columns = ("ok", *FAULTS, "not offered")
    print(f"{'':8}" + "".join(f"{column:>13}" for column in columns))
    for part in counts:
        print(f"{part:8}" + "".join(f"{counts[part][column]:13}" for column in columns))
    if not counts:
        parser.error("no case has this text in its name")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
