"""Warnings have the position of the caller's line, not one in the package."""

import ast
import pathlib

import pytest

from safetensors.numpy import save_file
from safetensors.torch import load_files, stream_files

ROOT = pathlib.Path(__file__).parents[2] / "python"

# Why a file calls warnings.warn() itself.
OWN = {
    "safetensors/_warn.py": "it is what all others call",
    "safetensors_cpp/__init__.py": "it runs before the package is found",
}


def calls_of_warn(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = ("warnings.warn", "warnings.warn_explicit")
        is_call = isinstance(node, ast.Attribute) and ast.unparse(node) in names
        if is_call or (isinstance(node, ast.ImportFrom) and node.module == "warnings"):
            yield node


def test_all_warnings_go_through_one_function():
    files = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    assert {name for name, path in files.items() if any(calls_of_warn(path))} == set(OWN)


def test_the_position_is_the_callers(tmp_path):
    for name in ("model.safetensors", "model-00001-of-00002.safetensors"):
        save_file({}, tmp_path / name)
    with pytest.warns(UserWarning, match="model-00001-of-00002") as caught:
        load_files(tmp_path)
    with pytest.warns(UserWarning, match="model-00001-of-00002") as deeper:
        list(stream_files(tmp_path))
    assert [each.filename for each in (*caught, *deeper)] == [__file__, __file__]
