"""The hook of sglang, on a stub that is made from the contract with sglang's sources."""

import importlib

import pytest

from safetensors.plugins import sglang as plugin
from support import children, sharded
from support.engine_stubs import EngineStub, contract_of
from support.servers import RangeServer

torch = pytest.importorskip("torch")

MODULE = "sglang.srt.model_loader.weight_utils"
SINGLE = "safetensors_weights_iterator"
THREADS = "buffered_multi_thread_safetensors_weights_iterator"
OWN = [("by sglang's iterator", torch.ones(1))]


class Sglang:
    """What sglang's registry and its iterators do."""

    def __init__(self):
        self.hooks = {}

    def stub(self, modules=None):
        behaviours = dict.fromkeys((SINGLE, THREADS), lambda *_: iter(OWN))
        return EngineStub("sglang", {"HookRegistry.register": self.add, **behaviours}, modules)

    def add(self, cls, target, hook, hook_type, source):
        assert hook_type == "AROUND"
        assert source is None
        self.hooks[target] = hook

    def iterate(self, name, *args, **options):
        """Calls an iterator as the applied hook does."""
        original = getattr(importlib.import_module(MODULE), name)
        return self.hooks[f"{MODULE}.{name}"](original, *args, **options)


@pytest.fixture
def sglang(monkeypatch):
    """The stub, in which the hooks are registered."""
    monkeypatch.setenv("SAFETENSORS_SGLANG", "1")
    engine = Sglang()
    with engine.stub():
        plugin.register()
        yield engine


@pytest.fixture
def tensors(tmp_path):
    made = sharded.make(20)
    sharded.write(tmp_path, made)
    return made


@pytest.mark.parametrize("name", [SINGLE, THREADS])
def test_reads_files(sglang, tmp_path, tensors, name, caplog):
    assert sglang.hooks.keys() == {f"{MODULE}.{SINGLE}", f"{MODULE}.{THREADS}"}
    files = [str(path) for path in sharded.shards_of(tmp_path)]
    options = {"max_workers": 8} if name == THREADS else {}
    usual = {"disable_mmap": False, "prefetch": False, "prefetch_num_threads": 4}
    for each in ({}, usual, {**usual, "drop_cache_after_load": False}):
        sharded.check(dict(sglang.iterate(name, files, **options, **each)), tensors)
    assert not caplog.records


def test_reads_urls(sglang, tmp_path, tensors):
    with RangeServer({f"/{path.name}": path for path in tmp_path.iterdir()}) as server:
        urls = [server.url(f"/{path.name}") for path in sharded.shards_of(tmp_path)]
        sharded.check(dict(sglang.iterate(SINGLE, urls)), tensors)


@pytest.mark.parametrize("option", ["disable_mmap", "prefetch", "drop_cache_after_load"])
def test_options_that_select_sglangs_reads(sglang, option):
    assert [*sglang.iterate(SINGLE, ["absent"], **{option: True})] == OWN
    assert [*sglang.iterate(THREADS, ["absent"], max_workers=8, **{option: True})] == OWN
    assert [*sglang.iterate(THREADS, ["absent"], 8)] == OWN


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_off_by_default(monkeypatch, value, caplog):
    monkeypatch.delenv("SAFETENSORS_SGLANG", raising=False)
    if value is not None:
        monkeypatch.setenv("SAFETENSORS_SGLANG", value)
    engine = Sglang()
    with engine.stub():
        plugin.register()
    assert engine.hooks == {}
    assert not caplog.records


CHANGES = {
    SINGLE: "hf_weights_files, direct_io=",
    THREADS: "hf_weights_files, max_workers=",
    "HookRegistry.register": "cls, target, hook, hook_type=",
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_engine_that_differs(monkeypatch, name, caplog):
    """One warning with both signatures; nothing is registered."""
    monkeypatch.setenv("SAFETENSORS_SGLANG", "1")
    engine = Sglang()
    modules = contract_of("sglang")
    (facts,) = (each[name] for each in modules.values() if name in each)
    known, facts["parameters"] = facts["parameters"], CHANGES[name]
    with engine.stub(modules):
        plugin.register()
    assert engine.hooks == {}
    (record,) = caplog.records
    found, known = (text.removeprefix("cls, ") for text in (CHANGES[name], known))
    assert record.getMessage().startswith("SAFETENSORS_SGLANG=1 is not used: sglang.")
    assert f".{name} takes ({found}), not ({known})" in record.getMessage()


@pytest.mark.parametrize("missing", ["sglang", "sglang.srt.plugins"])
def test_an_engine_without_the_modules(monkeypatch, missing, caplog):
    monkeypatch.setenv("SAFETENSORS_SGLANG", "1")
    modules = {name: each for name, each in contract_of("sglang").items() if missing not in name}
    engine = Sglang()
    with engine.stub(modules):
        plugin.register()
    assert engine.hooks == {}
    (record,) = caplog.records
    assert record.getMessage().startswith("SAFETENSORS_SGLANG has no effect: ModuleNotFoundError")


def test_the_real_registry():
    """With sglang installed, both iterators are wrapped after sglang has loaded its plug-ins."""
    pytest.importorskip("sglang")
    children.run(
        """
        import os
        os.environ["SAFETENSORS_SGLANG"] = "1"
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.model_loader import weight_utils
        assert hasattr(weight_utils.safetensors_weights_iterator, "__wrapped__")
        assert hasattr(
            weight_utils.buffered_multi_thread_safetensors_weights_iterator, "__wrapped__"
        )
        """,
        timeout=300,
    )
