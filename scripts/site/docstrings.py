"""A griffe extension for docstrings.

The compiled modules have theirs in the module, and only signatures in the stub. Names of documents,
such as docs/verify.md, become links.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

import links

COMPILED = ("safetensors._core", "safetensors._weights")


class CompiledDocstrings(griffe.Extension):
    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.path in COMPILED:
            fill(mod, importlib.import_module(mod.path))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = links.linked(obj.docstring.value, "html")


def fill(documented: Any, compiled: Any) -> None:
    for name, member in documented.members.items():
        found = getattr(compiled, name, None)
        if member.is_alias or name.startswith("_") or found is None:
            continue
        # pybind11 puts a signature first, which the stub has, too.
        text = re.sub(rf"^{name}\(.*\) -> .*\n*", "", inspect.getdoc(found) or "")
        is_documented = not member.is_attribute or inspect.isdatadescriptor(found)
        if text and is_documented and member.docstring is None:
            member.docstring = griffe.Docstring(text, parent=member)
        if member.is_class:
            fill(member, found)
