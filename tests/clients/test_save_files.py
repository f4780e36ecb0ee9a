"""save_files: the files that huggingface_hub writes, for the clients that read them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import (
    get_local_safetensors_metadata,
    load_torch_model,
    save_torch_state_dict,
    split_torch_state_dict_into_shards,
)
from huggingface_hub.serialization import split_state_dict_into_shards_factory
from tiny import assert_same_tensors, tiny_model
from transformers import AutoModelForCausalLM

import safetensors.numpy
from safetensors._saving import split as _split
from safetensors.torch import load_files, save_files

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]


def sized(rng: random.Random) -> dict[str, int]:
    """Return sizes of up to 30 tensors, often equal, sometimes 0."""
    most = rng.choice([3, 10, 1000])
    names = [f"layers.{i}" for i in range(rng.randrange(1, 30))]
    rng.shuffle(names)
    return {name: rng.randrange(most) for name in names}


def test_split_is_the_hubs() -> None:
    """For 5,000 random models and limits: the shards and their names."""
    rng = random.Random(17)
    for _ in range(5000):
        sizes = sized(rng)
        limit: int | str = rng.randrange(1, 3 * max(2, *sizes.values()))
        if rng.random() < 0.1:
            limit = rng.choice(["1KB", "0.01KB", " 1.5 kb", "1MB"])
        theirs = split_state_dict_into_shards_factory(
            sizes,
            get_storage_size=lambda nbytes: nbytes,
            filename_pattern="model{suffix}.safetensors",
            max_shard_size=limit,
        )
        ours = _split.split(sizes, limit)
        files = _split.file_names("model", len(ours.shards))
        assert dict(zip(files, ours.shards, strict=True)) == theirs.filename_to_tensors
        assert ours.total_size == theirs.metadata["total_size"]


def tensors_of(rng: random.Random) -> dict[str, torch.Tensor]:
    """Return tensors of several dtypes and shapes, in a random order.

    Only one may be empty: the hub takes empty tensors for tensors that share memory, and moves all
    of them to one shard.
    """
    made = {}
    for name, size in sized(rng).items():
        if name != "layers.0":
            size += 2
        data = torch.randint(0, 2, (size,) if size % 2 else (size // 2, 2))
        made[name] = data.to(rng.choice(DTYPES))
    return made


@pytest.mark.parametrize("seed", range(40))
def test_files_are_the_hubs(seed: int, tmp_path: Path) -> None:
    """Byte for byte, also over an earlier model."""
    rng = random.Random(seed)
    for _ in range(2):
        tensors = tensors_of(rng)
        limit = rng.randrange(1, 4000)
        (tmp_path / "theirs").mkdir(exist_ok=True)
        save_torch_state_dict(tensors, tmp_path / "theirs", max_shard_size=limit)
        paths = save_files(tensors, tmp_path / "ours", max_shard_size=limit)
        found = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
        assert found == {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
        split = split_torch_state_dict_into_shards(tensors, max_shard_size=limit)
        assert [Path(path).name for path in paths] == list(split.filename_to_tensors)


def test_numpys_are_torchs(tmp_path: Path) -> None:
    """The same arrays make the same files."""
    tensors = {f"{i}": torch.rand(i, 3) for i in range(9)}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    save_files(tensors, tmp_path / "a", {"k": "v", "format": "np"}, max_shard_size=200)
    safetensors.numpy.save_files(
        arrays, tmp_path / "b", {"k": "v", "format": "np"}, max_shard_size=200
    )
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) > 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert np.array_equal(load_files(tmp_path / "b")["8"].numpy(), arrays["8"])


@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
def test_the_hub_loads_them(max_shard_size: str, tmp_path: Path) -> None:
    """By the name of the folder, also its headers."""
    model = tiny_model("bert")
    state = dict(model.state_dict())
    state.pop("cls.predictions.decoder.weight")  # tied
    state.pop("cls.predictions.decoder.bias")
    save_files(state, tmp_path, max_shard_size=max_shard_size)
    target = tiny_model("bert")
    assert not load_torch_model(target, tmp_path).unexpected_keys
    assert_same_tensors(target.state_dict(), model.state_dict())
    found = get_local_safetensors_metadata(tmp_path)
    assert found.sharded is (max_shard_size == "20KB")
    assert set(found.weight_map) == set(state)


@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
def test_transformers_loads_them(max_shard_size: str, tmp_path: Path) -> None:
    """Over files of its own, which are more, or fewer."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path, max_shard_size="20KB" if max_shard_size == "5GB" else "5GB")
    state = dict(model.state_dict())
    state.pop("lm_head.weight")  # tied
    for tensor in state.values():
        tensor.mul_(2)
    save_files(state, tmp_path, {"note": "x"}, max_shard_size=max_shard_size)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True).eval()
    assert_same_tensors(loaded.state_dict(), model.state_dict())
