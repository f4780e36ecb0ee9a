"""accelerate: loading into models, dispatch with offload, and training state."""

from __future__ import annotations

import json
from pathlib import Path

import accelerate.checkpointing as checkpointing
import accelerate.utils.modeling as modeling
import accelerate.utils.offload as offload
import accelerate.utils.other as other
import pytest
import torch
from accelerate import (
    Accelerator,
    disk_offload,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
from accelerate.state import AcceleratorState, GradientState, PartialState
from conftest import Spy
from tiny import (
    assert_files_hold,
    assert_same_outputs,
    assert_same_tensors,
    names_in,
    randomize,
    shards_of,
)

from safetensors.torch import save_file

Placement = dict[str, int | str | torch.device]


class Net(torch.nn.Module):
    """Three blocks and a head tied to the embedding."""

    def __init__(self) -> None:
        """Build with fresh weights."""
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 24)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(24)
        self.head = torch.nn.Linear(24, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        result: torch.Tensor = self.head(self.norm(hidden))
        return result


def random_net() -> Net:
    """Return a net with random weights and statistics."""
    net = Net()
    randomize(net)
    net.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    return net.eval()


@torch.no_grad()
def output(net: torch.nn.Module) -> torch.Tensor:
    """Run on fixed tokens."""
    result: torch.Tensor = net(torch.arange(20))
    return result


def stored(net: Net) -> dict[str, torch.Tensor]:
    """Return what a file holds of a net: the tied tensor once."""
    state = net.state_dict()
    del state["head.weight"]
    return state


@pytest.fixture(params=["file", "single", "sharded"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Net, str]:
    """A random net and its checkpoint: a file, its folder, or shards with an index.

    The path is a string: accelerate calls str methods on it.
    """
    net = random_net()
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    state = stored(net)
    if request.param != "sharded":
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        return net, str(folder / "model.safetensors" if request.param == "file" else folder)
    weight_map = {}
    for number, name in enumerate(state):
        file = f"part-{number}.safetensors"
        save_file({name: state[name]}, folder / file, {"format": "pt"})
        weight_map[name] = file
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return net, str(folder)


PLACEMENTS: dict[str, Placement] = {
    "cpu": {"": "cpu"},
    "mixed": {
        "embedding": "cpu",
        "head": "cpu",
        "blocks.0": "cpu",
        "blocks.1": "disk",
        "blocks.2": "disk",
        "norm": "cpu",
    },
}


def test_load_checkpoint_in_model(checkpoint: tuple[Net, str], spy: Spy) -> None:
    """Without a device map: whole files."""
    net, path = checkpoint
    opened, loaded = spy(modeling, "safe_open"), spy(modeling, "safe_load_file")
    target = Net()
    load_checkpoint_in_model(target, path)
    assert opened.count == loaded.count >= 1
    assert_same_tensors(target.state_dict(), net.state_dict())


def test_load_checkpoint_in_model_as_bfloat16(checkpoint: tuple[Net, str]) -> None:
    """Weights are converted while they are loaded."""
    net, path = checkpoint
    with init_empty_weights():
        target = Net()
    load_checkpoint_in_model(target, path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    for name, value in stored(net).items():
        found = target.state_dict()[name]
        expected = value.bfloat16() if value.is_floating_point() else value
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("placement", list(PLACEMENTS))
def test_load_checkpoint_and_dispatch(
    placement: str, checkpoint: tuple[Net, str], tmp_path: Path, spy: Spy
) -> None:
    """An empty model takes its weights from the file, part of them at each forward pass."""
    net, path = checkpoint
    opened = spy(modeling, "safe_open")
    with init_empty_weights():
        target = Net()
    target.head.weight = target.embedding.weight
    target = load_checkpoint_and_dispatch(
        target, path, device_map=dict(PLACEMENTS[placement]), offload_folder=tmp_path / "offload"
    ).eval()
    assert opened.count >= 1
    assert target.blocks[2].weight.is_meta is (placement == "mixed")
    for _ in range(2):
        assert_same_outputs(output(target), output(net))


def test_disk_offload(tmp_path: Path) -> None:
    """The whole model goes to disk and still answers the same."""
    net = random_net()
    expected = output(net)
    disk_offload(net, tmp_path / "offload")
    assert net.blocks[0].weight.is_meta
    assert_same_outputs(output(net), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_weights_loader(dtype: torch.dtype, tmp_path: Path, spy: Spy) -> None:
    """An index that points into a safetensors file is read one tensor at a time."""
    state = {name: value.to(dtype) for name, value in stored(random_net()).items()}
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    index = {
        name: {"safetensors_file": str(file), "weight_name": name, "dtype": str(dtype)[6:]}
        for name in state
    }
    opened = spy(offload, "safe_open")
    loader = offload.OffloadedWeightsLoader(index=index)
    assert_same_tensors({name: loader[name] for name in loader}, state)
    assert opened.count == len(state)


@pytest.mark.parametrize("metadata", [{"format": "np"}, {"other": "pt"}])
def test_foreign_metadata_is_refused(metadata: dict[str, str], tmp_path: Path) -> None:
    """accelerate reads metadata() to refuse files of another framework."""
    file = tmp_path / "model.safetensors"
    save_file(stored(random_net()), file, metadata)
    with pytest.raises(OSError, match="does not contain the valid metadata"):
        load_checkpoint_in_model(Net(), str(file))


def test_no_metadata_is_accepted(tmp_path: Path) -> None:
    """metadata() is None for a file without any."""
    net = random_net()
    save_file(stored(net), tmp_path / "model.safetensors")
    target = Net()
    load_checkpoint_in_model(target, str(tmp_path / "model.safetensors"))
    assert_same_tensors(target.state_dict(), net.state_dict())


@pytest.fixture
def accelerator() -> Accelerator:
    """A CPU accelerator, free of what an earlier test left in the shared state."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return Accelerator(cpu=True)


@pytest.mark.parametrize("max_shard_size", ["10GB", "3KB"])
def test_save_model(
    max_shard_size: str, accelerator: Accelerator, tmp_path: Path, spy: Spy
) -> None:
    """save_model writes one file or shards, and load_checkpoint_in_model reads them."""
    saved = spy(other, "safe_save_file")
    net = random_net()
    accelerator.save_model(net, tmp_path, max_shard_size=max_shard_size)
    sharded = max_shard_size == "3KB"
    files = shards_of(tmp_path) if sharded else [tmp_path / "model.safetensors"]
    assert saved.count == len(files)
    assert (len(files) > 2) is sharded
    state = net.state_dict()
    kept = "head.weight" if "head.weight" in names_in(files) else "embedding.weight"
    del state["embedding.weight" if kept == "head.weight" else "head.weight"]
    assert_files_hold(files, state)
    target = Net()
    load_checkpoint_in_model(target, tmp_path)
    assert_same_tensors(target.state_dict(), net.state_dict())


def train_step(accelerator: Accelerator, net: torch.nn.Module, optimizer: object) -> None:
    """Change weights and optimizer state."""
    tokens = torch.arange(20)
    loss = torch.nn.functional.cross_entropy(net(tokens), tokens)
    accelerator.backward(loss)
    optimizer.step()  # type: ignore[attr-defined]
    optimizer.zero_grad()  # type: ignore[attr-defined]


def test_save_state_and_resume(accelerator: Accelerator, tmp_path: Path, spy: Spy) -> None:
    """Training goes on from a saved state as without the interruption."""
    saved, loaded = spy(other, "safe_save_file"), spy(checkpointing, "load_model")
    net = random_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer = accelerator.prepare(net, optimizer)
    net.train()
    train_step(accelerator, net, optimizer)
    accelerator.save_state(str(tmp_path / "state"), safe_serialization=True)
    assert saved.count == 1
    assert (tmp_path / "state" / "model.safetensors").is_file()
    at_save = {name: value.clone() for name, value in net.state_dict().items()}

    train_step(accelerator, net, optimizer)
    expected = {name: value.clone() for name, value in net.state_dict().items()}
    assert not torch.equal(expected["head.weight"], at_save["head.weight"])

    accelerator.load_state(str(tmp_path / "state"))
    assert loaded.count == 1
    assert_same_tensors(net.state_dict(), at_save)
    assert net.head.weight.data_ptr() == net.embedding.weight.data_ptr()
    train_step(accelerator, net, optimizer)
    for name, value in net.state_dict().items():
        assert_same_outputs(value, expected[name], tolerance=1e-4)  # Adam divides by small numbers


def test_save_state_again_over_itself(accelerator: Accelerator, tmp_path: Path) -> None:
    """A run that keeps one checkpoint folder overwrites it at each save."""
    net = random_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = accelerator.prepare(net, optimizer)
    net.train()
    for _ in range(3):
        train_step(accelerator, net, optimizer)
        accelerator.save_state(str(tmp_path / "state"))
        expected = {name: value.clone() for name, value in net.state_dict().items()}
        accelerator.load_state(str(tmp_path / "state"))
        assert_same_tensors(net.state_dict(), expected)
