"""No text of a file reaches the terminal as a control sequence, for all commands and options."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest

from safetensors._cli.main import commands, parser
from support import cli, file_builder
from support.file_builder import raw

pytestmark = pytest.mark.slow

STEERING = {
    "title": "\x1b]0;owned",
    "clear": "\x1b[2J",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "c1": "\x9b2J",
    "bidi": "\u202e\u2066\u200f",
    "return": "\rowned",
    "backspace": "\x08\x08",
    "delete": "\x7f",
    "newline": "\nowned",
    "separator": "\u2028\x85",
}
MARK = "~"
"""Before each character that steers, so that the tests tell a file's from the terminal's own."""
MARKUP = "[link=http://owned.example]x[/link][/]"
"""Rich's, and wrong at its end."""
HOSTILE = "".join(re.sub(r"([^ -\x7e])", MARK + r"\1", text) for text in STEERING.values())
HOSTILE += MARKUP
# As bytes on the disk that are no UTF-8: the terminal may take them for C1 controls.
HOSTILE_FILE = HOSTILE.replace("/", "|") + "\udc9b"

# Of rich: colours, the cursor hidden and shown, and the line of a progress bar taken back.
ALLOWED = re.compile(
    r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r?\x1b\[(?:2K|1A)|\r(?=\n)"
    # The line of progress without rich, and what erases it.
    r"|\r(?=[^\r\n]*[0-9] [kMG]?B of [0-9.]+ [kMG]?B *\r)|\r *\r"
)

# Runs many command lines in one process: starting Python anew for each takes long.
DRIVER = """
import json, os, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from safetensors._cli.main import main
for words in json.loads(sys.argv[2]):
    print("$", flush=True)
    try:
        status = main(list(map(os.fsdecode, map(bytes.fromhex, words))))
    except SystemExit as error:
        status = error.code
    print("=", status, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files in which every text has control sequences, in a folder with such a name."""
    top = tmp_path_factory.mktemp("hostile") / HOSTILE_FILE
    top.mkdir()
    tensors = {
        HOSTILE: raw("F32", (2, 3)),
        f"a.{HOSTILE}.b": raw("F32", (4,)),
        f"a.{HOSTILE}.c": raw("U8", (4,)),
        "long": raw("U8", (1 << 20,)),
        MARKUP: raw("U8", (4,)),
    }
    cli.write(top / "m.safetensors", tensors, {HOSTILE: HOSTILE})
    cli.write(top / "n.safetensors", {"b" + HOSTILE: raw("U8", (1,))}, {"b" + HOSTILE: HOSTILE})
    bad = {HOSTILE: file_builder.entry(HOSTILE, (1,), 0, 4)}
    (top / "dtype.safetensors").write_bytes(file_builder.from_entries(bad, b"1234"))
    bad = {HOSTILE: file_builder.entry("F32", (1,), 0, 8)}
    (top / "size.safetensors").write_bytes(file_builder.from_entries(bad, b"12345678"))
    (top / "text.safetensors").write_bytes(file_builder.with_length(HOSTILE.encode()))
    shards = top / "shards"
    cli.write(shards / HOSTILE_FILE, {HOSTILE: raw("U8", (1,))})
    cli.write(shards / "b.safetensors", {"b": raw("U8", (1,))})
    cli.write_index(shards, {HOSTILE: HOSTILE_FILE, "b": "b.safetensors"})
    (top / "lost").mkdir()
    cli.write_index(top / "lost", {HOSTILE: HOSTILE})
    (top / "away").mkdir()
    cli.write_index(top / "away", {HOSTILE: "../" + HOSTILE})
    cli.write(top / "model" / "model.safetensors", {HOSTILE: raw("F32", (2, 3))})
    config = {
        "model_type": HOSTILE,
        "architectures": [HOSTILE],
        "rope_scaling": {"rope_type": HOSTILE},
    }
    (top / "model" / "config.json").write_text(json.dumps(config))
    cli.write(top / "wrong" / "model.safetensors", {HOSTILE: raw("F32", (2, 3))})
    config = {"model_type": HOSTILE, "eos_token_id": [HOSTILE]}
    (top / "wrong" / "config.json").write_text(json.dumps(config))
    (top / f"x{HOSTILE_FILE}.safetensors.index.json").write_text("[1]")
    (top / "switch").mkdir()
    (top / "switch" / f".x{HOSTILE_FILE}.{'0' * 16}.switch").write_text('{"a": 1}')
    with zipfile.ZipFile(top / "a.npz", "w") as archive:
        archive.writestr("owned" + HOSTILE, b"")
    (top / "m.gguf").write_bytes(gguf({"general.architecture": HOSTILE, "a" + HOSTILE: HOSTILE}))
    (top / "html").write_text("<html>" + HOSTILE)
    return top


def gguf(metadata):
    """Returns a GGUF file with texts, and without tensors."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    pairs = [text(key) + struct.pack("<I", 8) + text(value) for key, value in metadata.items()]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)


def command_lines(top):
    """Returns calls of each command with each of its options, and calls that fail."""
    m, n = top / "m.safetensors", top / "n.safetensors"
    key = HOSTILE
    model = top / "model"
    patch = top / "new.safetensors-patch"
    lines = [
        *(["ls", m, *option] for option in ([], ["--tree"], ["--tree", "--depth", "1"])),
        *(["ls", m, *option] for option in (["--totals"], ["--json"], ["--sort", "size"])),
        ["ls", m, "--match", "*" + MARK + "*"],
        ["ls", m, "--match", HOSTILE],
        ["ls", m, "-q", "--sort", "file"],
        *(["ls", "--model", model, *option] for option in ([], ["--tree"], ["--json"], ["-q"])),
        ["ls", "--model", top / "wrong"],
        *(["ls", top / name] for name in ("shards", "lost", "away", "dtype.safetensors")),
        ["ls", top],
        ["ls", top / f"x{HOSTILE_FILE}.safetensors.index.json"],
        ["ls", top / HOSTILE_FILE],
        ["show", m, HOSTILE],
        ["show", m, MARKUP],
        ["show", m, HOSTILE, "--json", "--bins", "2"],
        ["show", m, "a" + HOSTILE],
        ["show", m, HOSTILE[:-1]],
        ["show", "--model", model, HOSTILE],
        ["show", "--raw", model, HOSTILE[:-1]],
        ["diff", "--stats", m, n],
        ["diff", "--stats", "--model", m, model, "--json"],
        ["diff", "--stats", m, n, "--tolerance", HOSTILE],
        ["hash", "--model", model],
        ["hash", "--model", top / "wrong"],
        ["check", "--model", model],
        ["check", "--model", top / "wrong"],
        ["meta", top / "m.gguf"],
        ["meta", top / "m.gguf", "--json"],
        ["check", top / "m.gguf"],
        ["ls", top / "html"],
        ["meta", m],
        ["meta", m, key],
        ["meta", m, key, "-q"],
        ["meta", m, key, "--json"],
        ["meta", m, "--json"],
        ["meta", m, "none" + HOSTILE],
        ["meta", m, "--remove", "none" + HOSTILE],
        ["meta", m, "--set", HOSTILE.replace("=", "")],
        ["meta", m, "--set", "a=" + HOSTILE, "--remove", "a"],
        ["meta", n, "--set", "b=" + HOSTILE, "--fsync"],
        [
            "check",
            m,
            "--read",
            *(top / f"{name}.safetensors" for name in ("dtype", "size", "text")),
        ],
        ["check", "--json", m, top / "size.safetensors", top / "shards", top / "lost"],
        ["check", "-q", top / "shards", top / "lost", top / "away", top / HOSTILE_FILE],
        ["diff", m, n],
        ["diff", n, m, "--json"],
        ["diff", m, n, "--no-data", "-q"],
        ["diff", m, m, "--no-metadata"],
        ["diff", m, n, "--patch", patch],
        ["ls", patch],
        ["ls", patch, "--json"],
        ["show", patch, "*", "--bins", "0"],
        ["check", patch],
        ["patch", m, patch, "--output", top / "new patched.safetensors"],
        ["patch", n, patch, "--output", top / "new patched.safetensors"],
        ["hash", m],
        ["hash", m, "--json"],
        ["hash", m, "--whole"],
        ["report", m, "--against", n, "-o", top / "new.html"],
        ["report", m, "--quick", "-o", m],
        ["report", top / HOSTILE_FILE, "-o", top / "new none.html"],
        ["report", m, "--against", top / HOSTILE_FILE, "-o", top / "new none.html"],
        ["convert", m, top / "new.safetensors"],
        ["convert", m, top / "new.safetensors", "--fsync"],
        ["convert", m, top / "new.safetensors", "--force"],
        ["convert", m, top / "new shards", "--max-shard-size", "1kB"],
        ["convert", m, top / "new", "--max-shard-size", HOSTILE],
        ["convert", m, top / "new.safetensors", "--key", HOSTILE],
        ["convert", top / "a.npz", top / "a.safetensors"],
        ["convert", model, top / "new plain.safetensors", "--dtype", "bf16", "--verify"],
        ["convert", top / "wrong", top / "new plain.safetensors", "--dtype", "bf16"],
        ["convert", model, top / "new folder/", "--dtype", HOSTILE],
        ["shard", m, top / "new more shards", "--max-shard-size", "1kB", "--dry-run"],
        ["shard", m, top / "new more shards", "--max-shard-size", "1kB"],
        ["shard", m, top / "new more shards", "--max-shard-size", HOSTILE],
        ["merge", m, n, top / "new both.safetensors"],
        ["merge", m, m, top / "new twice.safetensors"],
        ["extract", m, top / "new part.safetensors", "--keep", "*" + MARK + "*"],
        ["extract", m, top / "new part.safetensors", "--drop", HOSTILE],
        ["rename", m, top / "new names.safetensors", "--map", f"{MARKUP}={HOSTILE}x"],
        ["rename", m, top / "new other.safetensors", "--map", f"{HOSTILE}={MARKUP}"],
        ["rename", m, top / "new other.safetensors", "--prefix", f"{HOSTILE}{HOSTILE}=a"],
        ["recover", top / "shards"],
        ["recover", top / "switch"],
        ["recover", top / "switch", "-q"],
        ["recover", top / HOSTILE_FILE / "none"],
        ["sign", top / "shards", "--key", m],
        ["sign", top / HOSTILE_FILE, "--key", m],
        ["verify", top / "shards", "--key", m],
        ["verify", top / "shards", "--signature", m, "--key", top / HOSTILE_FILE],
        ["ls", top / "switch"],
        ["ls", m, HOSTILE],
        ["ls", m, "--sort", HOSTILE],
        ["ls", m, "--" + HOSTILE],
        ["ls", m, "--depth", HOSTILE],
        [HOSTILE],
        ["completion", HOSTILE],
        ["ls", "--help"],
    ]
    return [[os.fsencode(word).hex() for word in line] for line in lines]


def test_every_command_is_called(folder):
    called = {bytes.fromhex(words[0]).decode("utf-8", "replace") for words in command_lines(folder)}
    assert called > set(commands(parser()))


MODES = [("rich", "auto"), ("rich", "always"), ("rich", "never"), ("", "auto"), ("", "never")]


@pytest.mark.parametrize(("has_rich", "color"), MODES)
@pytest.mark.parametrize("traceback", ["", "1"])
def test_no_control_sequence_reaches_a_terminal(folder, has_rich, color, traceback):
    """This holds for stdout, stderr, progress bars, errors, usage and tracebacks."""
    pytest.importorskip("numpy")
    if has_rich:
        pytest.importorskip("rich")
    for made in folder.glob("new*"):
        made.unlink() if made.is_file() else shutil.rmtree(made)
    option = [os.fsencode(word).hex() for word in ("--color", color)]
    lines = [[*words, *option] for words in command_lines(folder)]
    blocked = [] if has_rich else ["rich"]
    printed = cli.in_terminal(
        [sys.executable, "-c", DRIVER, json.dumps(blocked), json.dumps(lines)],
        columns=10_000,
        env={"SAFETENSORS_TRACEBACK": traceback},
    )
    runs = printed.split("$\r\n")[1:]
    assert len(runs) == len(lines)
    for words, run in zip(lines, runs, strict=True):
        said = [os.fsdecode(bytes.fromhex(word)) for word in words]
        assert "internal error" not in run, said
        left = ALLOWED.sub("", run)
        assert MARK + "\n" not in left, said
        assert not re.search(r"[^\n -\x7e\u2500-\u259f]", left), (said, left)


def piped(*words):
    """Returns the bytes that the command wrote to a pipe."""
    command = [*cli.started(), *map(os.fspath, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def test_a_pipe_gets_the_unchanged_text_of_a_key(folder):
    """`meta FILE KEY` prints the value for programs; tables keep one line for each row."""
    m = folder / "m.safetensors"
    for color in ("auto", "always", "never"):
        if color == "always":
            pytest.importorskip("rich")
        assert piped("meta", m, HOSTILE, "--color", color) == HOSTILE.encode() + b"\n"
    assert piped("meta", m).count(b"\n") == 2
    assert b"\x1b" not in piped("ls", m)


def test_warnings_of_libraries_are_notes(tmp_path):
    """A warning is one line, without the position in the library's source."""
    pytest.importorskip("numpy")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L,)}"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        # As NumPy wrote it under Python 2.
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x76\x00" + header + bytes(4))
    done = cli.run("convert", tmp_path / "a.npz", tmp_path / "a.safetensors")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("safetensors: Reading `.npy`")
    assert ".py:" not in done.stderr
