"""`--help` of the command line, and shell completion."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from safetensors._cli.main import commands, main, parser
from support import cli
from support.file_builder import raw

COMMANDS = commands(parser())


def examples(command):
    """The lines after "examples:" in a command's help."""
    return cli.output(command, "--help").split("\nexamples:\n")[1].splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_examples(command):
    """Each command has examples, and its parser accepts them."""
    lines = examples(command)
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line.split("|")[-1] if command == "ls" else line.split("||")[0])
        words = words[: words.index(">")] if ">" in words else words
        assert words[:2] == ["safetensors", command]
        parser().parse_args(words[1:])


@pytest.mark.parametrize("command", ["ls", "show", "meta", "check", "diff", "hash", "report"])
def test_the_help_names_all_that_is_opened(command):
    shown = " ".join(cli.output(command, "--help").split())
    assert "a file, a folder, an index or a GGUF model" in shown


def test_statuses_are_listed():
    assert "\n  1    the answer is no: " in cli.output("--help")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files to complete, and a completion script for each shell."""
    pytest.importorskip("shtab")
    top = tmp_path_factory.mktemp("completion")
    cli.write(top / "model.safetensors", cli.small())
    (top / "zsh").mkdir()
    for shell, script in {
        "bash": "bash.script",
        "fish": "fish.script",
        "zsh": "zsh/_safetensors",
    }.items():
        (top / script).write_text(cli.output("completion", shell))
    (top / "bin").mkdir()
    program = top / "bin" / "safetensors"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m safetensors "$@"\n')
    program.chmod(0o755)
    return top


COMPLETED = [
    ("safetensors sho", ["show"]),
    ("safetensors ", [*COMMANDS]),
    ("safetensors ls --sort s", ["size"]),
    ("safetensors convert --max", ["--max-shard-size"]),
    ("safetensors shard --max", ["--max-shard-size"]),
    ("safetensors ls m", ["model.safetensors"]),
    ("safetensors check --read x m", ["model.safetensors"]),
    ("safetensors convert model.safetensors m", ["model.safetensors"]),
    ("safetensors completion b", ["bash"]),
    ("safetensors show --json model.safetensors h.0", ["h.0.bias", "h.0.weight"]),
    ("safetensors show model.safetensors mask h.10", ["h.10.weight"]),
]

# What readline does: the words and the cursor in variables, the answer in another.
BASH = """
source bash.script
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
[[ $(complete -p safetensors) =~ -F\\ ([^ ]+) ]]
${BASH_REMATCH[1]}
printf '%s\\n' "${COMPREPLY[@]}"
"""


def found(command, folder):
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_bash(folder, line, expected):
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    assert found(["bash", "-c", BASH, "bash", *line.split(" ")], folder) == set(expected)


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_fish(folder, line, expected):
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    code = f"source fish.script; complete -C {shlex.quote(line)}"
    assert found(["fish", "--no-config", "-c", code], folder) == set(expected)


# One answer each, as zsh shows lists of them; its script completes the first path of `check` only.
ZSH = [each for each in COMPLETED if len(each[1]) == 1 and "--read" not in each[0]]


@pytest.mark.parametrize(("line", "expected"), ZSH)
def test_zsh(folder, line, expected):
    """The text is typed with a tab key: zsh completes only in its line editor."""
    if shutil.which("zsh") is None:
        pytest.skip("no zsh")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "PS1": "", "TERM": "dumb"})
    setup = "fpath=($PWD/zsh $fpath); autoload -Uz compinit; compinit -u -D\n"
    # Stands for the program, and says what it was given.
    setup += "safetensors() { print GI''VEN: ${@[-1]} END }; print READ''Y\n"
    os.write(terminal, setup.encode())
    read_until(terminal, b"READY")
    os.write(terminal, line.encode() + b"\t\n")
    shown = read_until(terminal, b" END")
    os.write(terminal, b"exit\n")
    read_until(terminal, b"exit")
    os.close(terminal)
    os.waitpid(process, 0)
    assert f"GIVEN: {expected[0]} END".encode() in shown


def read_until(terminal, words):
    """Returns the output until it contains these words or stops."""
    shown, end = b"", time.monotonic() + 30
    while words not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    return shown


def test_without_shtab():
    said = cli.complaint("completion", "bash", without=["shtab"])
    assert said == "completion needs shtab: pip install shtab"


def test_the_program_of_the_distribution_beside(monkeypatch, capsys):
    """safetensors-cpp completes, shows and complains by its own name."""
    pytest.importorskip("shtab")
    monkeypatch.setattr("sys.argv", ["/bin/safetensors-cpp", "completion", "bash"])
    assert main() == 0
    script = capsys.readouterr().out
    assert script.rstrip().endswith("-F _shtab_safetensors_cpp safetensors-cpp")
    first = next(line for line in script.splitlines() if "_subparsers=(" in line)
    assert first.endswith(" completion enable disable status)")
    assert main(["ls", "none"]) == 2
    assert capsys.readouterr().err == "safetensors-cpp: none: No such file or directory\n"
    assert "safetensors-cpp ls -" in parser().format_help() + commands(parser())["ls"].format_help()


def names(*words):
    done = subprocess.run(
        [sys.executable, "-m", "safetensors", "--complete-names", *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_names_that_a_shell_would_evaluate_are_not_completed(tmp_path):
    """They are of strangers, and Enter runs the line that they are put on."""
    hostile = [
        "a$(touch owned)",
        "a`b`",
        "a;b",
        "a b",
        "-a",
        "a\nb",
        "a'b",
        'a"b',
        "a|b",
        "a&b",
        "ä*",
    ]
    tensors = {name: raw("U8", (1,)) for name in [*hostile, "a.0-b/c+d_e"]}
    path = cli.write(tmp_path / "m.safetensors", tensors)
    assert names(path, "") == ["a.0-b/c+d_e"]
    assert names(path, "b") == []


def test_what_has_no_names_is_silent(tmp_path):
    (tmp_path / "bad.safetensors").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for path in ("bad.safetensors", "nothing", "pipe", ""):
        assert names(tmp_path / path, "") == []
    assert names("-", "") == names("https://localhost:1/x", "") == names() == []
