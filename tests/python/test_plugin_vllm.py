"""The load format of vLLM, on a stub that is made from the contract with vLLM's sources."""

import copy
import logging
import re
import time
import types

import pytest

from safetensors import SafetensorError
from safetensors.plugins import vllm as plugin
from support import children, ranks, sharded
from support.engine_stubs import EngineStub, contract_of
from support.servers import RangeServer

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

FORMAT = "safetensors_direct"
LOADER = "vllm.model_executor.model_loader.default_loader"
MODEL = "org/model"  # a name that is no folder


class Vllm:
    """What vLLM does, as far as a loader of weights needs it."""

    def __init__(self, folder):
        self.folder = folder
        self.formats = {}
        self.prepared = []
        self.is_safetensors = True
        self.own = [("by vLLM's iterator", torch.ones(1))]
        self.config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(model=MODEL),
            device_config=types.SimpleNamespace(device=torch.device("cpu")),
        )

    def stub(self, modules=None):
        return EngineStub(
            "vllm",
            {
                "register_model_loader": self.register,
                "get_current_vllm_config_or_none": lambda: self.config,
                "get_tp_group": lambda: types.SimpleNamespace(cpu_group=dist.group.WORLD),
                "should_skip_weight": self.skips,
                "DefaultModelLoader.__init__": self.init,
                "DefaultModelLoader._prepare_weights": self.prepare,
                "DefaultModelLoader._get_weights_iterator": lambda *_: iter(self.own),
            },
            modules,
        )

    def register(self, load_format):
        return lambda cls: self.formats.setdefault(load_format, cls)

    def init(self, loader, load_config):
        unknown = load_config.model_loader_extra_config.keys() - {"num_threads"}
        if unknown:
            raise ValueError(f"unexpected keys {unknown}")
        loader.load_config = load_config
        loader.local_expert_ids = None
        loader.counter_before_loading_weights = 0.0

    def prepare(self, loader, name, subfolder, revision, fall_back_to_pt, patterns):
        assert loader.load_config.load_format == "safetensors"  # vLLM knows no other name
        self.prepared.append((name, subfolder, revision, fall_back_to_pt, patterns))
        files = [str(path) for path in sharded.shards_of(self.folder)]
        return str(self.folder), files[::-1], self.is_safetensors, "index"

    def skips(self, name, local_expert_ids):
        found = re.search(r"\.experts\.(\d+)\..*\.weight$", name)
        return bool(local_expert_ids and found) and int(found[1]) not in local_expert_ids

    def loader(self, extra=None, **options):
        """Returns a loader as vLLM makes it for `--load-format safetensors_direct`."""
        config = types.SimpleNamespace(
            load_format=FORMAT,
            model_loader_extra_config=extra or {},
            safetensors_load_strategy=None,
            device=None,
        )
        vars(config).update(options)
        return self.formats[FORMAT](config)

    @staticmethod
    def source(name=MODEL, **options):
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        defaults = {"revision": None, "subfolder": None, "prefix": "", "is_unused_weight": None}
        return DefaultModelLoader.Source(name, **{**defaults, **options})


@pytest.fixture(scope="module")
def tensors():
    """A layer with four experts, and others."""
    names = [f"model.layers.0.experts.{i}.{word}" for i in range(4) for word in ("up.weight", "s")]
    names += ["model.norm.weight", "lm_head.weight", "vision.weight"]
    return {name: torch.full((300, 7), float(i)) for i, name in enumerate(names)}


@pytest.fixture
def vllm(tmp_path, tensors):
    """The stub, in which the load format is registered."""
    sharded.write(tmp_path, tensors)
    engine = Vllm(tmp_path)
    with engine.stub():
        plugin.register()
        yield engine


def test_registers_one_format(vllm, caplog):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    ((name, loader),) = vllm.formats.items()
    assert name == FORMAT
    assert issubclass(loader, DefaultModelLoader)
    methods = {key for key, value in vars(loader).items() if callable(value)}
    assert methods == {"__init__", "_get_weights_iterator", "_wants"}
    assert not caplog.records


def test_loads_the_files(vllm, tensors):
    source = vllm.source(prefix="p.", revision="r", subfolder="s", fall_back_to_pt=False)
    loader = vllm.loader({"num_threads": 3})
    found = dict(loader._get_weights_iterator(source))
    sharded.check(found, {f"p.{name}": tensor for name, tensor in tensors.items()})
    ((*prepared, patterns),) = vllm.prepared
    assert prepared == [MODEL, "s", "r", False]
    assert patterns == source.allow_patterns_overrides
    assert loader.counter_before_loading_weights != 0.0
    assert loader.load_config.model_loader_extra_config == {"num_threads": 3}


def test_a_url_takes_the_place_of_the_files(vllm, tensors):
    files = {f"/m/{path.name}": path for path in vllm.folder.iterdir()}
    with RangeServer(files) as server:
        extra = {"weights": server.url("/m/model.safetensors.index.json"), "concurrency": 2}
        given = copy.deepcopy(extra)
        loader = vllm.loader(extra)
        sharded.check(dict(loader._get_weights_iterator(vllm.source())), tensors)
        assert server.most_at_once <= 2
        assert extra == given
        assert vllm.prepared == []
        server.clear()
        # Of a draft model, or a part of this one that is elsewhere.
        for source in (vllm.source("another"), vllm.source(subfolder="part")):
            sharded.check(dict(loader._get_weights_iterator(source)), tensors)
        assert server.requests == 0
        assert len(vllm.prepared) == 2
        vllm.config = None  # outside of vLLM's own calls
        sharded.check(dict(loader._get_weights_iterator(vllm.source())), tensors)
        assert server.requests > 0


def _rank(rank, folder, url, expected):
    engine = Vllm(folder)
    with engine.stub():
        plugin.register()
        loader = engine.loader({"weights": url, "distributed": True})
        loader.local_expert_ids = {rank, 3}
        found = dict(loader._get_weights_iterator(engine.source(prefix="p.")))
    others = f".experts.{1 - rank}.up.", ".experts.2.up."
    wanted = {
        f"p.{name}": tensor
        for name, tensor in expected.items()
        if not any(other in name for other in others)
    }
    sharded.check(found, wanted)


def test_ranks_of_tensor_parallelism_read_each_byte_once(tmp_path, tensors):
    large = {name: tensor[:1].repeat(1 << 15, 1) for name, tensor in tensors.items()}
    sharded.write(tmp_path, large)
    files = {f"/m/{path.name}": path for path in tmp_path.iterdir()}
    with RangeServer(files) as server:
        ranks.run(_rank, 2, tmp_path, server.url("/m/model.safetensors.index.json"), large)
        wanted = sum(tensor.nbytes for tensor in large.values())
        wanted -= large["model.layers.0.experts.2.up.weight"].nbytes  # no rank takes it
        assert wanted <= server.bytes_sent < 1.1 * wanted


def test_experts_of_other_ranks_are_not_read(vllm, tensors):
    loader = vllm.loader()
    loader.local_expert_ids = {1, 2}
    found = dict(loader._get_weights_iterator(vllm.source()))
    absent = {f"model.layers.0.experts.{i}.up.weight" for i in (0, 3)}
    assert found.keys() == tensors.keys() - absent  # scales pass


def test_unused_weights_are_not_read(vllm, tensors):
    source = vllm.source(is_unused_weight=lambda name: name.startswith("vision."), prefix="p.")
    found = dict(vllm.loader()._get_weights_iterator(source))
    assert found.keys() == {f"p.{name}" for name in tensors if name != "vision.weight"}


@pytest.mark.parametrize("device", ["load_config", "device_config"])
def test_tensors_are_on_the_load_device(vllm, device):
    if device == "device_config":
        vllm.config.device_config.device = torch.device("meta")
    loader = vllm.loader(device="meta" if device == "load_config" else None)
    assert all(tensor.is_meta for _, tensor in loader._get_weights_iterator(vllm.source()))


def test_a_device_without_an_index_is_the_current_one(vllm, monkeypatch):
    """As that of a worker which is not the first one of its machine."""
    vllm.config.device_config.device = torch.device("cuda")
    real, cuda = torch.empty, torch.device("cuda")
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *args, device, **options: real(
            *args, device="meta" if device == cuda else device, **options
        ),
    )
    found = list(vllm.loader()._get_weights_iterator(vllm.source()))
    assert found
    assert all(tensor.is_meta for _, tensor in found)


def test_a_device_that_vllm_does_not_name(vllm, tensors):
    vllm.config.device_config.device = None
    sharded.check(dict(vllm.loader()._get_weights_iterator(vllm.source())), tensors)


@pytest.mark.parametrize("case", ["other files", "torchao"])
def test_what_only_vllm_can_read(vllm, case):
    vllm.is_safetensors = case != "other files"
    strategy = "torchao" if case == "torchao" else None
    loader = vllm.loader(safetensors_load_strategy=strategy)
    assert [*loader._get_weights_iterator(vllm.source())] == vllm.own
    if case == "torchao":
        loader = vllm.loader({"weights": "s3://b/m/"}, safetensors_load_strategy=strategy)
        with pytest.raises(ValueError, match="torchao cannot be read from `weights`"):
            loader._get_weights_iterator(vllm.source())


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"wieghts": "a"}, "unexpected keys {'wieghts'}"),
        ({"weights": 3}, "weights is a path or a URL, not 3"),
        ({"weights": "s3://b/m/", "concurrency": 0}, "concurrency is a positive integer, not 0"),
        ({"concurrency": 4}, "concurrency is for URLs, and weights is None"),
        ({"weights": "/m", "concurrency": 4}, "concurrency is for URLs, and weights is '/m'"),
        ({"budget_bytes": None}, "budget_bytes is a positive integer, not None"),
        ({"distributed": "yes"}, "distributed is true or false, not 'yes'"),
        ({"budget_bytes": True}, "budget_bytes is a positive integer, not True"),
    ],
)
def test_bad_settings(vllm, extra, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        vllm.loader(extra)


def test_a_damaged_file(vllm):
    path = sharded.shards_of(vllm.folder)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError, match=re.escape(str(path))):
        vllm.loader()._get_weights_iterator(vllm.source())


CHANGES = {
    "register_model_loader": "load_format, replace=",
    "DefaultModelLoader.__init__": "self, load_config, device",
    "DefaultModelLoader._prepare_weights": "self, source",
    "DefaultModelLoader._get_weights_iterator": "self, source, *, resolved=",
    "DefaultModelLoader.Source": "model_or_path, revision, subfolder=, prefix=",
    "get_current_vllm_config_or_none": "rank",
    "get_tp_group": "rank",
    "should_skip_weight": "weight_name, local_expert_ids=",
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_engine_that_differs(tmp_path, name, caplog):
    """One warning with both signatures; nothing is registered."""
    engine = Vllm(tmp_path)
    modules = contract_of("vllm")
    (facts,) = (each[name] for each in modules.values() if name in each)
    (kind,) = {"parameters", "fields"} & facts.keys()
    known, facts[kind] = facts[kind], CHANGES[name]
    with engine.stub(modules):
        plugin.register()
    assert engine.formats == {}
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.WARNING
    assert text.startswith(f"{FORMAT} is not used: vllm.")
    assert f".{name} takes ({CHANGES[name]}), not ({known})" in text


@pytest.mark.parametrize("missing", [LOADER, "vllm"])
def test_an_engine_without_the_modules(tmp_path, missing, caplog):
    modules = {name: each for name, each in contract_of("vllm").items() if missing not in name}
    engine = Vllm(tmp_path)
    with engine.stub(modules):
        plugin.register()
    assert engine.formats == {}
    (record,) = caplog.records
    assert re.match(f"{FORMAT} is not registered: ModuleNotFoundError: .*'vllm", record.message)


@pytest.mark.timed
def test_the_cost_of_registering(tmp_path):
    """The time beyond the imports of vLLM and safetensors.torch: under 5 ms."""
    times = []
    with Vllm(tmp_path).stub():
        for _ in range(10):
            begin = time.perf_counter()
            plugin.register()
            times.append(time.perf_counter() - begin)
    assert min(times) < 0.005


def test_the_module_imports_no_engine():
    children.run(
        """
        import safetensors.plugins.vllm, safetensors.plugins.sglang
        assert not {"vllm", "sglang", "torch", "numpy"} & sys.modules.keys()
        """
    )


def test_the_real_registry():
    """With vLLM installed, its registry has the format after vLLM has loaded its plug-ins."""
    pytest.importorskip("vllm")
    children.run(
        """
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        from vllm.config.load import LoadConfig
        from vllm.model_executor.model_loader import get_model_loader
        loader = get_model_loader(LoadConfig(load_format="safetensors_direct"))
        assert type(loader).__name__ == "SafetensorsDirectLoader"
        """,
        timeout=300,
    )
