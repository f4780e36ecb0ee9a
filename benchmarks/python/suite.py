"""Times this package against its peers and against the machine. One command makes the files, an
environment for each peer, and the report: see benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from environments import PEERS, ROOT, Environment, Environments, Unavailable

WORK = ROOT / "build" / "bench"
Answer = dict[str, Any]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small files, few repeats: a minute")
    parser.add_argument("--rows", action="append", metavar="WORDS", help="only rows named so")
    parser.add_argument("--resume", action="store_true", help="skip the rows that have figures")
    parser.add_argument("--list", action="store_true", help="print the rows' names and stop")
    parser.add_argument("--scale", type=float, help="size of the files (1: full, quick: 0.02)")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, help="time for a row, about (8, quick: 0.4)")
    parser.add_argument("--folder", type=Path, help="where files go (build/bench/files)")
    parser.add_argument("--output", type=Path, help="where the report goes (build/bench/results)")
    parser.add_argument("--ours", type=Path, metavar="DIR", help="folder with this package, built")
    parser.add_argument("--growth", action="store_true", help="how cost grows, instead of the rows")
    parser.add_argument("--report", action="store_true", help="write the report again and stop")
    parser.add_argument("--publish", action="store_true", help="into docs/figures.md as well")
    options = parser.parse_args()
    options.ours = options.ours and options.ours.resolve()
    options.scale = options.scale or (0.02 if options.quick else 1.0)
    options.seconds = options.seconds or (0.4 if options.quick else 8.0)
    options.folder = (options.folder or WORK / "files").resolve() / f"{options.scale:g}"
    if options.output is None:
        options.output = WORK / ("results-quick" if options.quick else "results")
    return options


def gather(environments: Environments, options: argparse.Namespace) -> dict[str, Any]:
    """Every environment asked for, or why there is none."""
    found: dict[str, Environment | str] = {"base": Environment("base", environments.base)}
    for name in ("ours", *filter(None, options.peers.split(","))):
        try:
            ours = name == "ours"
            found[name] = environments.ours(options.ours) if ours else environments.peer(name)
        except Unavailable as error:
            found[name] = str(error)
            print(f"without {name}: {error}", flush=True)
    return found


def machine() -> Answer:
    """What the figures were measured on."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    except (OSError, StopIteration, IndexError):
        memory = "0"
    import numpy
    import torch

    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory) / 1e6, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[1], 1),  # before this run adds its own
        "peers": {name: package for name, (package, _) in PEERS.items()},
    }


class Results:
    """results.json: kept after each row, so that a run can go on where it stopped."""

    def __init__(self, path: Path, scale: float) -> None:
        self.path = path
        self.all: Answer = {"machine": {}, "scale": scale, "headers": {}, "rows": {}}
        if path.exists():
            before = json.loads(path.read_text())
            if before["scale"] == scale:
                self.all = before

    def put(self, name: str, answer: Answer) -> None:
        """Add a row's figures."""
        self.all["rows"][name] = answer
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.all, indent=1))
        part.replace(self.path)


def wanted(name: str, options: argparse.Namespace, results: Results) -> bool:
    """Whether a row is to be run."""
    if options.rows and not any(words in name for words in options.rows):
        return False
    return not (options.resume and name in results.all["rows"])


def run_programs(
    environments: dict[str, Any], options: argparse.Namespace, results: Results, specs: Any
) -> None:
    """bench.py and bench_cpp, and what RapidJSON takes for each header."""
    import files
    import programs

    headers = results.all["headers"]
    loads = [
        (f"{iterations} x load, {file}", file, iterations)
        for file in ("gpt2", "vggt")
        for iterations in programs.ITERATIONS
    ]
    loads = [load for load in loads if wanted(load[0], options, results)]
    parses = not options.rows and not (options.resume and headers)
    if not loads and not parses and headers:
        return
    try:
        folder: Path | str = programs.build(WORK / "cpp")
    except Unavailable as error:
        folder = f"not built: {error}"
        print(f"without the C++ programs: {error}", flush=True)
    if parses or not headers:
        headers["10 MB"] = programs.header_times(folder, "10")
        for spec in specs.values():
            path = files.make(spec, options.folder / f"{spec.name}.safetensors")
            headers[spec.name] = programs.header_times(folder, path)
        results.save()
    for name, file, iterations in loads:
        path = files.make(specs[file], options.folder / f"{file}.safetensors")
        repeats = 1 if options.quick else 3
        answer = programs.run_row(environments, folder, path, iterations, repeats)
        show(name, answer)
        results.put(name, {**answer, "unit": "ms", "ours": "ours", "upstream": "upstream"})


def run_rows(
    environments: dict[str, Any], options: argparse.Namespace, results: Results, specs: Any
) -> None:
    """The rows of rows.py."""
    import files
    from rows import all_rows
    from runner import Pace, Runner

    pace = Pace(1, 2, options.seconds, 1) if options.quick else Pace(2, 15, options.seconds, 9)
    runner = Runner(environments, options.folder, pace)
    try:
        for row in all_rows():
            if not wanted(row.name, options, results):
                continue
            spec = specs[row.file]
            path = files.make(spec, options.folder / f"{row.file}.safetensors")
            common = {
                "path": str(path),
                "small": str(files.make(specs["lora"], options.folder / "lora.safetensors")),
                "out": str(options.folder / "out.safetensors"),
                "nbytes": spec.nbytes,
                "count": len(spec.shapes),
            }
            answer = runner.run(row, path, common)
            if row.parses:
                answer["parse"] = results.all["headers"].get(row.file, {}).get("rapidjson", 0)
            answer |= {"unit": row.unit, "wanted": row.wanted, "nbytes": spec.nbytes}
            answer |= {"ours": row.ours, "upstream": row.upstream, "cold": row.cold}
            answer["fresh"] = row.fresh
            answer["limits"] = [entry.label for entry in row.limits]
            show(row.name, answer)
            results.put(row.name, answer)
    finally:
        runner.close()
        (options.folder / "out.safetensors").unlink(missing_ok=True)


def show(name: str, answer: Answer) -> None:
    """One line for whoever waits."""
    from report import cell

    unit = answer.get("unit", "ms")
    figures = ", ".join(f"{label} {cell(answer, label)}" for label in answer["figures"])
    print(f"{name} [{unit}]: {figures}", flush=True)
    if not answer["same_result"]:
        print("  NOT THE SAME RESULT", flush=True)


def row_names() -> list[str]:
    """All names, in the order of the table."""
    import programs
    from rows import all_rows

    first = [f"{n} x load, {file}" for file in ("gpt2", "vggt") for n in programs.ITERATIONS]
    return [*first, *(row.name for row in all_rows())]


def main() -> None:
    """Make the base, go on inside it, run, report."""
    options = parse()
    environments = Environments(WORK / "env")
    try:
        environments.make_base()
    except Unavailable as error:
        raise SystemExit(f"torch and NumPy could not be installed: {error}") from None
    if Path(sys.prefix) != environments.base.parent.parent:
        # The base has NumPy and what draws the plots; this interpreter may have neither.
        os.execv(environments.base, [str(environments.base), *sys.argv])
    if options.list:
        print(*row_names(), sep="\n")
        return
    import files
    import report

    options.folder.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.growth:
        import growth

        growth.main(gather(environments, options), options)
        return
    results = Results(options.output / "results.json", options.scale)
    if not options.report:
        began = time.monotonic()
        results.all["machine"] = machine()
        specs = files.all_specs(options.scale)
        files.check_space(specs, options.folder)
        found = gather(environments, options)
        run_programs(found, options, results, specs)
        run_rows(found, options, results, specs)
        results.all["minutes"] = round((time.monotonic() - began) / 60, 1)
        results.save()
    text = report.write(results.all, row_names(), options.output)
    if options.publish:
        report.publish(text, ROOT / "docs" / "figures.md")
    print(f"the report is in {options.output}")


if __name__ == "__main__":
    main()
