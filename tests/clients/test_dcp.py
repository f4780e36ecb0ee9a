"""safetensors.dcp beside torch's own Hugging Face writer, reader and consolidation."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_torch_checkpoint import empty_like, random_state
from tiny import assert_same_outputs, assert_same_tensors, logits, raw_header, tiny_model
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from transformers import AutoModelForCausalLM

import safetensors.dcp
from safetensors.dcp import StorageWriter, consolidate
from safetensors.torch import load_files
from support import ranks

State = dict[str, torch.Tensor]
WRITERS = {"ours": StorageWriter, "torch's": HuggingFaceStorageWriter}


def save(state: State, writer: Any) -> None:
    """Save in this process alone."""
    dcp.save(state, storage_writer=writer, no_dist=True)


def load(state: State, folder: Path, **options: Any) -> State:
    """Load tensors of these shapes with torch's reader, in this process alone."""
    target = empty_like(state)
    dcp.load(target, storage_reader=HuggingFaceStorageReader(str(folder), **options), no_dist=True)
    return target


def index_of(folder: Path) -> dict[str, Any]:
    """The index of a model, with files named by what they hold."""
    found: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("limit", ["5GB", 100])
def test_torchs_reader(limit: str | int, threads: int, tmp_path: Path) -> None:
    """Loads our files, whole and in shards."""
    state = random_state()
    save(state, StorageWriter(tmp_path, max_shard_size=limit))
    assert (len(list(tmp_path.iterdir())) > 1) == (limit == 100)
    assert_same_tensors(load(state, tmp_path, thread_count=threads), state)


def test_torchs_reader_of_some_tensors(tmp_path: Path) -> None:
    """A reader that asks for two tensors gets those."""
    state = random_state()
    save(state, StorageWriter(tmp_path))
    wanted = {name: state[name] for name in ("bias", "half")}
    assert_same_tensors(load(wanted, tmp_path), wanted)


def test_same_files_by_a_mapping(tmp_path: Path) -> None:
    """Names, tensors and index are those of torch's writer."""
    state = random_state()
    mapping = {name: 1 + number % 3 for number, name in enumerate(sorted(state))}
    for name, writer in WRITERS.items():
        save(state, writer(str(tmp_path / name), fqn_to_index_mapping=mapping))
    ours, theirs = tmp_path / "ours", tmp_path / "torch's"
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert index_of(ours)["weight_map"] == index_of(theirs)["weight_map"]
    assert index_of(ours)["metadata"] == index_of(theirs)["metadata"]
    for file in ours.glob("*.safetensors"):
        found, expected = raw_header(file), raw_header(theirs / file.name)
        assert found.pop("__metadata__") == {"format": "pt"}
        assert expected.pop("__metadata__")["format"] == "pt"
        assert found == expected


def test_non_tensors(tmp_path: Path) -> None:
    """torch's writer makes a file that nothing reads; ours refuses."""
    state: dict[str, Any] = {"w": torch.ones(3), "step": 3}
    save(state, HuggingFaceStorageWriter(str(tmp_path / "torch's")))
    with pytest.raises(Exception, match=r"(?i)header"):
        load_files(tmp_path / "torch's")
    with pytest.raises(BaseException, match="`step` is not a tensor"):
        save(state, StorageWriter(tmp_path / "ours"))
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("limit", ["5GB", "20KB"])
def test_transformers_reads_its_files(limit: str, tmp_path: Path) -> None:
    """A checkpoint of training is a model folder."""
    model = tiny_model("llama", tie_word_embeddings=False)
    model.config.save_pretrained(tmp_path)
    save(model.state_dict(), StorageWriter(tmp_path, max_shard_size=limit))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert_same_outputs(logits(loaded.eval()), logits(model))


def test_async_save(tmp_path: Path) -> None:
    """By a thread; torch's reader loads the values of the call."""
    state = random_state()
    expected = {name: tensor.clone() for name, tensor in state.items()}
    future: Any = dcp.async_save(state, storage_writer=StorageWriter(tmp_path), no_dist=True)
    for tensor in state.values():
        tensor.zero_()
    future.result()
    assert_same_tensors(load(state, tmp_path), expected)


def _rank(rank: int, folder: str) -> None:
    """One of two processes: save sharded tensors with both, then load them sharded otherwise."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(7 * 6, dtype=torch.float32).reshape(7, 6)
    state = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "plain": whole * 2,
    }
    sharded = HuggingFaceStorageWriter(f"{folder}/sharded", save_distributed=True)
    dcp.save(state, storage_writer=sharded)
    dcp.save(state, storage_writer=StorageWriter(f"{folder}/ours"))
    found = safetensors.dcp.site_of
    with pytest.MonkeyPatch.context() as patch:  # as if they ran on two machines
        patch.setattr("safetensors.dcp.site_of", lambda at: found(at)._replace(boot_id=str(rank)))
        dcp.save(state, storage_writer=StorageWriter(f"{folder}/ours of each"))
    for saved in ("ours", "ours of each"):
        target = {
            "rows": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(1)]),
            "columns": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(0)]),
            "plain": torch.zeros(7, 6),
        }
        dcp.load(target, storage_reader=HuggingFaceStorageReader(f"{folder}/{saved}"))
        assert torch.equal(target["rows"].full_tensor(), whole)
        assert torch.equal(target["columns"].full_tensor(), whole)
        assert torch.equal(target["plain"], whole * 2)


def test_two_ranks(tmp_path: Path) -> None:
    """One file of ours; torch's two files consolidate to the same tensors by both functions."""
    ranks.run(_rank, 2, str(tmp_path), start_method="spawn")
    assert not multiprocessing.active_children()
    assert os.listdir(tmp_path / "ours") == ["model.safetensors"]
    state = load_files(tmp_path / "ours")
    assert len(list((tmp_path / "sharded").iterdir())) == 2
    assert sorted(os.listdir(tmp_path / "ours of each")) == sorted(os.listdir(tmp_path / "sharded"))

    mapping = {"rows": 1, "columns": 2, "plain": 2}
    consolidate(tmp_path / "sharded", tmp_path / "a", fqn_to_index_mapping=mapping)
    (tmp_path / "b").mkdir()
    consolidate_safetensors_files(str(tmp_path / "sharded"), str(tmp_path / "b"), mapping)
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "b"))
    assert index_of(tmp_path / "a") == index_of(tmp_path / "b")
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert_same_tensors(load_files(folder), state)
        assert_same_tensors(load(state, folder), state)
