"""Files whose names the caller did not give are reached through one primitive, `Folder`."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "python" / "safetensors"
CHANGES = {
    "chmod", "chown", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "open", "remove",
    "removedirs", "rename", "renames", "replace", "rmdir", "symlink", "truncate", "unlink", "utime",
}  # fmt: skip
OF_SHUTIL = {"get_terminal_size", "copyfileobj"}
"""What of shutil makes no file."""
OF_PATHS = {
    "chmod", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink",
}  # fmt: skip

TYPED = "the caller typed this path"
ALLOWED = {
    ("weights/_convert.py", "os.rmdir"): "removes the folder that the caller typed",
    ("dcp.py", "os.mkdir"): "makes the folder that the caller typed",
    ("_cli/writing.py", "os.makedirs"): "makes the folder around the one that the caller typed",
    (
        "_delta/apply_file.py",
        "os.makedirs",
    ): "makes the folder around the one that the caller typed",
    ("_cli/opening.py", "tempfile.TemporaryFile"): "has no name",
    ("_cli/opening.py", "tempfile.gettempdir"): "names a folder for an error",
    ("_cli/main.py", "open"): "opens the null device",
    ("_cli/main.py", "os.open"): "opens the null device",
    ("_cli/report.py", "_write_file"): TYPED + " (--output)",
    ("_cli/sign.py", "_write_file"): TYPED + " (--signature)",
    ("_delta/diff.py", "tempfile.TemporaryFile"): "has no name",
    ("_checking/model_signing.py", "tempfile.TemporaryDirectory"): "is private",
    ("_checking/model_signing.py", "open"): "writes into a temporary folder, which is private",
    ("_dcp/consolidate.py", "os.open"): "reads the file of a rank, which is checked",
    ("_paths.py", "os.open"): "opens for reading",
}
"""Calls by file, each with the reason why it need not go through `Folder`."""


def calls_in(source):
    """Yields the calls in a source that make, open for writing, rename or remove files."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, last = name.rpartition(".")
        if last in ("_write_file", "_remove_sums"):
            yield last
        elif (
            (owner == "os" and last in CHANGES)
            or owner == "tempfile"
            or (owner == "shutil" and last not in OF_SHUTIL)
            or (name in ("open", "io.open") and writes(node, 1))
        ):
            yield name
        elif owner and owner != "os" and is_of_a_path(last, node):
            yield f"pathlib.{last}"


def is_of_a_path(method, call):
    if method in ("write_bytes", "write_text"):
        return len(call.args) == 1  # the method of a writer has more
    return method in OF_PATHS or (method == "open" and writes(call, 0))


def writes(call, position):
    """Returns whether a call of `open` may write, by its argument `mode`."""
    modes = [*call.args[position : position + 1]]
    modes += [each.value for each in call.keywords if each.arg == "mode"]
    return any(
        isinstance(mode, ast.Constant) and re.fullmatch(r"[rbt]*[wax+][wbt+]*", str(mode.value))
        for mode in modes
    )


def found():
    return {
        (path.relative_to(ROOT).as_posix(), call)
        for path in sorted(ROOT.rglob("*.py"))
        for call in calls_in(path.read_text(encoding="utf-8"))
    }


def test_only_the_primitive_reaches_files_by_name():
    allowed = {*ALLOWED} | {each for each in found() if (each[0], "*") in ALLOWED}
    assert found() - allowed == set()


def test_no_exception_is_out_of_date():
    there = found() | {(file, "*") for file, _ in found()}
    assert {*ALLOWED} - there == set()


@pytest.mark.parametrize(
    "source",
    [
        "os.open(path, os.O_RDONLY)",
        "os.replace(a, b)",
        "os.chmod(path, 0)",
        "open(path, 'w')",
        "open(path, mode='r+b')",
        "io.open(path, 'xb')",
        "path.open('a')",
        "pathlib.Path(p).write_text('')",
        "path.unlink()",
        "shutil.move(a, b)",
        "tempfile.mkstemp()",
        "_core._write_file(path, data, False)",
        "_write_file(path, data, False)",
    ],
)
def test_what_is_found(source):
    assert [*calls_in(source)] != []


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(fd, 'rb')",
        "folder.open('journal')",
        "folder.remove(name)",
        "writer.write_bytes(0, None, data)",
        "os.fchmod(fd, 0)",
        "shutil.get_terminal_size()",
    ],
)
def test_what_is_not_found(source):
    assert [*calls_in(source)] == []
