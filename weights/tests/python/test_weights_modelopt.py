"""Weights of modelopt: NVFP4, FP8 and integers of 8 bits, with either kind of configuration."""

import json

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from weights_support import ct
from weights_support.scheme_models import E2M1, E4M3, as_stored, check_values, write_model

RNG = np.random.default_rng(23)
M = "model.layers.3.mlp.down_proj."
NAME = "layers.3.ffn.down.weight"
EXPERTS = "model.layers.3.mlp.experts.down_proj."


def write(folder, tensors, algorithm, place):
    """Writes a model with its configuration in config.json, in a file of its own, or nowhere."""
    settings = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "group_size": 16}
    config = {"model_type": "llama"}
    if place == "config.json":
        config["quantization_config"] = settings | {
            "quant_method": "modelopt",
            "config_groups": {
                "group_0": {
                    "weights": {"num_bits": 8 if algorithm == "FP8" else 4, "type": "float"},
                    "targets": ["Linear"],
                }
            },
            "ignore": ["lm_head"],
        }
    write_model(folder, tensors, config, shards=2)
    if place == "hf_quant_config.json":
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": settings})
        (folder / "hf_quant_config.json").write_text(text)
    return folder


PLACES = ["config.json", "hf_quant_config.json", None]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (8, 256), (64, 112), (576, 512), (96, 4096)])
def test_nvfp4(n, k, place, tmp_path):
    q = RNG.integers(0, 16, (n, k), np.uint8)
    scales = RNG.integers(0, 256, (n, k // 16), np.uint8)
    global_scale = RNG.uniform(1e-4, 2, ()).astype(np.float32)
    tensors = {
        M + "weight": ct.pack_nibbles(q),
        M + "weight_scale": ("F8_E4M3", scales),
        M + "weight_scale_2": global_scale,
        M + "input_scale": np.float32(1),
    }
    with open_weights(write(tmp_path, tensors, "NVFP4", place), mmap=n % 3 == 0) as w:
        assert w.scheme == "nvfp4"
        assert list(w) == [NAME]
        assert w.extras == [M + "input_scale"]
        assert w.unmapped == w.warnings == []
        t = w[NAME]
        assert (t.scheme, t.type_name, t.code) == ("nvfp4", "nvfp4", 123)
        assert t.scheme_params == SchemeParams(4, 1, 16, True)
        assert list(t.parts()) == ["weight", "weight_scale", "weight_scale_2"]
        check_values(t, E2M1[q] * ct.spread(E4M3[scales] * global_scale, k, 16))


@pytest.mark.parametrize("shape", [(1,), (3,), (3, 1), (3, 1, 1)])
def test_stacks_of_experts(shape, tmp_path):
    e, n, k = 3, 7, 48
    q = RNG.integers(0, 16, (e, n, k), np.uint8)
    scales = RNG.integers(0, 256, (e, n, k // 16), np.uint8)
    global_scale = RNG.uniform(1e-4, 2, shape).astype(np.float32)
    tensors = {
        EXPERTS + "weight": ct.pack_nibbles(q),
        EXPERTS + "weight_scale": ("F8_E4M3", scales),
        EXPERTS + "weight_scale_2": global_scale,
    }
    with open_weights(write(tmp_path, tensors, "NVFP4", "hf_quant_config.json")) as w:
        (name,) = w
        factors = E4M3[scales] * global_scale.reshape(-1, 1, 1)
        check_values(w[name], E2M1[q] * ct.spread(factors, k, 16))


def test_the_product_of_the_scales_is_rounded_first(tmp_path):
    # 1.1 is 1.10000002384; the product with 1.125 rounds, and so does that with 3.
    tensors = {
        M + "weight": np.full((1, 8), 0x55, np.uint8),
        M + "weight_scale": ("F8_E4M3", np.array([[0x39]], np.uint8)),
        M + "weight_scale_2": np.float32(1.1),
    }
    with open_weights(write(tmp_path, tensors, "NVFP4", "config.json")) as w:
        wanted = np.float32(3) * (np.float32(1.125) * np.float32(1.1))
        np.testing.assert_array_equal(w[NAME].numpy(), np.full((1, 16), wanted))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(), (1,), (96,), (96, 1)])
def test_fp8(shape, place, tmp_path):
    q = RNG.integers(0, 256, (96, 100), np.uint8)
    scale = RNG.uniform(1e-4, 2, shape).astype(np.float32)
    tensors = {
        M + "weight": ("F8_E4M3", q),
        M + "weight_scale": scale,
        M + "input_scale": np.float32(1),
    }
    with open_weights(write(tmp_path, tensors, "FP8", place)) as w:
        assert w.scheme == "fp8"
        assert w.extras == [M + "input_scale"]
        check_values(w[NAME], E4M3[q] * scale.reshape(-1, 1))


def test_integers_of_eight_bits(tmp_path):
    q = RNG.integers(-128, 128, (96, 100)).astype(np.int8)
    scale = RNG.uniform(1e-4, 2, 96).astype(np.float32)
    tensors = {M + "weight": q, M + "weight_scale": scale}
    with open_weights(write(tmp_path, tensors, "W8A8_SQ_PER_CHANNEL", "hf_quant_config.json")) as w:
        assert w.scheme == "int8"
        check_values(w[NAME], ct.integers(q, scale.reshape(-1, 1)))


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("scheme", ["int8", "fp8", "nvfp4"])
def test_scales_of_the_inputs_multiply_the_columns(scheme, kind, tmp_path):
    """SmoothQuant and AWQ divide the inputs; the weight for plain inputs is W * pre_quant_scale."""
    n, k = 40, 2304
    stored, pre = as_stored(kind, RNG.uniform(0.1, 4, k).astype(np.float32))
    if scheme == "int8":
        q = RNG.integers(-128, 128, (n, k)).astype(np.int8)
        s = RNG.uniform(1e-4, 2, n).astype(np.float32)
        parts = {"weight": q, "weight_scale": s}
        plain = ct.integers(q, s.reshape(-1, 1))
    elif scheme == "fp8":
        q = RNG.integers(0, 0x7E, (n, k), np.uint8)
        parts = {"weight": ("F8_E4M3", q), "weight_scale": np.float32(0.3)}
        plain = E4M3[q] * np.float32(0.3)
    else:
        q = RNG.integers(0, 16, (n, k), np.uint8)
        s = RNG.integers(0, 120, (n, k // 16), np.uint8)
        parts = {
            "weight": ct.pack_nibbles(q),
            "weight_scale": ("F8_E4M3", s),
            "weight_scale_2": np.float32(0.7),
        }
        plain = E2M1[q] * ct.spread(E4M3[s] * np.float32(0.7), k, 16)
    parts["pre_quant_scale"] = stored
    tensors = {M + role: part for role, part in parts.items()}
    with open_weights(write(tmp_path, tensors, "W8A8_SQ", "hf_quant_config.json")) as w:
        assert (w.scheme, w.warnings, list(w), w.unmapped) == (scheme, [], [NAME], [])
        assert list(w[NAME].parts())[-1] == "pre_quant_scale"
        check_values(w[NAME], plain * pre)


def test_weights_with_scales_of_the_inputs_are_not_fused(tmp_path):
    tensors = {}
    for part in "qk":
        module = f"model.layers.0.self_attn.{part}_proj."
        tensors[module + "weight"] = RNG.integers(-9, 9, (8, 64)).astype(np.int8)
        tensors[module + "weight_scale"] = np.ones(8, np.float32)
        tensors[module + "pre_quant_scale"] = np.ones(64, np.float32)
    names = [f"layers.0.attention.{part}.weight" for part in "qk"]
    with open_weights(write(tmp_path, tensors, "W8A8_SQ", "hf_quant_config.json")) as w:
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(*names)
        assert caught.value.code == "mixed_types"


@pytest.mark.parametrize(
    ("weight", "scale", "blocks"),
    [
        ((256, 512), (2, 1, 4, 1), (128, 128)),
        ((128, 512), (1, 1, 4, 1), (128, 128)),
        ((256, 128), (2, 1, 1, 1), (128, 128)),
        ((128, 128), (1, 1, 1, 1), (128, 128)),
        ((3, 256, 512), (3, 2, 1, 4, 1), (128, 128)),
        ((48, 96), (48, 3, 1), (1, 32)),
    ],
)
def test_scales_with_axes_of_one(weight, scale, blocks, tmp_path):
    """FP8_PB_WO has its blocks as [rows, 1, columns, 1]."""
    q = RNG.integers(0, 0x7E, weight, np.uint8)
    s = RNG.uniform(1e-4, 2, scale).astype(np.float32)
    tensors = {M + "weight": ("F8_E4M3", q), M + "weight_scale": s}
    with open_weights(write(tmp_path, tensors, "FP8_PB_WO", "hf_quant_config.json")) as w:
        grid = s.reshape(*weight[:-2], weight[-2] // blocks[0], weight[-1] // blocks[1])
        factors = np.repeat(np.repeat(grid, blocks[0], -2), blocks[1], -1)
        assert w[NAME].scheme_params == SchemeParams(8, *blocks, True)
        check_values(w[NAME], E4M3[q] * factors)


@pytest.mark.parametrize("byte", [0, 1])
def test_zero_points_of_floats_must_be_zero(byte, tmp_path):
    q = RNG.integers(0, 0x7E, (4, 32), np.uint8)
    zeros = np.zeros((4, 1), np.int8)
    zeros[3] = byte
    tensors = {M + "weight": ("F8_E4M3", q), M + "weight_scale": np.ones((4, 1), np.float32)}
    with open_weights(write_model(tmp_path, tensors | {M + "weight_zero_point": zeros})) as w:
        if byte == 0:
            check_values(w[NAME], E4M3[q])
            return
        with pytest.raises(WeightsError, match="zero points other than 0") as caught:
            w[NAME].numpy()
        assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"weight_scale_2": np.ones(2, np.float32)}, "one global scale in F32"),
        ({"weight_scale_2": np.ones(1, np.float16)}, "one global scale in F32"),
        ({"weight": np.zeros((4, 31), np.uint8)}, "a scale for each 16 values"),
        ({"weight": np.zeros(32, np.uint8)}, "must be a matrix"),
    ],
)
def test_tensors_that_contradict_each_other(parts, found, tmp_path):
    tensors = {
        "weight": np.zeros((4, 32), np.uint8),
        "weight_scale": ("F8_E4M3", np.zeros((4, 4), np.uint8)),
        "weight_scale_2": np.ones(1, np.float32),
    } | parts
    write(tmp_path, {M + role: part for role, part in tensors.items()}, "NVFP4", "config.json")
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "quant_mismatch"
    assert found in str(caught.value)
    assert "weight_scale F8_E4M3 [4, 4]" in str(caught.value)


@pytest.mark.parametrize("place", PLACES[:2])
def test_tensors_that_contradict_the_configuration(place, tmp_path):
    tensors = {
        M + "weight": np.zeros((4, 32), np.uint8),
        M + "weight_scale": ("F8_E4M3", np.zeros((4, 4), np.uint8)),
        M + "weight_scale_2": np.ones(1, np.float32),
    }
    write(tmp_path, tensors, "FP8", place)
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "quant_mismatch"
    assert "the configuration has" in str(caught.value)
    assert "the tensors" in str(caught.value)
