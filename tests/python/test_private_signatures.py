"""Options of saves and of loads travel through the package as one object each."""

import ast
import pathlib

import pytest

import safetensors
from safetensors._load_arguments import LoadArguments
from safetensors._saving.arguments import SaveArguments

PACKAGE = pathlib.Path(safetensors.__file__).parent
MAX = 2
"""So many of them may be parameters of one private function."""
OPTIONS = {
    "save": {*SaveArguments._fields, "max_shard_size"},
    "load": {*LoadArguments._fields, "expected_hashes"},
}


def signatures(path):
    """Yields the name and the parameters of each function of a module that is not public: public
    ones are in public modules, or they describe their arguments to the user."""
    is_public = not any(part.startswith("_") for part in path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_private = node.name.startswith("_") and node.name != "__init__"
        if is_private or not (is_public or "Args:" in (ast.get_docstring(node) or "")):
            args = node.args
            yield node.name, {arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]}


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_private_signature_takes_them_one_by_one(kind):
    found = [
        f"{path.relative_to(PACKAGE)}: {name}({', '.join(sorted(names & OPTIONS[kind]))})"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, names in signatures(path)
        if len(names & OPTIONS[kind]) > MAX
    ]
    assert found == []


def test_options_are_not_changed():
    options = SaveArguments(fsync=True, sums=True)
    of_shards, digests = options.of_shards()
    assert (options.fsync, options.sums, digests) == (True, True, [])
    assert (of_shards.fsync, of_shards.sums) == (False, None)
    assert of_shards.of_file("any file") is of_shards
    with pytest.raises(AttributeError):
        options.fsync = False
