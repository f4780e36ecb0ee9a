"""The libraries that people load folders with never take other files than the rule does."""

import json
import os

import pytest

from safetensors import SafetensorError
from safetensors.torch import load_files, save_file
from support import model_folders

torch = pytest.importorskip("torch", reason="torch is not installed")

FOLDERS = model_folders.folders()
# Either set may be the newer one, so the rule takes none. They take the one or the other.
BOTH_ALIVE = {
    "a single file beside shards with an index",
    "a single file beside an index, one of whose two shards exists",
    "an index that names the single file and another one",
}


PARTS = {"one of two shards", "a shard whose number is above the total"}
"""huggingface_hub loads a part of a model that is the only file of a folder."""


class Tensors(torch.nn.Module):
    """Two parameters, whose values tell from which files they are."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(1))
        self.b = torch.nn.Parameter(torch.zeros(1))


def tensors_in(name):
    """A file of a numbered set, or of a rank, has one of the tensors, any other file both."""
    if "-of-" not in name:
        return ["a", "b"]
    number = name[len("shard-") :][:5] if name.startswith("shard-") else name.split("-of-")[0][-5:]
    return ["b"] if number == "00002" else ["a"]


def make(folder, path):
    """Makes a folder, in which the values of the tensors tell their file."""
    folder.make(path)
    for number, name in enumerate(folder.files, 1):
        if name in folder.indexes:
            weight_map = {each: f for f in folder.indexes[name] for each in tensors_in(f)}
            (path / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        elif name.endswith(".safetensors") and not name.startswith("."):
            save_file(
                {each: torch.full((1,), float(number)) for each in tensors_in(name)}, path / name
            )
    (path / "config.json").write_text("{}")


def attempt(load, arguments):
    """Returns what a call returns, or its error."""
    try:
        return load(arguments)
    except (SafetensorError, OSError) as error:
        return error


def compare(load, path, folder, refused):
    """Compares what a library loads with what load_files does."""
    for choice in folder.choices:
        if set(choice.arguments) - {"variant"}:
            continue
        try:
            module = load(path, **choice.arguments)
            theirs = {name: float(getattr(module, name)) for name in ("a", "b")}
        except Exception:  # many classes
            continue
        ours = attempt(lambda given: load_files(path, **given), choice.arguments)
        if isinstance(ours, SafetensorError):
            assert ours.code in ("several_models", "incomplete_model")
            refused.add(folder.title)
            continue
        ours = {name: float(value) for name, value in ours.items()}
        assert theirs.items() >= ours.items(), folder.title


@pytest.fixture
def folders(tmp_path):
    """Yields the folders of the table, with the paths of copies."""

    def made():
        for i, folder in enumerate(FOLDERS):
            if "adapter_config.json" not in folder.files:  # which peft would read
                path = tmp_path / str(i)
                path.mkdir()
                make(folder, path)
                yield path, folder

    return made()


@pytest.mark.filterwarnings("ignore")
def test_transformers(folders):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class Config(transformers.PretrainedConfig):
        model_type = "two_tensors"

    class Model(transformers.PreTrainedModel, Tensors):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.a = torch.nn.Parameter(torch.zeros(1))
            self.b = torch.nn.Parameter(torch.zeros(1))
            self.post_init()

        def _init_weights(self, module):
            pass

    def load(path, **choice):
        loaded.append(path)
        return Model.from_pretrained(path, config=Config(), use_safetensors=True, **choice)

    loaded, refused = [], set()
    transformers.logging.set_verbosity_error()
    for path, folder in folders:
        if "ranks" in folder.title:  # torch reads their files, which need its metadata
            continue
        compare(load, path, folder, refused)
    assert refused <= BOTH_ALIVE
    assert "a single file beside shards with an index" in refused


@pytest.mark.filterwarnings("ignore")
def test_diffusers(folders):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    from diffusers.configuration_utils import ConfigMixin, register_to_config

    class Model(diffusers.ModelMixin, ConfigMixin):
        @register_to_config
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(1))
            self.b = torch.nn.Parameter(torch.zeros(1))

    def load(path, **choice):
        module = Model.from_pretrained(
            path, use_safetensors=True, low_cpu_mem_usage=False, **choice
        )
        count.append(path)
        return module

    count, refused = [], set()
    diffusers.logging.set_verbosity_error()
    for path, folder in folders:
        if "usual name" in folder.title:  # it looks for one of them only
            continue
        compare(load, path, folder, refused)
    assert refused <= BOTH_ALIVE
    assert len(count) >= 8


@pytest.mark.filterwarnings("ignore")
def test_huggingface_hub(folders):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

    def load(path, variant=None):
        assert variant is None, "it has no variants"
        module = Tensors()
        hub.load_torch_model(module, os.fspath(path), strict=False, safe=True)
        count.append(path)
        return module

    count, refused = [], set()
    for path, folder in folders:
        compare(load, path, folder, refused)
    assert refused <= BOTH_ALIVE | PARTS
    assert len(count) >= 20
