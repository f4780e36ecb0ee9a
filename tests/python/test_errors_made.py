"""One module makes the package's errors, so that all have a code and what else is known."""

import ast
import pathlib
import re
import typing

import pytest

import safetensors
from safetensors import SafetensorError, _core, _errors, delta, weights
from safetensors._checking.verify import IntegrityError

ROOT = pathlib.Path(safetensors.__file__).parent
OWN = (SafetensorError, weights.WeightsError, delta.PatchError, IntegrityError)
TREE = pathlib.Path(__file__).parents[2]
HEADERS = TREE / "include" / "safetensors"
WEIGHTS_HEADERS = TREE / "weights" / "include" / "safetensors" / "weights"


def subclasses(kind):
    """Returns the names of a class and of those that derive from it."""
    return {kind.__name__}.union(*map(subclasses, kind.__subclasses__()))


NAMES = set().union(*map(subclasses, OWN)) | {"_error_class"}


def mentions(node):
    """Returns the name that an expression ends with."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def offences(tree):
    """Yields the lines that make or raise an error of this package, or set an error's code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            made = mentions(node.func) in NAMES
        elif isinstance(node, ast.Raise):
            made = mentions(node.exc) in NAMES
        elif isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in ast.walk(target)]
            made = any(isinstance(each, ast.Attribute) and each.attr == "code" for each in targets)
        else:
            continue
        if made:
            yield node.lineno


@pytest.mark.parametrize(
    "text",
    [
        "raise SafetensorError('text')",
        "raise _core.SafetensorError",
        "error = PatchError('text')",
        "raise _core._error_class(KeyError)('text')",
        "error.code, error.path = 'io', path",
    ],
)
def test_the_rule_finds(text):
    assert list(offences(ast.parse(text))) == [1]


def test_one_module_makes_errors():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "_errors.py"
        for line in offences(ast.parse(path.read_text(encoding="utf-8")))
    ]
    # A module looks up a class by name for pickle, and calls nothing.
    assert found == []
    assert {"IntegrityError", "WrongBaseError", "UnknownTensorError"} <= NAMES


def codes_of(header, enum):
    """Returns the enumerators of a C++ enumeration, spelled as in Python."""
    text = header.read_text(encoding="utf-8")
    body = text.partition(f"enum class {enum} ")[2].partition("};")[0]
    names = re.findall(r"^  (\w+)(?: = 1)?,", body, re.MULTILINE)
    return [re.sub("(?<=.)[A-Z]", r"_\g<0>", name.removeprefix("k")).lower() for name in names]


def test_codes_are_those_of_the_core():
    assert list(typing.get_args(_errors.Code)) == codes_of(HEADERS / "error.hpp", "ErrorCode")
    known = {*codes_of(WEIGHTS_HEADERS / "error.hpp", "Errc"), "different", "non_finite"}
    assert set(typing.get_args(_errors.WeightsCode)) < known


def test_fields_and_text():
    """The text names the path once, without secrets; OSErrors have errno and filename."""
    error = _errors.failure("io", "text", path=b"/a/b", subject="x")
    assert (error.code, error.path, error.subject) == ("io", "/a/b", "x")
    assert str(error) == "text (in /a/b)"
    assert str(_errors.failure("io", "/a/b: text", path=pathlib.Path("/a/b"))) == "/a/b: text"
    error = _errors.failure("io", "text", path="https://user:word@host/a?sig=1")
    assert str(error) == "text (in https://host/a?sig=...)"
    assert error.path == "https://host/a?sig=..."
    error = _errors.failure("io", "text", path="/a", also=FileNotFoundError)
    assert isinstance(error, (SafetensorError, FileNotFoundError))
    assert (error.errno, error.filename) == (2, "/a")
    assert _core._error_class(FileNotFoundError) is type(error)
    error = _errors.failure_of(IntegrityError, "damaged", "text")
    assert (type(error), error.path, error.subject) == (IntegrityError, None, None)
