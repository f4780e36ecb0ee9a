"""scripts/engine_contracts.py finds each difference of an engine's sources from the contracts."""

import importlib.util
import json
import pathlib
import re
import zipfile

import pytest

from safetensors.plugins import _contracts

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "engine_contracts.py"
SOURCE = '''
from dataclasses import dataclass

class Loader(Base):
    count: int = 0

    @dataclass
    class Source:
        path: str
        prefix: str = ""
        """Text."""

    def __init__(self, config):
        self.config = config
        self.ids: set | None = None
        local = config

    def iterate(self, source, /, *more, limit: int = 3, wanted, **rest):
        return decode(self.prepare(source), len(more))

    @classmethod
    async def register(cls, target, *, source=None): ...

class Kind(Enum):
    AROUND = "around"
'''
CONTRACT = {
    "Loader": {"has": "count="},
    "Loader.Source": {"fields": "path, prefix="},
    "Loader.__init__": {"parameters": "self, config", "sets": "config, ids"},
    "Loader.iterate": {
        "parameters": "self, source, *more, limit=, wanted, **rest",
        "calls": "decode, len, self.prepare",
    },
    "Loader.register": {"parameters": "cls, target, *, source="},
    "Kind": {"has": "AROUND="},
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("engine_contracts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_difference(script):
    assert script.differences("m", SOURCE, CONTRACT) == []


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("count: int = 0", "pass", "m.Loader: has (), not (count=)"),
        ('prefix: str = ""', "prefix: str", "m.Loader.Source: fields (path, prefix), not"),
        ('prefix: str = ""', "p: int\n        q: int", "m.Loader.Source: fields (path, p, q), not"),
        ("self, config)", "self, config, device)", "parameters (self, config, device), not"),
        ("self.ids: set | None = None", "ids = 1", "m.Loader.__init__: sets (config), not"),
        ("*more", "more, *", "parameters (self, source, more, *, limit=, wanted, **rest), not"),
        ("limit: int = 3", "limit", "limit, wanted, **rest), not"),
        ("decode(", "filter(", "m.Loader.iterate: calls (filter, len, self.prepare), not"),
        ("def register", "def add", "m has no Loader.register"),
        ("AROUND", "OVER", "m.Kind: has (), not (AROUND=)"),
    ],
)
def test_differences(script, old, new, difference):
    assert SOURCE.count(old) == 1
    (found,) = script.differences("m", SOURCE.replace(old, new), CONTRACT)
    assert difference in found


def test_unpack(script, tmp_path):
    """Only the named modules, which may be packages."""
    with zipfile.ZipFile(tmp_path / "e.whl", "w") as wheel:
        for name in ("e/__init__.py", "e/a.py", "e/b/__init__.py", "e/c.py"):
            wheel.writestr(name, f"# {name}")
    paths = {name: tmp_path / "out" / f"{name}.py" for name in ("e.a", "e.b", "e.absent")}
    with zipfile.ZipFile(tmp_path / "e.whl") as wheel:
        script.unpack(wheel, paths)
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert found == {"e.a.py": "# e/a.py", "e.b.py": "# e/b/__init__.py"}


def test_plug_ins_spell_parameters_alike(script):
    """The warning of a plug-in and the contracts have one spelling."""
    scope = {}
    for text in ("self, a, b=, *more, c=, d, **rest", "a, *, b=", "", "*a, b", "a=, **b"):
        exec(f"def f({re.sub('=', '=1', text)}): ...", scope)
        assert _contracts.parameters(scope["f"]) == text
        source = f"def f({re.sub('=', '=1', text)}): ..."
        assert script.differences("m", source, {"f": {"parameters": text}}) == []


def test_the_contracts_are_not_empty(script):
    contracts = json.loads(script.CONTRACTS.read_text())
    assert contracts.keys() == {"vllm", "sglang"}
    for contract in contracts.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", contract["version"])
        assert all(facts for module in contract["modules"].values() for facts in module.values())
