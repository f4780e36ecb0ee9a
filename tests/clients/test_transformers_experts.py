"""transformers: plan_tp loads what its own tensor-parallel load gives a rank, also of experts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import VOCABULARY, randomize
from transformers import AutoModelForCausalLM, PreTrainedModel

from safetensors.plan import resolve
from safetensors.torch import load_files, plan_tp
from support import ranks

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8,
         "mlp_only_layers": [0]},
    ),
    "deepseek_v2": ("DeepseekV2", DEEPSEEK),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "gpt_oss": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 8,
         "layer_types": ["full_attention", "full_attention"]},
    ),
    "llama4_text": (
        "Llama4",
        {"num_local_experts": 4, "intermediate_size_mlp": 48, "head_dim": 8,
         "moe_layers": [1], "pad_token_id": 0},
    ),
    "llama": ("Llama", {}),
}  # fmt: skip


def tiny(kind: str) -> PreTrainedModel:
    name, more = KINDS[kind]
    suffix = "TextConfig" if kind == "llama4_text" else "Config"
    config = getattr(transformers, name + suffix)(**(SIZES | more))
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config)
    randomize(model)
    return model


def merged(loaded: dict[str, torch.Tensor], parameter: str) -> torch.Tensor:
    """Return a parameter of loaded tensors, which may be single experts of it."""
    for name in (parameter, parameter.replace(".mlp.", ".block_sparse_moe.")):
        if name in loaded:
            return loaded[name]
    block, _, part = parameter.rpartition(".")
    blocks = (block, block.replace(".mlp.", ".block_sparse_moe."))
    names = [name for name in loaded if name.startswith(tuple(f"{each}." for each in blocks))]

    def stack(*words: str) -> torch.Tensor:
        of = sorted(n for n in names if n.split(".")[-2] in words)
        return torch.stack([loaded[name] for name in of])

    if part == "down_proj":
        return stack("down_proj", "w2")
    return torch.cat([stack("gate_proj", "w1"), stack("up_proj", "w3")], 1)


def _check(folder: str, rank: int) -> None:
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(folder)
        empty = AutoModelForCausalLM.from_config(config)
    model = AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_plan="auto")
    )
    state = model.state_dict()
    shards = {n: t.to_local() if isinstance(t, DTensor) else t for n, t in state.items()}
    nbytes = sum(tensor.nbytes for tensor in shards.values())
    assert any(isinstance(tensor, DTensor) for tensor in state.values()), folder
    for given in (None, empty):
        rules = plan_tp(model.tp_plan, rank, 2, model=given)
        found = load_files(folder, plan=rules)
        for name, shard in shards.items():
            assert torch.equal(merged(found, name), shard), (folder, name)
        wanted = sum(reads.wanted_bytes for reads in resolve(folder, rules).explain())
        assert wanted <= 1.05 * nbytes, folder


def _rank(rank: int, top: str) -> None:
    """Check all kinds: most of the time, a process imports transformers."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    for kind in KINDS:
        _check(os.path.join(top, kind), rank)


def test_shares_are_those_of_transformers(tmp_path: Path) -> None:
    for kind in KINDS:
        tiny(kind).save_pretrained(tmp_path / kind, max_shard_size="20KB")
    ranks.run(_rank, 2, str(tmp_path), start_method="spawn")
