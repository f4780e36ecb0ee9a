"""torch.distributed.checkpoint: the Hugging Face storage writer and reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import Spy
from tiny import (
    assert_files_hold,
    assert_same_outputs,
    assert_same_tensors,
    logits,
    raw_header,
    tiny_model,
)
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from transformers import AutoModelForCausalLM

import safetensors
import safetensors.torch
from safetensors.dcp import StorageReader
from support import ranks

State = dict[str, torch.Tensor]
READERS = ["torch's", "ours"]


def random_state() -> State:
    """Tensors of several dtypes and ranks."""
    return {
        "weight": torch.randn(12, 8),
        "half": torch.randn(5, 3, 2).to(torch.bfloat16),
        "bias": torch.randn(7),
        "count": torch.tensor(123456789),
        "row": torch.arange(16).reshape(1, 16),
    }


def empty_like(state: State) -> State:
    """Targets of the same shapes, holding other values."""
    return {name: torch.zeros_like(value) for name, value in state.items()}


def save(state: State, folder: Path, **options: Any) -> None:
    """Save in this process alone."""
    writer = HuggingFaceStorageWriter(str(folder), **options)
    dcp.save(state, storage_writer=writer, no_dist=True)


def load(target: State, folder: Path, name: str = "torch's", **options: Any) -> None:
    """Load in this process alone, into the given tensors."""
    reader: Any = StorageReader(folder)
    if name == "torch's":
        reader = HuggingFaceStorageReader(str(folder), **options)
    dcp.load(target, storage_reader=reader, no_dist=True)


def test_one_file(tmp_path: Path, spy: Spy) -> None:
    """Everything in one file: saved by save(), read through get_slice()."""
    saved, opened = spy(safetensors.torch, "save"), spy(safetensors, "safe_open")
    state = random_state()
    save(state, tmp_path)
    assert saved.count == 1
    assert_files_hold(tmp_path.glob("*.safetensors"), state)
    target = empty_like(state)
    load(target, tmp_path)
    assert opened.count >= 2
    assert_same_tensors(target, state)
    target = empty_like(state)
    load(target, tmp_path, "ours")
    assert_same_tensors(target, state)


@pytest.mark.parametrize("threads", [1, 3])
def test_several_files(threads: int, tmp_path: Path) -> None:
    """Tensors spread over files by an index, written and read by threads."""
    state = random_state()
    mapping = {name: 1 + number % 3 for number, name in enumerate(sorted(state))}
    save(state, tmp_path, fqn_to_index_mapping=mapping, thread_count=threads)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 3
    assert_files_hold(files, state)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(state)
    target = empty_like(state)
    load(target, tmp_path, thread_count=threads)
    assert_same_tensors(target, state)
    target = empty_like(state)
    load(target, tmp_path, "ours")
    assert_same_tensors(target, state)


@pytest.mark.parametrize("reader", READERS)
def test_some_tensors_only(reader: str, tmp_path: Path) -> None:
    """A reader that asks for two tensors gets those."""
    state = random_state()
    save(state, tmp_path)
    wanted = {name: state[name] for name in ("bias", "half")}
    target = empty_like(wanted)
    load(target, tmp_path, reader)
    assert_same_tensors(target, wanted)


@pytest.mark.parametrize("reader", READERS)
def test_reads_a_transformers_checkpoint(reader: str, tmp_path: Path) -> None:
    """Files with no sharding information of torch's own."""
    model = tiny_model("llama", tie_word_embeddings=False)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    target = empty_like(model.state_dict())
    load(target, tmp_path, reader)
    assert_same_tensors(target, model.state_dict())


def test_transformers_reads_its_files(tmp_path: Path) -> None:
    """Consolidated files of a writer load by from_pretrained."""
    model = tiny_model("llama", tie_word_embeddings=False)
    model.config.save_pretrained(tmp_path)
    save(model.state_dict(), tmp_path, save_distributed=True, enable_consolidation=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert_same_outputs(logits(loaded.eval()), logits(model))


def test_consolidation(tmp_path: Path) -> None:
    """Sharded files are merged into whole ones, one of them per index."""
    # torch's consolidation asks finfo for every dtype: floating point only.
    state = {name: value for name, value in random_state().items() if value.is_floating_point()}
    mapping = {name: 1 + number % 2 for number, name in enumerate(sorted(state))}
    save(
        state,
        tmp_path,
        fqn_to_index_mapping=mapping,
        save_distributed=True,
        enable_consolidation=True,
        thread_count_consolidation=2,
    )
    sharded = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert sharded
    assert all("DCP_SHARDING_INFO" in raw_header(f)["__metadata__"] for f in sharded)
    whole = sorted(tmp_path.glob("*.safetensors"))
    assert len(whole) == 2
    loaded: State = {}
    for file in whole:
        loaded.update(safetensors.torch.load_file(file))
    assert_same_tensors(loaded, state)
    for folder in (tmp_path, tmp_path / "sharded"):
        target = empty_like(state)
        load(target, folder, "ours")
        assert_same_tensors(target, state)


def _rank(rank: int, folder: str) -> None:
    """One of two processes: save a sharded tensor, then load it sharded the other way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    full = torch.arange(7 * 6, dtype=torch.float32).reshape(7, 6)
    writer = HuggingFaceStorageWriter(folder, save_distributed=True)
    dcp.save({"w": distribute_tensor(full, mesh, [Shard(0)])}, storage_writer=writer)
    for reader in (HuggingFaceStorageReader, StorageReader):
        target = {"w": distribute_tensor(torch.zeros_like(full), mesh, [Shard(1)])}
        dcp.load(target, storage_reader=reader(folder))
        assert torch.equal(target["w"].full_tensor(), full)


def test_two_processes_reshard(tmp_path: Path) -> None:
    """Rows written by two processes are read back as columns: slices with offsets."""
    ranks.run(_rank, 2, str(tmp_path), start_method="spawn")
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
