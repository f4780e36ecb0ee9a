"""The signatures that the guides show are those of the functions."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MODULES = {"checkpoints": "safetensors.dcp", "jax": "safetensors.jax"}
BLOCK = re.compile(r"^```\n(\w+\(.*?)```$", re.DOTALL | re.MULTILINE)
SIGNATURE = re.compile(r"^(\w+)\((.*?)\)(?: ->.*)?$", re.DOTALL | re.MULTILINE)
SHOWN = [
    (page.stem, name, parameters)
    for page in sorted(DOCS.glob("*.md"))
    for block in BLOCK.findall(page.read_text(encoding="utf-8"))
    for name, parameters in SIGNATURE.findall(block)
    if ", *, " in parameters
]


def test_guides_show_signatures():
    assert len(SHOWN) >= 11


@pytest.mark.parametrize(("page", "name", "shown"), SHOWN, ids=lambda each: each[:20])
def test_they_are_true(page, name, shown):
    """All parameters, in their order; defaults may be abridged."""
    pytest.importorskip("jax" if page == "jax" else "torch")
    package = importlib.import_module("safetensors")
    module = importlib.import_module(MODULES.get(page, "safetensors.torch"))
    function = getattr(module, name, None) or getattr(package, name)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(parameter.name)
    assert [each.split("=")[0].strip() for each in shown.split(",")] == found
