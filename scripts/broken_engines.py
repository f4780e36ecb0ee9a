"""Breaks the engine of device loads on purpose and expects the tests of order to notice.

    python scripts/broken_engines.py [NAME...]    all of them, or those named

Each entry of ENGINES leaves out or changes one step that keeps copies in order. The changed source
is compiled like its original and linked into the device tests of build/dev, which must have been
built (cmake --build --preset dev). The test that the entry names must then fail: by a check of its
own, not by a crash. No source file is changed. The exit status is 1 if an engine passes its test.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "dev"
TESTS = "tests/device/safetensors_device_tests"  # in BUILD
LIMIT = 300  # seconds for one test: one that never ends does not count as noticed
FAILED = re.compile(r"test cases: +\d+ \| +\d+ passed \| +[1-9]\d* failed")


@dataclasses.dataclass(frozen=True)
class Engine:
    """One change of one source file: `text`, which must occur there exactly once, becomes `by`."""

    name: str
    file: str
    test_case: str  # the test that must fail, as doctest's --test-case takes it
    text: str
    by: str


ENGINES = [
    Engine(
        "no_slot_wait",
        "src/device/device_reader.cpp",
        "order: a slot is filled again*",
        "    driver_.wait_for_event(slot.event);\n",
        "",
    ),
    Engine(
        "no_drain",
        "src/device/device_reader.cpp",
        "order: when a load has ended*",
        "    if (!is_stream_busy_) return;\n",
        "    return;\n",
    ),
    Engine(
        "no_wait_for_the_caller",
        "src/device/device_reader.cpp",
        "order: copies come after*",
        "      driver_.order_after(stream_, task.batch().ready.get());\n",
        "",
    ),
    Engine(
        "wait_for_one_addition_only",
        "src/device/device_reader.cpp",
        "order: each addition waits*",
        "task.batch().number != ordered_after_",
        "ordered_after_ == 0",
    ),
    Engine(
        "ready_before_landing",
        "src/device/device_reader.cpp",
        "order: a tensor that is ready*",
        """\
    driver_.wait_for_event(slot.event);
    const ChunkTask task = *slot.in_flight;
    slot.in_flight.reset();
    queue_.complete(task)""",
        """\
    const ChunkTask task = *slot.in_flight;
    slot.in_flight.reset();
    queue_.complete(task);
    driver_.wait_for_event(slot.event)""",
    ),
    Engine(
        "unmapped_though_pinned",
        "src/device/arena.cpp",
        "order: memory is unmapped only after*",
        "  if (!is_free) leak();\n",
        "",
    ),
    Engine(
        "unpinned_in_strict_capture",
        "src/device/arena.cpp",
        "order: staging memory is released while*",
        "    const ScopedRelaxedCapture relaxed(driver);\n",
        "",
    ),
    Engine(
        "pinned_pages_copied_by_forks",
        "src/device/arena.cpp",
        "order: what is read after a fork*",
        "io::copy_on_fork(pages(), false) && ",
        "",
    ),
    Engine(
        "staging_given_before_drain",
        "src/device/device_reader.cpp",
        "order: staging memory changes hands*",
        "    bool is_drained = true;\n",
        "    bool is_drained = true;\n    staging_ = {};\n",
    ),
    Engine(
        "host_copies_before_the_caller",
        "src/device/copy_to_host.cpp",
        "copy to host: comes after*",
        "      driver_.order_after(stream_, ready_.get());\n",
        "",
    ),
    Engine(
        "host_copies_from_unfilled_slots",
        "src/device/copy_to_host.cpp",
        "copy to host: takes bytes*",
        "    driver_.wait_for_event(slot.event);\n",
        "",
    ),
    Engine(
        "host_copies_left_running",
        "src/device/copy_to_host.cpp",
        "copy to host: staging memory is free*",
        "      if (is_stream_busy_) driver_.wait_for_stream(stream_);\n",
        "",
    ),
]


def changed_source(engine: Engine) -> pathlib.Path:
    """Writes the engine's source file to the build folder and returns its path."""
    source = ROOT / engine.file
    content = source.read_text()
    count = content.count(engine.text)
    if count != 1:
        raise SystemExit(
            f"{engine.name}: {engine.file} has this text {count} times:\n{engine.text}"
        )
    folder = BUILD / "broken_engines" / engine.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.name
    path.write_text(content.replace(engine.text, engine.by))
    return path


def compile_command(engine: Engine, source: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Returns the command that compiles `source` as the build compiles the original."""
    original = str(ROOT / engine.file)
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    words = next(shlex.split(e["command"]) for e in entries if e["file"] == original)
    words[words.index("-o") + 1] = str(target)
    return [str(source) if word == original else word for word in words] + ["-w"]


def link_command(target: pathlib.Path, program: pathlib.Path) -> list[str]:
    """Returns the command that links the tests with the changed object.

    The object comes first, so that the linker takes none of its functions from the library.
    """
    listed = subprocess.run(
        ["ninja", "-C", BUILD, "-t", "commands", "-s", TESTS],
        capture_output=True,
        text=True,
        check=True,
    )
    words = shlex.split(listed.stdout.strip().removeprefix(": && ").removesuffix(" && :"))
    output = words.index("-o")
    words[output + 1] = str(program)
    return [*words[:output], str(target), *words[output:]]


def is_noticed(engine: Engine) -> bool:
    """Builds the engine and returns whether its test fails."""
    source = changed_source(engine)
    target = source.with_suffix(".o")
    program = source.with_name("tests")
    subprocess.run(compile_command(engine, source, target), cwd=BUILD, check=True)
    subprocess.run(link_command(target, program), cwd=BUILD, check=True)
    try:
        test = subprocess.run(
            [program, f"--test-case={engine.test_case}", "--minimal=false"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return FAILED.search(test.stdout) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="engines; all if none is given")
    names = parser.parse_args().names
    unknown = set(names) - {engine.name for engine in ENGINES}
    if unknown:
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    chosen = [engine for engine in ENGINES if not names or engine.name in names]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = dict(zip(chosen, pool.map(is_noticed, chosen), strict=True))
    for engine, noticed in verdicts.items():
        print(f"{engine.name}: {'noticed' if noticed else 'NOT NOTICED'}")
    passed = sum(verdicts.values())
    print(f"{passed} of {len(chosen)} broken engines were noticed")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
