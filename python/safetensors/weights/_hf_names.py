"""Names of Hugging Face for the canonical names of a GGUF file."""

import re
from typing import Collection, Dict, NamedTuple, Optional, Set

_GLOBAL = {
    "token_embedding": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.qkv": "self_attn.qkv_proj",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "ffn.gate_up": "mlp.gate_up_proj",
    "ffn.router": "mlp.gate",
    "ffn.experts": "mlp.experts",
    "ffn.shared_expert.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared_expert.up": "mlp.shared_expert.up_proj",
    "ffn.shared_expert.down": "mlp.shared_expert.down_proj",
    "ffn.shared_expert_gate": "mlp.shared_expert_gate",
}
_EXPERT = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_SHARED_EXPERTS = {
    f"ffn.shared_expert.{part}": f"mlp.shared_experts.{name}" for part, name in _EXPERT.items()
}
_CORRECTED = {"ffn.router_correction": "mlp.gate.e_score_correction"}  # its param is `bias`
_MIXTRAL = {"ffn.router": "block_sparse_moe.gate", "ffn.experts": "block_sparse_moe.experts"}
_MIXTRAL_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}

ARCHITECTURES: Dict[str, Dict[str, str]] = {
    "arcee": {},
    "cohere2": {},
    "command-r": {},
    "deepseek": _SHARED_EXPERTS,
    "dots1": {**_SHARED_EXPERTS, **_CORRECTED},
    "dream": {},
    "ernie4_5": {},
    "exaone4": {},
    "gemma": {},
    "gemma2": {},
    "gemma3": {},
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffn_norm": "post_mlp_layernorm",
    },
    "glm4moe": {**_SHARED_EXPERTS, **_CORRECTED},
    "granite": {},
    "llama": _MIXTRAL,
    "minicpm": {},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmoe": {},
    "phi3": {},
    "qwen2": {},
    "qwen2moe": {},
    "qwen3": {},
    "qwen3moe": {},
    "seed_oss": {},
    "smollm3": {},
}
"""Architectures of GGUF whose checkpoints have these names, with the names that differ."""
# What a checkpoint has in config.json, and a GGUF file as tensors.
_IN_CONFIG = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}

_IN_LAYER = re.compile(r"layers\.([0-9]+)\.(.+)\.(weight|bias)")
_OF_EXPERT = re.compile(r"ffn\.experts\.(?:([0-9]+)\.)?(gate|up|down)")


class HfName(NamedTuple):
    """A name, or those of the experts that a tensor stacks."""

    name: str
    """For a stack, `{}` is the number of an expert."""
    is_stack: bool = False


class HfNames:
    """The names of a model that a GGUF file holds."""

    def __init__(self, architecture: Optional[str], canonical: Collection[str]) -> None:
        """Requires: is_known(architecture)."""
        self._other = ARCHITECTURES[architecture or ""]
        self._expert = _MIXTRAL_EXPERT if self._other is _MIXTRAL else _EXPERT
        # Layers with a norm on both sides of the feed-forward part. glm4 has names of its own.
        self._sandwiched: Set[str] = set()
        if architecture != "glm4":
            after = re.compile(r"layers\.([0-9]+)\.post_ffn_norm\.weight")
            found = (after.fullmatch(name) for name in canonical)
            self._sandwiched = {match[1] for match in found if match}

    @staticmethod
    def is_known(architecture: Optional[str]) -> bool:
        return architecture in ARCHITECTURES

    @staticmethod
    def is_left_out(canonical: str) -> bool:
        """Returns whether a checkpoint has no such tensor."""
        return canonical in _IN_CONFIG

    def of(self, canonical: str) -> Optional[HfName]:
        """Returns the name of a tensor, or None if there is no rule for it."""
        module, _, param = canonical.rpartition(".")
        if module in _GLOBAL:
            return HfName(f"{_GLOBAL[module]}.{param}")
        match = _IN_LAYER.fullmatch(canonical)
        if match is None:
            return None
        number, module, param = match.groups()
        start = f"model.layers.{number}."
        expert = _OF_EXPERT.fullmatch(module)
        if expert is not None:
            which, part = expert.groups()
            experts = self._of_module("ffn.experts", number)
            name = f"{start}{experts}.{which or '{}'}.{self._expert[part]}.{param}"
            return HfName(name, which is None)
        found = self._of_module(module, number)
        if found is None:
            return None
        joint = "_" if found.endswith("e_score_correction") else "."
        return HfName(f"{start}{found}{joint}{param}")

    def _of_module(self, module: str, layer: str) -> Optional[str]:
        if module == "ffn_norm" and layer in self._sandwiched:
            return "pre_feedforward_layernorm"
        return self._other.get(module) or _LAYER.get(module)
