"""The shell scripts: wrong arguments, and what some of them share, also on macOS."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ["quickstart.sh", "run-tests.sh", "scripts/common.sh", "scripts/native.sh"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a terminal of Unix")


def bash(text, **environment):
    """Runs bash; returns its exit status, and what it wrote."""
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; cd '{ROOT}'; source scripts/common.sh; {text}"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def on_terminal(text):
    """Returns what bash writes to a terminal."""
    import pty

    child, terminal = pty.fork()
    if child == 0:
        os.execvp("bash", ["bash", "-c", f"cd '{ROOT}'; source scripts/common.sh; {text}"])
    found = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not data:
            break
        found += data
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    return found.decode()


@pytest.mark.parametrize(
    "script",
    [
        "quickstart.sh",
        "run-tests.sh",
        ".ci/run",
        "benchmarks/run.sh",
        "scripts/compilers.sh",
        "scripts/cross.sh",
        "scripts/packages.sh",
        "scripts/pythons.sh",
        "scripts/release.sh",
        "scripts/wheels.sh",
    ],
)
def test_wrong_argument(script):
    """One line on stderr names it, before anything is installed or built."""
    done = subprocess.run(
        ["bash", ROOT / script, "nonsense"], capture_output=True, text=True, timeout=20
    )
    assert done.returncode != 0
    assert re.fullmatch(r".*: .*nonsense.*\n", done.stderr), done.stderr
    assert "nstall" not in done.stdout


def test_busy_keeps_status_and_errors():
    """The exit status is the command's; its errors come after the line of progress."""
    status, text = bash("busy 'first step' bash -c 'echo wrong >&2; exit 7'")
    assert status == 7
    assert re.fullmatch(r"   first step \.\.\.\n   first step: \d+ s\nwrong\n", text)


def test_busy_on_a_terminal():
    """One line is written again each second, and cleared at the end."""
    text = on_terminal("busy 'first step' sleep 2.5")
    lines = text.replace("\r\n", "\n").split("\r")
    assert lines[0] == "   first step ... "
    assert lines[1] == "   first step ... 1 s "
    assert re.fullmatch(r"\x1b\[K   first step: [2-9] s\n", lines[-1])


def test_progress_ends_with_the_script():
    """No process stays behind when the script is killed."""
    text = on_terminal("""
      bash -c 'source scripts/common.sh; busy step bash -c "kill -9 \\$PPID"' 2>/dev/null
      sleep 2.5
      echo end; exit 0""")
    assert text.endswith("end\r\n")
    assert not re.search(r"step \.\.\. [2-9] s", text)


def test_bad_python():
    """A PYTHON that does not exist is named in one line."""
    assert bash("find_python", PYTHON="/absent") == (1, "error: /absent not found\n")


@pytest.mark.parametrize(("path", "wanted"), [("/a b/c", "/a b/c"), ("x y", f"{ROOT}/x y")])
def test_absolute(path, wanted):
    """Relative paths begin at the working directory; a folder need not exist."""
    assert bash(f"absolute '{path}'") == (0, wanted + "\n")


# Tools and options of GNU, and what bash 3.2 does not know or takes for an error.
GNU = r"realpath|sha256sum|\bnproc\b|readlink -f|sort -z|xargs -r"
NEWER = (
    r"mapfile|readarray|declare -A|local -n|\$\{\w+(@[A-Z]|,,|\^\^)\}|\|&|&>>|wait -n|printf '%\("
)


@pytest.mark.parametrize("name", SHARED)
def test_macos(name):
    """The scripts use what macOS has."""
    code = re.sub(r"(^|\s)#.*", "", (ROOT / name).read_text(encoding="utf-8"))
    assert len(code) > 500
    assert not re.search(f"{GNU}|{NEWER}", code)


def test_every_module_has_tests_that_notice_its_mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mutate

    frameworks = {"flax.py", "jax.py", "mlx.py", "paddle.py", "tensorflow.py"}
    for path in mutate.PACKAGE.rglob("*.py"):
        assert bool(mutate.tests_of(path)) == (path.name not in frameworks), path
    for name, patterns in mutate.TESTS.items():
        assert (mutate.PACKAGE / name).exists(), name
        for pattern in patterns:
            assert mutate.files_of(pattern), (name, pattern)


def test_tests_that_measure_time_are_marked():
    """A busy machine decides about them. Limits on how long a test waits use time.monotonic."""
    found = []
    tests = [*ROOT.glob("tests/python/test_*.py"), *ROOT.glob("weights/tests/python/test_*.py")]
    for path in sorted(tests):
        text = path.read_text()
        for each in ast.parse(text).body:
            if not isinstance(each, ast.FunctionDef) or not each.name.startswith("test_"):
                continue
            marks = [ast.unparse(mark) for mark in each.decorator_list]
            measures = re.search(
                r"\b(process_time|perf_counter)\(", ast.get_source_segment(text, each)
            )
            if measures and "pytest.mark.timed" not in marks:
                found.append(f"{path.name}: {each.name}")
    for path in sorted(ROOT.glob("tests/cpp/test_*.cpp")):
        for case in re.split(r"^(?=TEST_CASE)", path.read_text(), flags=re.MULTILINE)[1:]:
            if re.search("least_cpu_seconds|parse_seconds|_clock::now", case):
                found += [f"{path.name}: {case.splitlines()[0]}"] * ('suite("timed")' not in case)
    assert found == ['test_parallel.cpp: TEST_CASE("the timer calls at most every 20 ms") {']
