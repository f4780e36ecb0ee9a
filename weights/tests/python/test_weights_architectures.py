"""Differences of architectures: rotary embedding, norm weights, and layouts of GGUF."""

import numpy as np
import pytest

from safetensors.weights import WeightsError, open_weights
from weights_support.data import write_gguf, write_hf


def gguf_config(tmp_path, arch, **keys):
    metadata = {"general.architecture": arch}
    metadata |= {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    with open_weights(write_gguf(tmp_path / "m.gguf", metadata)) as w:
        return w.config, w.warnings


def hf_config(tmp_path, model_type, tensors=None, **keys):
    path = write_hf(tmp_path / "m", {"model_type": model_type, **keys}, tensors)
    with open_weights(path) as w:
        return w.config, w.warnings


SECTIONS = [16, 24, 24, 0]
GGUF_STYLES = [
    ("llama", {}, "interleaved"),
    ("granite", {}, "interleaved"),
    ("cohere2", {}, "interleaved"),
    ("ernie4_5", {}, "interleaved"),
    ("qwen3", {}, "half"),
    ("qwen2vl", {}, "mrope"),
    ("qwen35", {}, "imrope"),
    ("mamba", {}, "none"),
    ("glm4", {}, "interleaved"),
    ("glm4", {"rope__dimension_sections": SECTIONS}, "mrope"),
    ("glm4", {"rope__dimension_sections": [16, 0, 0, 0]}, "interleaved"),
    ("glm4moe", {}, "half"),
    ("glm4moe", {"rope__dimension_sections": SECTIONS}, "mrope"),
    ("qwen3", {"rope__dimension_sections": SECTIONS}, "half"),
    ("granitehybrid", {}, "interleaved"),
    ("granitehybrid", {"rope__scaling__finetuned": True}, "interleaved"),
    ("granitehybrid", {"rope__scaling__finetuned": False}, "none"),
]


@pytest.mark.parametrize(("arch", "keys", "style"), GGUF_STYLES)
def test_rope_style_of_gguf(tmp_path, arch, keys, style):
    config, warnings = gguf_config(tmp_path, arch, **keys)
    assert config.rope_style == style
    assert config.norm_weight_offset == 0.0
    assert warnings == []


HF_STYLES = [
    ("llama", {}, "half"),
    ("granite", {}, "half"),
    ("cohere2", {}, "interleaved"),
    ("llama4_text", {}, "interleaved"),
    ("qwen2_vl", {}, "mrope"),
    ("qwen3_vl", {}, "imrope"),
    ("gpt2", {}, "none"),
    ("deepseek_v3", {}, "interleaved"),
    ("deepseek_v3", {"rope_interleave": True}, "interleaved"),
    ("deepseek_v3", {"rope_interleave": False}, "half"),
    ("granitemoehybrid", {"position_embedding_type": "rope"}, "half"),
    ("granitemoehybrid", {"position_embedding_type": "nope"}, "none"),
]


@pytest.mark.parametrize(("model_type", "keys", "style"), HF_STYLES)
def test_rope_style_of_checkpoints(tmp_path, model_type, keys, style):
    config, warnings = hf_config(tmp_path, model_type, **keys)
    assert config.rope_style == style
    assert warnings == []


def test_an_unknown_architecture_is_a_warning_and_no_guess(tmp_path):
    config, warnings = gguf_config(tmp_path, "nosuch")
    assert config.rope_style is None
    assert config.norm_weight_offset == 0.0
    assert warnings == ["rope_style is not known for the architecture `nosuch`"]
    config, warnings = hf_config(tmp_path, "nosuch")
    assert config.rope_style is None
    assert config.norm_weight_offset is None
    assert warnings == [
        "rope_style is not known for the architecture `nosuch`",
        "norm_weight_offset is not known for the architecture `nosuch`",
    ]


CONV = "model.layers.0.linear_attn.conv1d.weight"
LINEAR_NORM = "model.layers.0.linear_attn.norm.weight"
TRANSFORMERS = {CONV: np.zeros((8, 1, 4), np.float32)}
MLX = {CONV: np.zeros((8, 4, 1), np.float32)}
STEP = {"model.layers.3.moe.up_proj.weight": np.zeros((2, 2, 2), np.float32)}
STEP_MLX = {"model.layers.3.mlp.switch_mlp.up_proj.weight": np.zeros((2, 2, 2), np.float32)}
OFFSETS = [
    ("llama", None, 0.0),
    ("qwen3", None, 0.0),
    ("gemma3n", None, 0.0),
    ("gemma4_text", None, 0.0),
    ("gemma", None, 1.0),
    ("gemma3_text", None, 1.0),
    ("nemotron", None, 1.0),
    ("qwen3_next", TRANSFORMERS, 1.0),
    ("qwen3_5_text", TRANSFORMERS, 1.0),
    ("qwen3_next", MLX, 0.0),
    ("qwen3_next", None, None),
    ("step3p5", STEP, 1.0),
    ("step3p5", STEP_MLX, 0.0),
    ("step3p5", None, None),
]


@pytest.mark.parametrize(("model_type", "tensors", "offset"), OFFSETS)
def test_norm_weight_offset(tmp_path, model_type, tensors, offset):
    config, warnings = hf_config(tmp_path, model_type, tensors)
    assert config.norm_weight_offset == offset
    assert len(warnings) == (offset is None)


def test_norm_weight_offset_of_one_norm(tmp_path):
    norm = np.zeros(4, np.float32)
    names = {
        "layers.0.attention_norm.weight": "model.layers.0.input_layernorm.weight",
        "layers.0.attention.q_norm.weight": "model.layers.0.self_attn.q_norm.weight",
        "layers.0.attention_norm.bias": "model.layers.0.input_layernorm.bias",
        "layers.0.attention.q.weight": "model.layers.0.self_attn.q_proj.weight",
        "layers.0.ssm.norm.weight": LINEAR_NORM,
        "vision.post_ln.weight": "model.visual.post_layernorm.weight",
        "other.norm.weight": "other.norm.weight",
    }
    tensors = {"model.embed_tokens.weight": np.zeros((2, 2), np.float32)}
    tensors |= dict.fromkeys(names.values(), norm)
    for extra, wanted in (
        (TRANSFORMERS, [1.0, 1.0, 0.0, 0.0, 0.0, None, None]),
        (MLX, [0.0] * 7),
        ({}, [None] * 7),
    ):
        path = write_hf(tmp_path / "m", {"model_type": "qwen3_next"}, tensors | extra)
        with open_weights(path) as w:
            assert [w.norm_weight_offset_of(name) for name in names] == wanted
            with pytest.raises(KeyError):
                w.norm_weight_offset_of("absent")


def reordered(rows, heads):
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def layout_model(tmp_path, arch, **keys):
    """Returns metadata of a GGUF file of one layer, and its checkpoint's q and norm."""
    rng = np.random.default_rng(1)
    q, norm = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8,)))
    metadata = {"general.architecture": arch, f"{arch}.attention.head_count": 2}
    metadata |= {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return metadata, q, norm


@pytest.mark.parametrize("arch", ["llama", "granite", "granitemoe", "smollm3", "olmo", "llada"])
def test_layout_hf_puts_rows_back(tmp_path, arch):
    metadata, q, norm = layout_model(tmp_path, arch)
    tensors = {"blk.0.attn_q.weight": reordered(q, 2), "blk.0.attn_norm.weight": norm}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with open_weights(path, layout="hf") as w:
        np.testing.assert_array_equal(w["layers.0.attention.q.weight"].numpy(), q)
        np.testing.assert_array_equal(w["layers.0.attention_norm.weight"].numpy(), norm)
        assert w.config.rope_style == "half"
        assert w.config.norm_weight_offset == 0.0


@pytest.mark.parametrize("arch", ["gemma3", "gemma-embedding", "nemotron"])
def test_layout_hf_lowers_norms(tmp_path, arch):
    metadata, q, norm = layout_model(tmp_path, arch)
    bias = norm * 2
    tensors = {
        "blk.0.attn_q.weight": q,
        "blk.0.attn_norm.weight": norm,
        "blk.0.attn_norm.bias": bias,
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with open_weights(path, layout="hf") as w:
        np.testing.assert_array_equal(w["layers.0.attention.q.weight"].numpy(), q)
        np.testing.assert_array_equal(w["layers.0.attention_norm.weight"].numpy(), norm - 1)
        np.testing.assert_array_equal(w["layers.0.attention_norm.bias"].numpy(), bias)
        assert w.config.rope_style == "half"
        assert w.config.norm_weight_offset == 1.0


@pytest.mark.parametrize(
    ("arch", "style"),
    [("qwen3moe", "half"), ("cohere2", "interleaved"), ("ernie4_5", "interleaved")],
)
def test_layout_hf_where_nothing_moved(tmp_path, arch, style):
    metadata, q, norm = layout_model(tmp_path, arch)
    tensors = {"blk.0.attn_q.weight": q, "blk.0.attn_norm.weight": norm}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with open_weights(path, layout="hf") as w:
        np.testing.assert_array_equal(w["layers.0.attention.q.weight"].numpy(), q)
        np.testing.assert_array_equal(w["layers.0.attention_norm.weight"].numpy(), norm)
        assert w.config.rope_style == style


@pytest.mark.parametrize(
    ("arch", "keys", "reason"),
    [
        ("deepseek2", {}, "kv_b is split, and k_b is transposed"),
        ("qwen3next", {}, "value heads are reordered"),
        ("falcon", {}, "the fused q, k and v are regrouped"),
        ("baichuan", {}, "reordered by n_heads / n_kv_heads"),
        ("gpt-oss", {}, "experts are transposed"),
        ("glm4", {"rope__dimension_sections": SECTIONS}, "models with rope.dimension_sections"),
        ("plamo3", {}, "what the conversion to GGUF changes is not recorded"),
        ("nosuch", {}, "the architecture is not known"),
    ],
)
def test_layout_hf_is_refused_with_a_reason(tmp_path, arch, keys, reason):
    metadata, q, _ = layout_model(tmp_path, arch, **keys)
    path = write_gguf(tmp_path / "m.gguf", metadata, {"blk.0.attn_q.weight": q})
    open_weights(path).close()
    with pytest.raises(WeightsError, match=f'layout "hf" of `{arch}`: .*{reason}') as caught:
        open_weights(path, layout="hf")
    assert caught.value.code == "unsupported"
