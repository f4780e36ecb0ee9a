"""Exit statuses and output of the command line on terminals and pipes, and at interrupts."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from safetensors import delta
from safetensors._cli import main, output
from support import children, cli, file_builder
from support.file_builder import raw

pytestmark = pytest.mark.slow

ESCAPE = "\x1b["


@pytest.fixture
def model(tmp_path):
    return cli.write(tmp_path / "m.safetensors", cli.small(), {"format": "pt"})


def plain(text):
    """Returns the text without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


def test_colours_on_a_terminal_only(model):
    """A pipe gets the same words without colours; NO_COLOR and --color are respected."""
    pytest.importorskip("rich")
    piped = cli.output("ls", model)
    assert ESCAPE not in piped
    shown = cli.on_terminal("ls", model)
    assert ESCAPE in shown
    assert plain(shown).split() == piped.split()
    assert ESCAPE not in cli.on_terminal("ls", model, "--color", "never")
    assert ESCAPE in cli.output("ls", model, "--color", "always")
    assert cli.output("ls", model, "--tree") == plain(
        cli.output("ls", model, "--tree", "--color", "always")
    )


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_colours_that_the_environment_forces(model, name):
    pytest.importorskip("rich")
    forced = cli.output("ls", model, env={name: "1"})
    assert ESCAPE in forced
    assert plain(forced).split() == cli.output("ls", model).split()
    assert ESCAPE not in cli.output("ls", model, env={name: "0"})
    assert ESCAPE not in cli.output("ls", model, env={name: "1", "NO_COLOR": "1"})
    assert ESCAPE not in cli.output("ls", model, "--color", "never", env={name: "1"})
    assert ESCAPE not in cli.output("ls", model, env={name: "1"}, without=["rich"])


def test_narrow_terminal(tmp_path):
    """A long name is wrapped, not cut."""
    pytest.importorskip("rich")
    name = "layer." * 20 + "weight"
    path = cli.write(tmp_path / "m.safetensors", {name: raw("U8", (1,))})
    shown = plain(cli.on_terminal("ls", path, columns=40))
    assert max(map(len, shown.splitlines())) <= 40
    assert name in re.sub(r"\s", "", shown.replace("U8", "").replace("[1]", "").replace("1 B", ""))


def test_no_rich(model):
    """Without rich, output is plain, and --color names the missing package."""
    words = ["ls", model]
    assert cli.output(*words, without=["rich"]) == cli.output(*words)
    said = cli.complaint("ls", model, "--color", "always", without=["rich"])
    assert said == "colours need rich: pip install rich"


def sparse(path, nbytes):
    """A file of one tensor whose data is a hole."""
    header = file_builder.from_entries({"a": file_builder.entry("U8", (nbytes,), 0, nbytes)})
    path.write_bytes(header)
    os.truncate(path, len(header) + nbytes)
    return path


LONG = {
    "hash": ("hash", "m.safetensors"),
    "check": ("check", "--read", "my model.safetensors"),
    "show": ("show", "--bins", "0", "m.safetensors", "a"),
    "diff": ("diff", "m.safetensors", "same.safetensors"),
    "diff --patch": (
        *("diff", "m.safetensors", "same.safetensors"),
        *("--patch", "m.safetensors-patch", "--force"),
    ),
    "patch": (
        *("patch", "m.safetensors", "m.safetensors-patch"),
        *("--output", "new.safetensors", "--force"),
    ),
    "convert": ("convert", "m.safetensors", "new.safetensors", "--force"),
    "shard": ("shard", "m.safetensors", "shards", "--force"),
    "rename": ("rename", "m.safetensors", "new.safetensors", "--map", "a=b", "--force"),
    "meta": ("meta", "m.safetensors", "--set", "a=b"),
}


@pytest.mark.parametrize("columns", [30, 50, 80, 120])
@pytest.mark.parametrize("command", LONG)
def test_a_progress_bar_on_a_terminal_only(tmp_path, monkeypatch, command, columns):
    """Long commands show one line on stderr and erase it at the end."""
    pytest.importorskip("rich")
    monkeypatch.chdir(tmp_path)
    path = sparse(tmp_path / "m.safetensors", 1 << 24)
    for name in ("same.safetensors", "my model.safetensors"):
        (tmp_path / name).symlink_to(path)
    if command == "patch":
        delta.diff(path, path, "m.safetensors-patch").close()
    shown = cli.on_terminal(*LONG[command], columns=columns)
    frames = [line for line in re.split(r"[\r\n]", plain(shown)) if "━" in line]
    assert "16.8/16.8 MB" in frames[-1]
    for frame in frames:
        # What is done of it all: on the line of the bar, not below.
        assert "/16.8 MB" in frame
        assert len(frame) <= columns
        # A description that is too long is cut: wrapped, it would take a second line.
        assert ("…" in frame) == (command == "check" and columns < 80)
    assert "\x1b[1A\x1b[2K" in shown[shown.rindex("━") :]
    if columns == 50:
        assert "━" not in cli.on_terminal(*LONG[command], "--quiet")
        assert cli.run(*LONG[command]).stderr == ""


@pytest.mark.parametrize("command", LONG)
def test_a_bar_ends_at_its_total(tmp_path, monkeypatch, command):
    """Also where the header is a large part of the file."""
    ends = []

    @contextlib.contextmanager
    def progress(out, what, total):
        done = []
        yield done.append
        ends.append((what, sum(done), total))

    monkeypatch.setattr(output.Output, "progress", progress)
    monkeypatch.chdir(tmp_path)
    for name in ("m", "same", "my model"):
        cli.write(tmp_path / f"{name}.safetensors", {"a": raw("U8", (1,)), "c": raw("F32", (3,))})
    if command == "patch":
        delta.diff("m.safetensors", "same.safetensors", "m.safetensors-patch").close()
    assert main.main(LONG[command]) in (0, 1)
    assert ends
    for what, done, total in ends:
        assert done == total > 0, what


@pytest.mark.parametrize("columns", [30, 80])
def test_progress_without_rich(tmp_path, monkeypatch, columns):
    """One line on stderr, which is erased at the end."""
    monkeypatch.chdir(tmp_path)
    sparse(tmp_path / "my model.safetensors", 1 << 26)
    words = ["check", "--read", "my model.safetensors"]
    command = [*cli.started(without=["rich"]), *words]
    shown = cli.in_terminal(command, columns=columns, env={"COLUMNS": str(columns)})
    *frames, erased, result = shown.split("\r")[1:-1]
    assert frames
    for frame in frames:
        assert re.fullmatch(r"(my.*: )? *\d+ %, [\d.]+ [kM]?B of 67.1 MB *", frame)
        assert len(frame) <= columns
    assert erased.strip() == ""
    assert result.startswith("my model.safetensors: ok: ")
    quiet = cli.in_terminal([*command, "--quiet"])
    assert quiet == ""
    assert cli.run(*words, without=["rich"]).stderr == ""


def test_a_broken_pipe_is_silent(tmp_path):
    """`| head` closes the pipe early."""
    tensors = {f"tensor.{i}": raw("U8", (1,)) for i in range(20_000)}
    path = cli.write(tmp_path / "m.safetensors", tensors)
    process = subprocess.Popen(
        [sys.executable, "-m", "safetensors", "ls", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


def test_an_error_of_the_program(model, monkeypatch, capsys):
    """It asks for a report; SAFETENSORS_TRACEBACK=1 shows where it was raised."""
    from safetensors._cli import ls
    from safetensors._cli.main import main

    def fail(*_args):
        raise LookupError("what it found")

    monkeypatch.setattr(ls, "run", fail)
    monkeypatch.delenv("SAFETENSORS_TRACEBACK", raising=False)
    assert main(["ls", str(model)]) == 2
    said = capsys.readouterr().err
    assert said == "safetensors: internal error, please report it: LookupError: what it found\n"
    monkeypatch.setenv("SAFETENSORS_TRACEBACK", "1")
    assert main(["ls", str(model)]) == 2
    traced = capsys.readouterr().err
    assert 'raise LookupError("what it found")' in traced
    assert traced.endswith("LookupError: what it found\n" + said)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_that_cannot_be_written(model):
    """The error is one line and a status, also if only closing fails."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "safetensors", "ls", str(model)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "safetensors: No space left on device\n"


def test_ctrl_c(tmp_path):
    """Ctrl-C prints one word and exits with 130."""
    process = subprocess.Popen(
        [sys.executable, "-m", "safetensors", "hash", str(sparse(tmp_path / "m", 1 << 38))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(0.2)
    while not open_files(process.pid):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"", b"safetensors: interrupted\n")
    assert process.returncode == 130


def open_files(pid):
    """Whether the process has opened the file `m`."""
    try:
        return any(
            os.readlink(f"/proc/{pid}/fd/{fd}").endswith("/m")
            for fd in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def test_without_a_command():
    """The help is what somebody needs who types nothing else."""
    done = cli.run(status=2)
    assert done.stdout == ""
    assert done.stderr == cli.output("--help") == cli.output("help")
    assert cli.output("help", "ls") == cli.output("ls", "--help")


def test_help_and_version():
    """Each command's help has all its options; --version is the package's version."""
    listed = cli.output("--help")
    for command in (
        "ls",
        "show",
        "meta",
        "check",
        "diff",
        "hash",
        "convert",
        "merge",
        "completion",
    ):
        assert f"\n    {command}" in listed
        assert "--color" in cli.output(command, "--help")
    version = importlib.metadata.version("safetensors")
    assert cli.output("--version") == f"safetensors {version}\n"


def test_a_name_that_is_not_utf8(tmp_path):
    """Paths may have any bytes."""
    path = os.fsencode(tmp_path) + b"/\xff.safetensors"
    with open(path, "wb") as file:
        file.write(file_builder.to_bytes(cli.small()))
    assert "\\udcff.safetensors: ok" in cli.output("check", path)


def test_console_script(model):
    """The installed command runs the same program."""
    script = shutil.which("safetensors", path=os.path.dirname(sys.executable))
    if script is None:
        pytest.skip("the package is not installed with its script")
    done = subprocess.run([script, "ls", str(model)], capture_output=True, text=True, check=True)
    assert done.stdout == cli.output("ls", model)


def test_importing_the_package_does_not_import_it():
    """`import safetensors` does not import the command line, nor that torch or NumPy."""
    code = "import safetensors; print([m for m in sys.modules if '_cli' in m or 'rich' in m])"
    assert children.run(code) == "[]\n"
    code = (
        "import safetensors._cli.main; names = {m.partition('.')[0] for m in sys.modules}\n"
        "print(names & {'rich', 'numpy', 'torch'})"
    )
    assert children.run(code) == "set()\n"


def test_without_numpy_and_torch(tmp_path, model):
    """Everything works except `show`, .npz and .pt."""
    bare = {"without": ["numpy", "torch", "ml_dtypes"]}
    assert "5" in cli.output("ls", model, **bare)
    cli.run("meta", model, "--set", "a=" + "b" * 100, **bare)
    assert "ok" in cli.output("check", model, **bare)
    assert "0 changed" in cli.output("diff", model, model, **bare)
    assert "whole" in cli.output("hash", model, **bare)
    cli.run("convert", model, tmp_path / "out", "--max-shard-size", "30", **bare)
    cli.run("convert", tmp_path / "out", tmp_path / "merged.safetensors", **bare)
    assert "0 changed" in cli.output("diff", model, tmp_path / "merged.safetensors", **bare)
