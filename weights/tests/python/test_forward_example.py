"""examples/cpp/forward.cpp, an engine on the weight layer, against transformers.

Expected are the tokens and logits of transformers with the decoded values of the stored weights, so
what a format or scheme rounds does not blur the comparison.
"""

import json
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from safetensors.numpy import load_file, save_file
from weights_support import forward_models as models
from weights_support import scheme_stores as schemes

PROGRAM = Path(__file__).parents[3] / "build" / "dev" / "examples" / "example_forward"
TOKENS = [5, 82, 0, 17, 17, 40, 3]
COUNT = 12  # so that the text is longer than a sliding window of models.WINDOW tokens

pytest.importorskip("transformers")
if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built: cmake --build --preset dev", allow_module_level=True)


def run(path, logits, count, *tokens):
    return subprocess.run(
        [PROGRAM, path, logits, str(count), *map(str, tokens)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(path, model, values, tmp_path, count=COUNT):
    """Both compute in F32, and sum up in different order at most 192 products of each value."""
    models.load_values(model, values)
    tokens, expected = models.generated(model, TOKENS, count)
    out = tmp_path / "logits.safetensors"
    done = run(path, out, count, *TOKENS)
    assert (done.returncode, done.stderr) == (0, "")
    actual = load_file(out)["logits"]
    assert actual.shape == expected.shape == (len(TOKENS) + len(tokens) - 1, models.VOCABULARY)
    largest = np.abs(expected).max()
    assert largest > 1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * largest)
    assert [int(line) for line in done.stdout.splitlines()] == tokens
    return tokens


KINDS = ["Llama", "Qwen2", "Qwen3", "Gemma3", "Mixtral", "Qwen3Moe"]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints(kind, tied, tmp_path):
    model = models.random_model(kind, tied, layers=1 + tied)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    tokens = check(tmp_path / "m", model, values, tmp_path)
    assert tied or len(set(tokens)) > 2  # not one token again and again


@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_checkpoints_of_several_files(kind, tmp_path):
    model = models.random_model(kind, tied=False)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32), shards=3)
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) == 3
    check(tmp_path / "m", model, values, tmp_path)


def test_the_end_of_a_text(tmp_path):
    model = models.random_model("Llama", tied=False)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    tokens = check(tmp_path / "m", model, values, tmp_path)
    end = tokens[4]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"eos_token_id": [81, end]}))
    model.generation_config.eos_token_id = [81, end]
    tokens = check(tmp_path / "m", model, values, tmp_path)
    assert tokens[-1] == end
    assert len(tokens) <= 5


SCALED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_rotary_embeddings(kind, tmp_path):
    parameters = SCALED[kind] | {"rope_theta": 1e4}
    model = models.random_model("Llama", tied=False, rope_parameters=parameters)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    check(tmp_path / "m", model, values, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"layer_types": None, "use_sliding_window": False}])
def test_windows_that_are_not_used(changes, tmp_path):
    model = models.random_model("Qwen2", tied=False)
    values = models.save_hf(
        tmp_path / "m", model, models.plain(np.float32), sliding_window=4, **changes
    )
    if not changes:  # the kinds of the layers are full
        assert model.config.layer_types == ["full_attention"]
    check(tmp_path / "m", model, values, tmp_path)


def test_windows_in_all_layers(tmp_path):
    model = models.random_model("Mistral", tied=False, layers=2, sliding_window=5)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    check(tmp_path / "m", model, values, tmp_path)


def test_experts_in_one_tensor(tmp_path):
    model = models.random_model("Qwen3Moe", tied=False)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    stacks = {name: array.numpy() for name, array in model.state_dict().items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in stacks
    save_file(stacks, tmp_path / "m" / "model.safetensors")
    check(tmp_path / "m", model, values, tmp_path)


def test_shares_of_experts_that_are_not_normalised(tmp_path):
    model = models.random_model("Qwen3Moe", tied=False, norm_topk_prob=False)
    values = models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    check(tmp_path / "m", model, values, tmp_path)


STORED = {
    "bf16": models.plain(ml_dtypes.bfloat16),
    "f16": models.plain(np.float16),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_as(name, tmp_path):
    model = models.random_model("Llama", tied=False)
    values = models.save_hf(tmp_path / "m", model, STORED[name])
    check(tmp_path / "m", model, values, tmp_path)


SCHEMES = ["fp8", "int4", "mxfp4", "nvfp4", "awq", "gptq", "nf4"]


@pytest.mark.parametrize("kind", ["Qwen3", "Gemma3", "Qwen3Moe"])
@pytest.mark.parametrize("name", SCHEMES)
def test_quantisation_schemes(name, kind, tmp_path):
    model = models.random_model(kind, tied=False)
    values = models.save_hf(
        tmp_path / "m",
        model,
        getattr(schemes, name),
        only=lambda tensor: tensor.startswith("model.layers"),
        quantization_config=getattr(schemes, name.upper()),
    )
    check(tmp_path / "m", model, values, tmp_path)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("bits", [4, 6])
def test_mlx_packs(bits, tied, tmp_path):
    model = models.random_model("Qwen3", tied)
    quantization = {"bits": bits, "group_size": 32}
    values = models.save_hf(
        tmp_path / "m", model, models.mlx_affine(bits, 32), quantization=quantization
    )
    check(tmp_path / "m", model, values, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0", "Q4_0"])
def test_gguf(stored, kind, tmp_path):
    # What GGUF files of Gemma 3 do not say.
    gemma = {
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": models.HEAD_DIM,
    }
    model = models.random_model(kind, stored == "F16", **(gemma if kind == "Gemma3" else {}))
    values = models.save_gguf(tmp_path / "m.gguf", model, stored)
    check(tmp_path / "m.gguf", model, values, tmp_path)


def test_gguf_of_gemma_3_27b(tmp_path):
    """Of this size alone, a file does not say how queries are scaled."""
    kinds = ["full_attention" if n % 6 == 0 else "sliding_attention" for n in range(1, 63)]
    scalar = models.HIDDEN // models.HEADS
    model = models.random_model("Gemma3", True, layer_types=kinds, query_pre_attn_scalar=scalar)
    values = models.save_gguf(tmp_path / "m.gguf", model, "F32")
    check(tmp_path / "m.gguf", model, values, tmp_path, count=2)


REFUSED = [
    ({"hidden_act": "gelu"}, "the activation gelu"),
    ({"model_type": "olmo2"}, "the architecture 'olmo2'"),
    ({"model_type": "gemma2"}, "the architecture 'gemma2'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rotary embeddings scaled by yarn"),
    ({"layer_types": ["linear_attention"]}, "layers without attention"),
    ({"final_logit_softcapping": 30.0}, "soft caps"),
    ({"n_shared_experts": 1}, "shared experts"),
]


@pytest.mark.parametrize(("changes", "what"), REFUSED)
def test_what_the_program_does_not_compute_is_refused(changes, what, tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32), **changes)
    done = run(tmp_path / "m", tmp_path / "logits", 1, 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"this program does not support {what}"
    assert not (tmp_path / "logits").exists()


@pytest.mark.parametrize("token", [-1, models.VOCABULARY])
def test_tokens_outside_the_vocabulary(token, tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    done = run(tmp_path / "m", tmp_path / "logits", 1, 1, token)
    assert (done.returncode, done.stdout) == (1, "")
    assert "are not within 83 rows" in done.stderr


SIZES = [
    ({"num_attention_heads": 4}, "attention.q", [128, 96]),
    ({"num_attention_heads": 1 << 30}, "attention.q", [1 << 35, 96]),
    ({"hidden_size": 1 << 30}, "attention.q", [192, 1 << 30]),
    ({"intermediate_size": 1 << 30}, "ffn.gate", [1 << 30, 96]),
]


@pytest.mark.parametrize(("changes", "module", "shape"), SIZES)
def test_weights_of_other_shapes_than_the_configuration_says(changes, module, shape, tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32), **changes)
    done = run(tmp_path / "m", tmp_path / "logits", 1, 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"layers.0.{module}.weight is not of shape {shape}\n"


@pytest.mark.parametrize("arguments", [("x", "1"), ("1", "1x"), ("1", "")])
def test_numbers_that_are_none(arguments, tmp_path):
    done = subprocess.run(
        [PROGRAM, tmp_path, tmp_path / "logits", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    wrong = arguments[0] if arguments[0] != "1" else arguments[1]
    assert (done.returncode, done.stderr) == (1, f"'{wrong}' is no number\n")
