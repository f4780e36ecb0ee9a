"""examples/cpp/forward.cpp, an engine on the weight layer, against transformers.

Expected are the logits of transformers with the decoded values of the stored weights, so what a
format or scheme rounds does not blur the comparison.
"""

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from safetensors.numpy import load_file
from weights_support import forward_models as models
from weights_support import scheme_stores as schemes

PROGRAM = Path(__file__).parents[3] / "build" / "dev" / "examples" / "example_forward"
TOKENS = [5, 82, 0, 17, 17, 40, 3]

pytest.importorskip("transformers")
if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built: cmake --build --preset dev", allow_module_level=True)


def run(path, logits, *tokens):
    return subprocess.run(
        [PROGRAM, path, logits, *map(str, tokens)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(path, model, values, tmp_path):
    """Both compute in F32, and sum up in different order at most 160 products of each value."""
    out = tmp_path / "logits.safetensors"
    done = run(path, out, *TOKENS)
    assert (done.returncode, done.stderr) == (0, "")
    actual = load_file(out)["logits"]
    expected = models.logits_of(model, values, TOKENS)
    assert actual.shape == expected.shape == (len(TOKENS), models.VOCABULARY)
    largest = np.abs(expected).max()
    assert largest > 1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * largest)
    assert done.stdout == f"the most likely next token is {expected[-1].argmax()}\n"


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_checkpoints(kind, tied, tmp_path):
    model = models.random_model(kind, tied, layers=1 + tied)
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


@pytest.mark.parametrize("name", SCHEMES)
def test_quantisation_schemes(name, tmp_path):
    model = models.random_model("Qwen3", tied=False)
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


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0", "Q4_0"])
def test_gguf(stored, kind, tmp_path):
    model = models.random_model(kind, tied=stored == "F16")
    values = models.save_gguf(tmp_path / "m.gguf", model, stored)
    check(tmp_path / "m.gguf", model, values, tmp_path)


def test_what_the_program_does_not_compute_is_refused(tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32), hidden_act="gelu")
    done = run(tmp_path / "m", tmp_path / "logits", 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this program does not support another activation than silu\n"
    assert not (tmp_path / "logits").exists()


@pytest.mark.parametrize("token", [-1, models.VOCABULARY])
def test_tokens_outside_the_vocabulary(token, tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32))
    done = run(tmp_path / "m", tmp_path / "logits", 1, token)
    assert (done.returncode, done.stdout) == (1, "")
    assert "are not within 83 rows" in done.stderr


def test_weights_of_other_shapes_than_the_configuration_says(tmp_path):
    model = models.random_model("Llama", tied=True)
    models.save_hf(tmp_path / "m", model, models.plain(np.float32), num_attention_heads=4)
    done = run(tmp_path / "m", tmp_path / "logits", 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "layers.0.attention.q.weight is not of 128 rows of 96 values\n"
