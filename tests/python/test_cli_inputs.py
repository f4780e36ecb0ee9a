"""What commands read: regular files and standard input."""

import contextlib
import json
import os
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from safetensors import safe_open
from safetensors._shards import find_shards
from support import cli
from support.file_builder import raw

pytestmark = pytest.mark.slow

FED = ["ls", "ls --json", "ls --tree", "show mask", "meta", "meta format", "check", "check --read"]
FED += ["hash", "diff"]


@pytest.fixture
def model(tmp_path):
    return cli.write(tmp_path / "m.safetensors", cli.small(), {"format": "pt"})


def fed(words, content, **options):
    """Returns the command's stdout and stderr for this standard input, which is a pipe."""
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as writer, open(reading, "rb") as stream:
        writer.submit(fill, writing, content)
        done = cli.run(*words, stdin=stream, **options)
    return done.stdout + done.stderr


def fill(pipe, content):
    with open(pipe, "wb") as file, contextlib.suppress(BrokenPipeError):
        file.write(content)


@pytest.mark.parametrize("command", FED)
def test_standard_input(model, tmp_path, command):
    """`-` gives the same output as the file, from a pipe or redirected, and leaves no file."""
    command, *options = command.split()
    words = [command, "-", model, *options] if command == "diff" else [command, "-", *options]
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    expected = cli.output(*[model if word == "-" else word for word in words])
    expected = expected.replace(str(model) + ":", "-:").replace(f'"{model}"', '"-"')
    assert fed(words, model.read_bytes(), env=env) == expected
    with open(model, "rb") as file:
        assert cli.output(*words, stdin=file) == expected
    assert os.listdir(tmp_path / "temporary") == []


FOLDERS = {
    "hidden files": ["m.safetensors", "._m.safetensors", "._x.safetensors.index.json", "._m.gguf"],
    "the model's index and another": ["model.safetensors.index.json", "v.safetensors.index.json"],
    "another index": ["v.safetensors.index.json"],
}


@pytest.mark.parametrize("names", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_is_what_load_files_takes(tmp_path, names):
    """Hidden files and further indexes are no errors."""
    for name in names:
        (tmp_path / name).write_bytes(b"left by a file manager")
        if name.endswith(".index.json") and not name.startswith("."):
            # Of the two files, the model's index has the first, and others the second.
            file = "a.safetensors" if name.startswith("model") else "b.safetensors"
            cli.write_index(tmp_path, {file[0]: file}, name=name)
    for name in ("m",) if "m.safetensors" in names else ("a", "b"):
        cli.write(tmp_path / f"{name}.safetensors", {name: raw("U8", (1,))})
    expected = {name for shard in find_shards(tmp_path) for name in handle_keys(shard.path)}
    assert expected
    listed = cli.parsed("ls", tmp_path)
    assert {tensor["name"] for file in listed["files"] for tensor in file["tensors"]} == expected
    assert cli.output("check", tmp_path)
    cli.run("merge", tmp_path, tmp_path.parent / f"{tmp_path.name}.safetensors")
    assert handle_keys(tmp_path.parent / f"{tmp_path.name}.safetensors") == expected


def handle_keys(path):
    with safe_open(path, "np") as file:
        return set(file.keys())


def test_a_stream_longer_than_a_chunk_is_read_whole(tmp_path):
    path = cli.write(tmp_path / "m.safetensors", {"a": raw("U8", (9 << 20,))})
    assert fed(["hash", "-"], path.read_bytes()) == cli.output("hash", path)


def test_a_file_called_dash(tmp_path):
    """It is not read for `-`."""
    cli.write(tmp_path / "-", {"a": raw("U8", (1,))})
    assert "header too small" in fed(["ls", "-"], b"", cwd=tmp_path, status=2)


def test_a_stream_of_another_format(model):
    """The error is the core's, with `-` as the file."""
    content = model.read_bytes()
    assert "truncated?" in fed(["ls", "-"], content[:-1], status=2)
    assert fed(["check", "-"], content[:-1], status=1).startswith("-: truncated: ")
    assert "-: this is an HTML page" in fed(["hash", "-"], b"<!DOCTYPE html>", status=2)


@pytest.mark.parametrize("start", ["y\\n", "\\0", "\\0\\0\\0\\1\\0\\0\\0\\0["])
def test_a_stream_without_end(start):
    """An endless stream that is not a safetensors file is not copied."""
    command = f'python3 -c "while True: print(end=\'{start}\' * 9999)" 2>/dev/null | "$@"'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *cli.started(), "ls", "-"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_no_space_for_a_copy(tmp_path):
    """The error is one line that names the folder, and no file is left."""
    path = cli.write(tmp_path / "m.safetensors", {"a": raw("U8", (9 << 20,))})

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    said = fed(["ls", "-"], path.read_bytes(), status=2, preexec_fn=limited, env=env)
    assert f"standard input: copying it to {tmp_path / 'temporary'}: File too large" in said
    assert os.listdir(tmp_path / "temporary") == []


def test_no_standard_input():
    """A terminal and a closed standard input are refused."""
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *cli.started(), "ls", "-"],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.stderr == b"safetensors: standard input is closed\n"
    command = ["sh", "-c", '"$@" <&1', "sh", *cli.started(), "ls", "-"]
    assert "standard input is a terminal" in cli.in_terminal(command, status=2)


# For each command, the option or path by which a pipe could be read.
PIPES = [
    *(f"{command} pipe" for command in ("ls", "ls --model", "meta", "check", "hash")),
    *("show pipe a", "diff pipe m.safetensors", "diff m.safetensors pipe", "meta pipe --set a=b"),
    *(f"convert {name} o.safetensors" for name in ("pipe", "a.npz", "a.pt", "a.bin", "torch")),
    "convert m.safetensors pipe --force",
    "ls folder/model.gguf",
]


@pytest.mark.parametrize("words", PIPES)
def test_a_pipe_is_refused_at_once(model, words):
    """Every file of a model that is a pipe is refused by name, without waiting for a writer."""
    folder = model.parent
    for name in ("pipe", "a.npz", "a.pt", "a.bin"):
        os.mkfifo(folder / name)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "folder" / "model.gguf")
    (folder / "torch").mkdir()
    os.mkfifo(folder / "torch" / "x.bin")
    cli.write_index(folder / "torch", {"a": "x.bin"}, name="pytorch_model.bin.index.json")
    done = cli.run(*words.split(), cwd=folder, status=2)
    assert "named pipe" in done.stderr + done.stdout or "not a regular file" in done.stderr
    assert "o.safetensors" not in os.listdir(folder)


def test_a_pipe_beside_a_model_is_not_waited_for(tmp_path):
    """Configuration files that are pipes are not read."""
    cli.write(tmp_path / "model.safetensors", cli.small())
    for name in ("config.json", "quantize_config.json", "generation_config.json"):
        os.mkfifo(tmp_path / name)
    subprocess.run([*cli.started(), "ls", "--model", tmp_path], timeout=60, check=False)


def test_a_total_size_that_is_wrong(tmp_path):
    """Some programs count shared tensors twice. No command needs it, and `check` says so."""
    cli.sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    index.write_text(json.dumps({**table, "metadata": {"total_size": 5}}))
    for words in (["ls"], ["hash"], ["show"], ["meta"], ["merge"]):
        more = {"show": [min(table["weight_map"])], "merge": ["m.safetensors"]}.get(words[0], [])
        cli.run(*words, tmp_path, *more, cwd=tmp_path)
    assert "`total_size` is 5, but the tensors have" in cli.output("check", tmp_path, status=1)
