"""Row lengths of MLX packs that only other tensors tell, and entries of `quantization`."""

import numpy as np
import pytest

from safetensors.weights import QuantParams, open_weights
from weights_support.scheme_models import write_model

ATTENTION = "model.layers.0.self_attn."
LINEAR = "model.layers.0.linear_attn."


def pack(name, shape, bits, group):
    *front, k = shape
    return {
        name + ".weight": np.zeros((*front, k * bits // 32), np.uint32),
        name + ".scales": np.ones((*front, k // group), np.float16),
        name + ".biases": np.zeros((*front, k // group), np.float16),
    }


def write(folder, tensors, bits, group, **config):
    tensors = {"model.embed_tokens.weight": np.zeros((8, 512), np.float16)} | tensors
    quantization = {"bits": bits, "group_size": group, **config.pop("entries", {})}
    return write_model(
        folder, tensors, {"quantization": quantization, **config}, metadata={"format": "mlx"}
    )


MIXED = [(8, 32, 4, 64), (6, 32, 4, 32), (6, 64, 4, 64), (8, 64, 4, 64), (4, 64, 4, 64)]


@pytest.mark.parametrize("known_by", ["q_b", "q", "config.json"])
@pytest.mark.parametrize(("bits", "group", "model_bits", "model_group"), MIXED)
def test_keys_of_latent_attention(bits, group, model_bits, model_group, known_by, tmp_path):
    """embed_q is [heads, rank, values of a head without rotation]."""
    heads, rank, nope, rope = 2, 512, 192, 64
    config = {"model_type": "glm4_moe_lite", "num_attention_heads": heads}
    tensors = pack(ATTENTION + "embed_q", (heads, rank, nope), bits, group)
    if known_by == "config.json":
        config["qk_nope_head_dim"] = nope
    else:
        q = {"q_b": "q_b_proj", "q": "q_proj"}[known_by]
        rows = heads * (nope + rope)
        tensors |= pack(ATTENTION + q, (rows, 512), model_bits, model_group)
        kv_a = ATTENTION + "kv_a_proj_with_mqa"
        tensors |= pack(kv_a, (rank + rope, 512), model_bits, model_group)
        tensors[ATTENTION + "kv_a_layernorm.weight"] = np.ones(rank, np.float16)
    with open_weights(write(tmp_path, tensors, model_bits, model_group, **config)) as w:
        t = w["layers.0.attention.k_b.weight"]
        assert t.shape == (heads, rank, nope)
        assert t.quant == QuantParams("affine", bits, group)
        assert t.numpy().shape == (heads, rank, nope)


@pytest.mark.parametrize(("bits", "group", "model_bits", "model_group"), MIXED[:1] + MIXED[3:])
def test_the_output_of_linear_attention(bits, group, model_bits, model_group, tmp_path):
    heads, values = 4, 128
    tensors = pack(LINEAR + "out_proj", (64, heads * values), bits, group)
    tensors[LINEAR + "A_log"] = np.ones(heads, np.float32)
    tensors[LINEAR + "norm.weight"] = np.ones(values, np.float32)
    path = write(tmp_path, tensors, model_bits, model_group, model_type="qwen3_next")
    with open_weights(path) as w:
        t = w["layers.0.ssm.out.weight"]
        assert (t.shape, t.quant) == ((64, heads * values), QuantParams("affine", bits, group))


def test_norms_of_state_spaces_do_not_tell_the_row_length(tmp_path):
    mixer = "backbone.layers.0.mixer."
    tensors = pack(mixer + "out_proj", (64, 512), 4, 64)
    tensors |= {mixer + "A_log": np.ones(4, np.float32), mixer + "norm.weight": np.ones(512)}
    with open_weights(write(tmp_path, tensors, 4, 64, model_type="mamba2")) as w:
        assert [w[name].shape for name in [*w, *w.unmapped] if "out" in name] == [(64, 512)]


PREFIXES = ["model.language_model.", "language_model.model.", "language_model.", "model.", ""]


@pytest.mark.parametrize("key_prefix", PREFIXES)
@pytest.mark.parametrize("prefix", PREFIXES[:4])
def test_entries_with_another_prefix(prefix, key_prefix, tmp_path):
    name = "layers.0.self_attn.o_proj"
    entries = {key_prefix + name: {"bits": 8, "group_size": 64}}
    tensors = pack(prefix + name, (64, 512), 8, 64)  # also 4 bits in groups of 128
    with open_weights(write(tmp_path, tensors, 4, 128, entries=entries)) as w:
        (t,) = [w[n] for n in [*w, *w.unmapped] if w[n].storage == "mlx_pack"]
        assert (t.shape, t.quant) == ((64, 512), QuantParams("affine", 8, 64))
        assert w.warnings == []


def test_the_exact_name_of_an_entry_comes_first(tmp_path):
    name = "layers.0.self_attn.o_proj"
    entries = {
        "model." + name: {"bits": 8, "group_size": 64},
        "language_model." + name: {"bits": 4, "group_size": 128},
    }
    tensors = pack("model." + name, (64, 512), 8, 64)
    with open_weights(write(tmp_path, tensors, 4, 128, entries=entries)) as w:
        assert w["layers.0.attention.output.weight"].quant == QuantParams("affine", 8, 64)
        assert w.warnings == [
            f"`quantization` has 1 entry that matches no module: `language_model.{name}`"
        ]


def test_entries_of_no_module(tmp_path):
    entries = {f"model.layers.{i}.nothing": {"bits": 8, "group_size": 64} for i in range(3)}
    entries["model.layers.0.else"] = False
    tensors = pack("model.layers.0.self_attn.o_proj", (64, 512), 4, 64)
    with open_weights(write(tmp_path, tensors, 4, 64, entries=entries)) as w:
        assert w.warnings == [
            "`quantization` has 3 entries that match no module: `model.layers.0.nothing`, "
            "`model.layers.1.nothing`, `model.layers.2.nothing`"
        ]
