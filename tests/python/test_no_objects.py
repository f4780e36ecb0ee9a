"""No module of the package makes objects from bytes of others: a pickle can run any code."""

import ast

import pytest
from test_import_graph import ROOT

MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
    "_object_to_tensor",
    "_tensor_to_object",
    "eval",
    "exec",
    "load_module",
    "allow_pickle",
}
EXPLAINED = {
    ("_cli/source_torch.py", "pickle"): "for the class of an error of torch.load",
    ("_cli/source_torch.py", "torch.load"): "with weights_only=True, which makes no other objects",
}


def found_in(text):
    """Returns the modules and functions in a text that make objects from bytes."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {(node.module or "").partition(".")[0]} & MODULES
            found |= {alias.name for alias in node.names} & CALLS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & CALLS
            if node.attr == "load" and isinstance(node.value, ast.Name):
                found |= {f"{node.value.id}.load"} & {"torch.load"}
        elif isinstance(node, ast.Name):
            found |= {node.id} & CALLS
        elif isinstance(node, ast.keyword):
            found |= {node.arg} & CALLS
    return found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import pickle", "pickle"),
        ("def f():\n    from marshal import loads", "marshal"),
        ("import cloudpickle.x as y", "cloudpickle"),
        ("torch.distributed.all_gather_object(a, b)", "all_gather_object"),
        ("from torch.distributed import broadcast_object_list", "broadcast_object_list"),
        ("torch.load(path)", "torch.load"),
        ("numpy.load(path, allow_pickle=True)", "allow_pickle"),
        ("eval(text)", "eval"),
    ],
)
def test_what_is_found(text, name):
    assert found_in(text) == {name}


def test_no_module_makes_objects_of_bytes():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in ROOT.rglob("*.py")
        for name in found_in(path.read_text(encoding="utf-8"))
    }
    assert found == set(EXPLAINED)


def test_the_exceptions_are_as_explained():
    torch_source = (ROOT / "_cli/source_torch.py").read_text(encoding="utf-8")
    assert torch_source.count("torch.load(") == torch_source.count("weights_only=True") == 1
    assert torch_source.count("pickle.") == torch_source.count("pickle.UnpicklingError") == 1
