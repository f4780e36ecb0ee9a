"""transformers: save_pretrained and from_pretrained in the ways people use them."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers.modeling_utils as client
from conftest import Spy
from tiny import (
    assert_files_hold,
    assert_same_outputs,
    assert_same_tensors,
    logits,
    raw_bytes,
    raw_header,
    shards_of,
    tiny_model,
)
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from safetensors import SafetensorError
from safetensors.torch import load_files, load_into, plan_tp
from support import ranks

KINDS = ["gpt2", "llama", "bert"]
TIED_NAME = {
    "gpt2": "lm_head.weight",
    "llama": "lm_head.weight",
    "bert": "cls.predictions.decoder.weight",
}


def load(kind: str, folder: Path, **options: object) -> PreTrainedModel:
    """Load by the class that people would use."""
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    model: PreTrainedModel = auto.from_pretrained(folder, local_files_only=True, **options)
    return model.eval()


def untied_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the state without the second name of a shared tensor: what a file should hold."""
    tied = set(model.all_tied_weights_keys or {})
    return {name: value for name, value in model.state_dict().items() if name not in tied}


@pytest.mark.parametrize("kind", KINDS)
def test_single_file(kind: str, tmp_path: Path, spy: Spy) -> None:
    """One file: what is in it, and the same logits after loading."""
    saved, opened = spy(client, "safe_save_file"), spy(client, "safe_open")
    model = tiny_model(kind)
    model.save_pretrained(tmp_path)
    assert saved.count == 1
    file = tmp_path / "model.safetensors"
    assert raw_header(file)["__metadata__"] == {"format": "pt"}
    assert_files_hold([file], untied_state(model))

    loaded = load(kind, tmp_path)
    assert opened.count >= 1
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    assert_same_outputs(logits(loaded), logits(model))


@pytest.mark.parametrize("kind", KINDS)
def test_sharded(kind: str, tmp_path: Path, spy: Spy) -> None:
    """Many small shards and their index."""
    model = tiny_model(kind)
    saved, opened = spy(client, "safe_save_file"), spy(client, "safe_open")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = shards_of(tmp_path)
    assert len(shards) > 3
    assert saved.count == len(shards)
    assert_files_hold(shards, untied_state(model))

    loaded = load(kind, tmp_path)
    assert opened.count >= len(shards)
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    assert_same_outputs(logits(loaded), logits(model))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_tied_weights(kind: str, tied: bool, tmp_path: Path) -> None:
    """A tied tensor is stored once and tied again; two separate ones are both stored."""
    model = tiny_model(kind, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    header = raw_header(tmp_path / "model.safetensors")
    assert (TIED_NAME[kind] in header) is not tied

    loaded = load(kind, tmp_path)
    output, source = loaded.get_output_embeddings().weight, loaded.get_input_embeddings().weight
    assert (output.data_ptr() == source.data_ptr()) is tied
    assert_same_tensors(loaded.state_dict(), model.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_file(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Half-precision weights are stored as they are, and load as they are."""
    model = tiny_model(kind).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = load(kind, tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    assert_files_hold([tmp_path / "model.safetensors"], untied_state(model))
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    assert_same_outputs(logits(loaded), logits(model))


def test_dtype_conversion_while_loading(tmp_path: Path) -> None:
    """A float32 file loads as bfloat16 and a bfloat16 file as float32."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "full")
    half = load("llama", tmp_path / "full", dtype=torch.bfloat16)
    expected = {name: value.bfloat16() for name, value in model.state_dict().items()}
    assert_same_tensors(half.state_dict(), expected)

    half.save_pretrained(tmp_path / "half")
    widened = load("llama", tmp_path / "half", dtype=torch.float32)
    assert_same_tensors(
        widened.state_dict(), {name: value.float() for name, value in expected.items()}
    )
    assert load("llama", tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_base_model_from_head_checkpoint(tmp_path: Path) -> None:
    """The base class finds its weights under the prefix and leaves out the head."""
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path, local_files_only=True, add_pooling_layer=False)
    assert_same_tensors(base.state_dict(), model.bert.state_dict())


def test_variant(tmp_path: Path) -> None:
    """A variant has its name in the file name and loads by it."""
    model = tiny_model("gpt2").half()
    model.save_pretrained(tmp_path, variant="fp16")
    assert [p.name for p in tmp_path.glob("*.safetensors")] == ["model.fp16.safetensors"]
    loaded = load("gpt2", tmp_path, variant="fp16", dtype=torch.float16)
    assert_same_tensors(loaded.state_dict(), model.state_dict())


@pytest.mark.parametrize("sharded", [False, True])
def test_without_mmap(sharded: bool, tmp_path: Path, spy: Spy) -> None:
    """disable_mmap reads the file into bytes and parses those."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "1GB")
    parsed = spy(client, "_safe_load_bytes")
    loaded = load("gpt2", tmp_path, disable_mmap=True)
    assert parsed.count == len(list(tmp_path.glob("*.safetensors")))
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    assert_same_outputs(logits(loaded), logits(model))


def test_load_state_dict_on_meta(tmp_path: Path) -> None:
    """Shapes and dtype words are read from slices without touching data."""
    model = tiny_model("llama").bfloat16()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    meta = client.load_state_dict(file, map_location="meta")
    state = untied_state(model)
    assert sorted(meta) == sorted(state)
    for name, tensor in meta.items():
        assert tensor.is_meta
        assert (tensor.shape, tensor.dtype) == (state[name].shape, state[name].dtype)
    assert_same_tensors(client.load_state_dict(file), state)


@pytest.mark.parametrize("sharded", [False, True])
def test_disk_offload(sharded: bool, tmp_path: Path) -> None:
    """Layers left on disk are read from the checkpoint at each forward pass, and saved again."""
    model = tiny_model("gpt2")
    source = tmp_path / "source"
    model.save_pretrained(source, max_shard_size="20KB" if sharded else "1GB")
    placement = {
        "transformer.wte": "cpu",
        "lm_head": "cpu",
        "transformer.wpe": "cpu",
        "transformer.h.0": "cpu",
        "transformer.h.1": "disk",
        "transformer.h.2": "disk",
        "transformer.ln_f": "disk",
    }
    loaded = load("gpt2", source, device_map=placement, offload_folder=tmp_path / "offload")
    on_disk = [name for name, p in loaded.named_parameters() if p.is_meta]
    assert any(name.startswith("transformer.h.2.") for name in on_disk)
    for _ in range(2):
        assert_same_outputs(logits(loaded), logits(model))

    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert_files_hold([again / "model.safetensors"], untied_state(model))


def test_everything_on_disk(tmp_path: Path) -> None:
    """device_map "disk" for the whole model."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "source")
    loaded = load(
        "llama", tmp_path / "source", device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    )
    assert all(p.is_meta for p in loaded.parameters())
    assert_same_outputs(logits(loaded), logits(model))


def test_device_map_auto(tmp_path: Path) -> None:
    """device_map "auto" under a small memory limit spills to disk."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "source")
    loaded = load(
        "llama",
        tmp_path / "source",
        device_map="auto",
        max_memory={"cpu": "60KB"},
        offload_folder=tmp_path / "offload",
    )
    assert "disk" in set(loaded.hf_device_map.values())
    assert_same_outputs(logits(loaded), logits(model))


def test_model_outlives_its_files(tmp_path: Path) -> None:
    """Weights stay readable after the checkpoint is deleted."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path / "gone", max_shard_size="20KB")
    loaded = load("gpt2", tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert_same_outputs(logits(loaded), logits(model))


@pytest.mark.parametrize("max_shard_size", ["10GB", "20KB"])
def test_load_into_a_model_with_tied_weights(tmp_path: Path, max_shard_size: str) -> None:
    """transformers writes tied weights once; load_into fills them all."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    target = tiny_model("gpt2")
    assert load_into(target, tmp_path) == ([], [])
    assert_same_tensors(target.state_dict(), model.state_dict())


def test_training_leaves_the_file_alone(tmp_path: Path) -> None:
    """A training step writes to the loaded weights; the file keeps its bytes."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    before = hashlib.sha256(file.read_bytes()).digest()
    loaded = load("gpt2", tmp_path)

    tokens = torch.arange(12).reshape(1, 12)
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.5)
    loaded(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    assert not torch.equal(logits(loaded), logits(model))
    assert hashlib.sha256(file.read_bytes()).digest() == before
    assert_same_outputs(logits(load("gpt2", tmp_path)), logits(model))


def test_save_over_own_checkpoint(tmp_path: Path) -> None:
    """A changed model is saved over the very file that its weights came from."""
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path)
    loaded = load("gpt2", tmp_path)
    with torch.no_grad():
        loaded.transformer.ln_f.bias.add_(1.0)
    expected = {name: value.clone() for name, value in untied_state(loaded).items()}
    loaded.save_pretrained(tmp_path)
    assert_same_tensors(untied_state(loaded), expected)
    assert_files_hold([tmp_path / "model.safetensors"], expected)


@pytest.mark.parametrize("keep", [4, 40, -1])
def test_damaged_checkpoint(keep: int, tmp_path: Path) -> None:
    """A truncated file is refused, whatever is left of it."""
    tiny_model("gpt2").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises((SafetensorError, OSError)):
        load("gpt2", tmp_path)


def _tensor_parallel_rank(rank: int, folder: str) -> None:
    """One of two processes: load a model with tensor parallelism, and check this rank's shards."""
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    config = DistributedConfig(tp_plan="auto")
    model = load("llama", Path(folder), distributed_config=config)
    state = model.state_dict()
    shards = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in state.items()}
    whole = load_files(folder, backend="pread")
    sharded = {name for name, tensor in whole.items() if shards[name].shape != tensor.shape}
    assert len(sharded) == 3 * 7 + 2  # all but the norms
    for name in sharded:
        axis = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        expected = whole[name].chunk(2, axis)[rank]
        assert raw_bytes(shards[name]) == raw_bytes(expected), name
    # The same shards without transformers' loader.
    assert_same_tensors(load_files(folder, plan=plan_tp(model.tp_plan, rank, 2)), shards)
    together = logits(model)
    assert_same_outputs(together, logits(load("llama", Path(folder))))


def test_tensor_parallel_load(tmp_path: Path) -> None:
    """Two ranks get their shards from the slices that transformers asks for; plan_tp agrees."""
    model = tiny_model("llama", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    ranks.run(_tensor_parallel_rank, 2, str(tmp_path / "model"), start_method="spawn")
