"""Packs with the row lengths of real models, which config.json often does not tell.

Each case is one matrix of a real model, reduced to eight rows, with the neighbouring tensors
that determine the length of its rows.
"""

import dataclasses
import json

import numpy as np
import pytest

from safetensors.numpy import save_file
from safetensors.weights import QuantParams, WeightsError, open_weights

LAYER = "model.layers.0."


@dataclasses.dataclass
class Case:
    config: dict
    matrix: str  #: its module
    row: int  #: how long its rows are
    beside: dict = dataclasses.field(default_factory=dict)  #: shapes of other tensors
    stacked: int = 0  #: matrices of a stack


def attention(q, k, v=None):
    beside = {LAYER + "self_attn.q_proj.weight": [q, 1], LAYER + "self_attn.k_proj.weight": [k, 1]}
    if v is not None:
        beside[LAYER + "self_attn.v_proj.weight"] = [v, 1]
    return beside


def output(model_type, dim, heads, head_dim, beside=None, **config):
    config = {
        "model_type": model_type,
        "hidden_size": dim,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        **config,
    }
    return Case(config, LAYER + "self_attn.o_proj", heads * head_dim, beside or {})


GEMMA4 = {"model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144}
GEMMA4 |= {"num_attention_heads": 8, "head_dim": 256, "global_head_dim": 512}
DEEPSEEK = {"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128}
DEEPSEEK |= {"v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048}
LORA = {LAYER + "self_attn.q_a_layernorm.weight": [1536]}
LORA |= {LAYER + "self_attn.kv_a_layernorm.weight": [512]}
MIMO = {"model_type": "mimo_v2_flash", "hidden_size": 4096, "num_attention_heads": 64}
MIMO |= {"head_dim": 192, "v_head_dim": 128}
OSS = {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880}
NEXT = {"model_type": "qwen3_next", "hidden_size": 2048, "num_attention_heads": 16}
NEXT |= {"head_dim": 256}
MOE = {"model_type": "qwen3_moe", "intermediate_size": 6144}

CASES = {
    "qwen3-0.6b": output("qwen3", 1024, 16, 128),
    "qwen3-30b-a3b": output("qwen3_moe", 2048, 32, 128),
    "qwen3-235b-a22b": output("qwen3_moe", 4096, 64, 128),
    "qwen3-30b-a3b experts": Case(
        {**MOE, "hidden_size": 2048, "moe_intermediate_size": 768},
        LAYER + "mlp.switch_mlp.down_proj",
        768,
        stacked=2,
    ),
    "qwen3-235b-a22b experts": Case(
        {**MOE, "hidden_size": 4096},  # says nothing of experts
        LAYER + "mlp.switch_mlp.down_proj",
        1536,
        {LAYER + "mlp.switch_mlp.up_proj.weight": [2, 1536, 1]},
        stacked=2,
    ),
    "gemma-7b": output("gemma", 3072, 16, 256),
    "gemma-2-9b": output("gemma2", 3584, 16, 256),
    "gemma-3-27b": output("gemma3_text", 5376, 32, 128),
    "gemma-4 sliding": Case(GEMMA4, LAYER + "self_attn.o_proj", 2048, attention(2048, 256, 256)),
    "gemma-4 full": Case(GEMMA4, LAYER + "self_attn.o_proj", 4096, attention(4096, 512)),
    "gemma-4 full, keys of another layer": Case(
        GEMMA4, LAYER + "self_attn.o_proj", 4096, {LAYER + "self_attn.q_proj.weight": [4096, 1]}
    ),
    "gemma-4-e2b down": Case(
        GEMMA4, LAYER + "mlp.down_proj", 12288, {LAYER + "mlp.up_proj.weight": [12288, 1]}
    ),
    "gemma-4-e2b per layer": Case(
        GEMMA4,
        LAYER + "per_layer_projection",
        256,
        {LAYER + "per_layer_input_gate.weight": [256, 1]},
    ),
    "mistral-nemo": output("mistral", 5120, 32, 128),
    "gpt-oss": output("gpt_oss", 2880, 64, 64),
    "gpt-oss experts": Case(
        OSS,
        LAYER + "mlp.experts.down_proj",
        2880,
        {LAYER + "mlp.experts.gate_up_proj.weight": [2, 2 * 2880, 1]},
        stacked=2,
    ),
    "glm-4.5-air": output("glm4_moe", 4096, 96, 128),
    "minimax-m2": output("minimax_m2", 3072, 48, 128),
    "qwen3-next": Case(NEXT, LAYER + "self_attn.o_proj", 4096, attention(8192, 512, 512)),
    "qwen3-next linear": Case(NEXT, LAYER + "linear_attn.out_proj", 4096),
    "deepseek-v3, head_dim of its rotary part": Case(
        {**DEEPSEEK, "head_dim": 64}, LAYER + "self_attn.o_proj", 16384
    ),
    "deepseek-v3, no head_dim": Case(DEEPSEEK, LAYER + "self_attn.o_proj", 16384),
    "deepseek-v3 by mlx": Case(
        {**DEEPSEEK, "v_head_dim": None},
        LAYER + "self_attn.o_proj",
        16384,
        {LAYER + "self_attn.unembed_out.weight": [128, 128, 1]},
    ),
    "deepseek-v3 q_b": Case(DEEPSEEK, LAYER + "self_attn.q_b_proj", 1536, LORA),
    "deepseek-v3 kv_b": Case(DEEPSEEK, LAYER + "self_attn.kv_b_proj", 512, LORA),
    "deepseek-v3 unembed_out": Case(
        DEEPSEEK, LAYER + "self_attn.unembed_out", 512, LORA, stacked=2
    ),
    "deepseek-v3 dense down": Case(
        DEEPSEEK, LAYER + "mlp.down_proj", 18432, {LAYER + "mlp.gate_proj.weight": [18432, 1]}
    ),
    "deepseek-v3 expert down": Case(
        DEEPSEEK,
        LAYER + "mlp.experts.7.down_proj",
        2048,
        {LAYER + "mlp.experts.7.up_proj.weight": [2048, 1]},
    ),
    "deepseek-v3 shared expert down": Case(
        DEEPSEEK,
        LAYER + "mlp.shared_experts.down_proj",
        2048,
        {LAYER + "mlp.shared_experts.up_proj.weight": [2048, 1]},
    ),
    "kimi-k2": Case(
        {**DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64},
        LAYER + "self_attn.o_proj",
        8192,
    ),
    "mimo-v2-flash": Case(
        MIMO, LAYER + "self_attn.o_proj", 8192, attention(64 * 192, 4 * 192, 4 * 128)
    ),
    "a list of intermediate sizes": Case(
        {"model_type": "openelm", "hidden_size": 128, "intermediate_size": [512, 256]},
        "model.layers.1.mlp.down_proj",
        256,
    ),
    "llama's output": Case(
        {"model_type": "llama", "hidden_size": 4096}, "lm_head", 4096, {"model.norm.weight": [4096]}
    ),
}


def pack_of(case, quant):
    """Returns words, scales and biases of eight rows, and the values by the formula."""
    rng = np.random.default_rng(case.row)
    leading = (case.stacked, 8) if case.stacked else (8,)
    packed = {
        "weight": rng.integers(0, 1 << 32, (*leading, case.row * quant.bits // 32), np.uint32),
        "scales": rng.normal(size=(*leading, case.row // quant.group_size)).astype(np.float16),
        "biases": rng.normal(size=(*leading, case.row // quant.group_size)).astype(np.float16),
    }
    stream = np.unpackbits(packed["weight"].view(np.uint8), axis=-1, bitorder="little")
    places = 1 << np.arange(quant.bits)
    codes = (stream.reshape(*leading, case.row, quant.bits) * places).sum(-1).astype(np.float32)
    scales, biases = (
        np.repeat(packed[part].astype(np.float32), quant.group_size, -1)
        for part in ("scales", "biases")
    )
    return packed, codes * scales + biases


def write(folder, case, packed, quantization):
    tensors = {f"{case.matrix}.{part}": values for part, values in packed.items()}
    tensors |= {name: np.zeros(shape, np.float16) for name, shape in case.beside.items()}
    tensors.setdefault("model.embed_tokens.weight", np.zeros((2, 2), np.float16))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**case.config, "quantization": quantization}))


def entry(quant):
    return {"bits": quant.bits, "group_size": quant.group_size}


def matrix_of(w, case):
    names = [*w, *w.unmapped]
    return next(w[name] for name in names if w[name].source == case.matrix + ".weight")


KINDS = [QuantParams("affine", *kind) for kind in ((4, 64), (8, 32), (2, 128), (4, 32), (5, 64))]
ROWS = [
    pytest.param(case, quant, id=f"{name}: {quant.bits} bits, groups of {quant.group_size}")
    for name, case in CASES.items()
    for quant in KINDS
    if case.row % quant.group_size == 0
]


def remarks(model):
    """Returns the warnings, except those about tensors that the small model lacks."""
    about = ("rope_style ", "norm_weight_offset ", "tie_word_embeddings ")
    return [warning for warning in model.warnings if not warning.startswith(about)]


@pytest.mark.parametrize(("case", "quant"), ROWS)
def test_rows_of_real_models(case, quant, tmp_path):
    packed, values = pack_of(case, quant)
    write(tmp_path, case, packed, entry(quant))
    with open_weights(tmp_path) as w:
        assert remarks(w) == []
        t = matrix_of(w, case)
        assert t.quant == quant
        assert t.shape[-1] == case.row
        np.testing.assert_array_equal(t.numpy(), values)


def test_the_values_are_those_of_mlx():
    mx = pytest.importorskip("mlx.core")
    for case, quant in (row.values for row in ROWS):
        packed, values = pack_of(case, quant)
        wide = [mx.array(packed[part].astype(np.float32)) for part in ("scales", "biases")]
        decoded = mx.dequantize(mx.array(packed["weight"]), *wide, quant.group_size, quant.bits)
        np.testing.assert_array_equal(values, np.array(decoded))


OTHER = QuantParams("affine", 8, 32)  # for a model that says 4 bits in groups of 64
KNOWN = ["gemma-4-e2b down", "deepseek-v3 q_b", "deepseek-v3 expert down", "deepseek-v3 by mlx"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_rows_win_over_the_configuration(name, tmp_path):
    case = CASES[name]
    packed, values = pack_of(case, OTHER)
    write(tmp_path, case, packed, {"bits": 4, "group_size": 64})
    with open_weights(tmp_path) as w:
        (warning,) = remarks(w)
        assert "(1 pack): the row length, which other tensors of the file fix" in warning
        assert "affine, 8 bits, groups of 32; the configuration says" in warning
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)


def test_norms_determine_rows_of_known_models(tmp_path):
    case = Case(
        {"model_type": "llama", "hidden_size": 4096},
        LAYER + "self_attn.q_proj",
        4096,
        {LAYER + "input_layernorm.weight": [4096]},
    )
    packed, values = pack_of(case, OTHER)
    write(tmp_path, case, packed, {"bits": 4, "group_size": 64})
    with open_weights(tmp_path) as w:
        assert len(remarks(w)) == 1
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)
    case.config["model_type"] = "nosuch"
    write(tmp_path, case, packed, {"bits": 4, "group_size": 64})
    with open_weights(tmp_path) as w:
        assert "though the sizes in the configuration suggest another row length" in remarks(w)[0]
        assert matrix_of(w, case).quant == QuantParams("affine", 4, 64)


def test_likely_parameters_replace_a_configuration_that_does_not_fit(tmp_path):
    case = CASES["gemma-4 full"]
    packed, values = pack_of(case, OTHER)
    write(tmp_path, case, packed, {"bits": 6, "group_size": 64})
    with open_weights(tmp_path) as w:
        (warning,) = remarks(w)
        assert warning.startswith("attention.output (1 pack): other tensors of the file make it")
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)


def test_the_only_kind_that_fits_is_taken(tmp_path):
    case, quant = CASES["qwen3-next linear"], QuantParams("affine", 3, 32)
    packed, values = pack_of(case, quant)
    write(tmp_path, case, packed, {"bits": 4, "group_size": 64})
    with open_weights(tmp_path) as w:
        assert "the shapes allow only affine, 3 bits, groups of 32" in remarks(w)[0]
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)


def test_ambiguous_rows_are_never_guessed(tmp_path):
    case = CASES["qwen3-next linear"]  # nothing tells how long its rows are
    packed, values = pack_of(case, OTHER)
    write(tmp_path, case, packed, {"bits": 6, "group_size": 64})
    with open_weights(tmp_path) as w:  # the rest of the model can be read
        (warning,) = remarks(w)
        assert warning.startswith("ssm.out (1 pack): it can be ")
        t = matrix_of(w, case)
        assert t.quant is None
        for use in (t.numpy, t.packed, t.sections, lambda: w.fuse_weights(t.name, t.name)):
            with pytest.raises(WeightsError, match="8 bits, groups of 32.* U32 ") as caught:
                use()
            assert caught.value.code == "quant_mismatch"
            assert caught.value.subject == case.matrix + ".weight"
            assert caught.value.path == str(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(t.numpy("uint32"), packed["weight"])
    with open_weights(tmp_path, quant=OTHER) as w:
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)
    write(tmp_path, case, packed, {"bits": 6, "group_size": 64, case.matrix: entry(OTHER)})
    with open_weights(tmp_path) as w:
        assert remarks(w) == []
        np.testing.assert_array_equal(matrix_of(w, case).numpy(), values)


def test_one_warning_for_a_kind_of_module(tmp_path):
    case = CASES["deepseek-v3 by mlx"]
    packed, _ = pack_of(case, OTHER)
    tensors = {"model.embed_tokens.weight": np.zeros((2, 2), np.float16)}
    for layer in range(61):
        module = f"model.layers.{layer}.self_attn."
        tensors |= {f"{module}o_proj.{part}": values[:1] for part, values in packed.items()}
        tensors[module + "unembed_out.weight"] = np.zeros((128, 128, 1), np.float16)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {**case.config, "quantization": {"bits": 4, "group_size": 64}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_weights(tmp_path) as w:
        (warning,) = remarks(w)
        assert warning.startswith("attention.output (61 packs): ")
