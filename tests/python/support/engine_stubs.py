"""Stub packages of inference engines, made from tests/plugins/contracts.json.

    with EngineStub("vllm", {"DefaultModelLoader._prepare_weights": prepare}) as stub:
        from vllm.model_executor.model_loader import register_model_loader

Functions have the parameters of the contract and call the behaviour of their qualified name.
"""

import copy
import json
import pathlib
import sys
import types

CONTRACTS = pathlib.Path(__file__).parents[2] / "plugins" / "contracts.json"


def contract_of(engine):
    """Returns a copy of the contract: modules, qualified names in them, and their facts."""
    return copy.deepcopy(json.loads(CONTRACTS.read_text())[engine]["modules"])


class EngineStub:
    """Modules in sys.modules. `modules` is the contract that they follow, or a changed one."""

    def __init__(self, engine, behaviours, modules=None):
        self.behaviours = behaviours
        self.modules = contract_of(engine) if modules is None else modules
        self.engine = engine
        self.made = {}

    def __enter__(self):
        assert self.engine not in sys.modules, f"{self.engine} is installed and imported"
        for name, definitions in self.modules.items():
            module = self._module(name)
            module.__dict__.update(_do=self._do)
            exec("\n".join(_source(definitions)), module.__dict__)
        return self

    def __exit__(self, *_):
        for name in self.made:
            del sys.modules[name]

    def _module(self, name):
        """Makes a module, and the packages that it is in."""
        if name not in self.made:
            parent, _, last = name.rpartition(".")
            found = types.ModuleType(name)
            found.__path__ = []
            self.made[name] = sys.modules[name] = found
            if parent:
                setattr(self._module(parent), last, found)
        return self.made[name]

    def _do(self, name, values):
        return self.behaviours[name](*values)


def _source(definitions, prefix="", indent=""):
    """Yields the lines of classes and functions; `prefix` is the class that they are in."""
    inner = {name: facts for name, facts in definitions.items() if name.startswith(prefix)}
    for name in dict.fromkeys(name[len(prefix) :].partition(".")[0] for name in inner):
        facts = inner.get(prefix + name, {})
        if "parameters" in facts:
            yield from _function(prefix + name, facts["parameters"], indent)
            continue
        if "fields" in facts:
            yield f"{indent}from dataclasses import dataclass"
            yield f"{indent}@dataclass"
        yield f"{indent}class {name}:"
        yield f"{indent}    pass"
        for field in _words(facts.get("fields", "")) + _words(facts.get("has", "")):
            default = f" = {field[:-1]!r}" if field.endswith("=") else ""
            yield f"{indent}    {field.rstrip('=')}: object{default}"
        yield from _source(inner, f"{prefix}{name}.", indent + "    ")


def _function(qualified, parameters, indent):
    if parameters.startswith("cls, "):
        yield f"{indent}@classmethod"
    given = ", ".join(word + "None" * word.endswith("=") for word in _words(parameters))
    yield f"{indent}def {qualified.rpartition('.')[2]}({given}):"
    yield f"{indent}    return _do({qualified!r}, [*locals().values()])"


def _words(text):
    return text.split(", ") if text else []
