"""Integers of 4 bits of modelopt, and floats of 6 bits of compressed-tensors."""

import json

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from weights_support.scheme_models import E8M0, as_stored, check_values, write_model

RNG = np.random.default_rng(41)
M = "model.layers.3.mlp.down_proj."
NAME = "layers.3.ffn.down.weight"
SIZES = np.float32(
    [m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)]
)
E2M3 = np.concatenate([SIZES, -SIZES])


def pack_rows(codes):
    """Puts rows 2i and 2i + 1 into the low and the high nibbles of a row of bytes."""
    codes = codes.astype(np.uint8) & 15
    return codes[..., 0::2, :] | codes[..., 1::2, :] << 4


def pack_six(codes):
    words = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 4) << np.uint32([0, 6, 12, 18])
    words = np.bitwise_or.reduce(words, axis=-1)
    return (
        np.stack([words & 255, words >> 8 & 255, words >> 16], -1)
        .astype(np.uint8)
        .reshape(*codes.shape[:-1], -1)
    )


def modelopt(folder, tensors, algorithm="W4A16_AWQ", group=128):
    folder = write_model(folder, {M + role: part for role, part in tensors.items()}, {})
    settings = {"quant_algo": algorithm, "group_size": group}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    return folder


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
@pytest.mark.parametrize(
    ("shape", "group"), [((2, 128), 128), ((64, 2304), 128), ((6, 320), 64), ((3, 10, 4224), 128)]
)
def test_int4(shape, group, kind, mmap, tmp_path):
    q = RNG.integers(-8, 8, shape)
    scale = RNG.uniform(1e-3, 2, (*shape[:-1], shape[-1] // group)).astype(np.float32)
    stored, s = as_stored(kind, scale)
    parts = {"weight": pack_rows(q), "weight_scale": stored}
    with open_weights(modelopt(tmp_path, parts, group=group), mmap=mmap) as w:
        assert (w.scheme, w.warnings, list(w), w.unmapped) == ("int4", [], [NAME], [])
        t = w[NAME]
        assert (t.type_name, t.code) == ("int4", 134)
        assert t.scheme_params == SchemeParams(4, 1, group, True)
        assert list(t.parts()) == ["weight", "weight_scale"]
        check_values(t, q.astype(np.float32) * np.repeat(s, group, -1))


def test_int4_by_hand(tmp_path):
    parts = {"weight": np.uint8([[0x21, 0x4F]]), "weight_scale": np.float32([[0.5], [2]])}
    with open_weights(modelopt(tmp_path, parts, group=2)) as w:
        assert w[NAME].numpy().tolist() == [[0.5, -0.5], [4, 8]]
        assert w[NAME].numpy(rows=1).tolist() == [4, 8]


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ", None])
def test_int4_with_scales_of_the_inputs(algorithm, tmp_path):
    """weight_scale_2 of W4A8 is only used by engines, which round the values to E4M3."""
    q = RNG.integers(-8, 8, (8, 256))
    s, pre = RNG.uniform(1e-3, 2, (8, 2)), RNG.uniform(0.1, 4, 256).astype(np.float32)
    parts = {"weight": pack_rows(q), "weight_scale": s.astype(np.float32), "pre_quant_scale": pre}
    if algorithm == "W4A8_AWQ":
        parts["weight_scale_2"] = np.float32(0.01)
    if algorithm is None:
        folder = write_model(tmp_path, {M + role: part for role, part in parts.items()})
    else:
        folder = modelopt(tmp_path, parts, algorithm)
    with open_weights(folder) as w:
        assert w.warnings == []
        wanted = q.astype(np.float32) * np.repeat(s.astype(np.float32), 128, -1) * pre
        check_values(w[NAME], wanted)


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"weight_scale": np.ones((3, 2), np.float32)}, "columns of two rows in a byte"),
        ({"weight_scale": np.ones((8, 3), np.float32)}, "columns of two rows in a byte"),
        (
            {"weight_scale": np.ones((8, 4), np.float32)},
            "groups of 128, the scales are those of 64",
        ),
        ({"pre_quant_scale": np.ones(8, np.float32)}, "a float for each of 256 columns"),
        ({"weight_scale_2": np.ones(2, np.float32)}, "one weight_scale_2 in F32"),
    ],
)
def test_int4_that_contradicts_itself(parts, found, tmp_path):
    parts = {"weight": np.ones((4, 256), np.uint8), "weight_scale": np.ones((8, 2), "f4")} | parts
    with pytest.raises(WeightsError, match=found) as caught:
        open_weights(modelopt(tmp_path, parts))
    assert caught.value.code == "quant_mismatch"


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["U8", "F8_E8M0"])
@pytest.mark.parametrize("shape", [(1, 32), (64, 2304), (2, 5, 4128)])
def test_mxfp6(shape, kind, mmap, tmp_path):
    q = RNG.integers(0, 64, shape)
    s = RNG.integers(110, 140, (*shape[:-1], shape[-1] // 32), np.uint8)
    tensors = {M + "weight_packed": pack_six(q), M + "weight_scale": (kind, s)}
    weights = {"num_bits": 6, "type": "float", "group_size": 32, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized"}
    path = write_model(
        tmp_path, tensors, {"quantization_config": config | {"config_groups": groups}}
    )
    with open_weights(path, mmap=mmap) as w:
        assert (w.scheme, w.warnings, list(w), w.unmapped) == ("mxfp6", [], [NAME], [])
        t = w[NAME]
        assert (t.type_name, t.code) == ("mxfp6", 133)
        assert t.scheme_params == SchemeParams(6, 1, 32, True)
        check_values(t, E2M3[q] * np.repeat(E8M0[s], 32, -1))


def test_mxfp6_by_hand(tmp_path):
    stored = np.zeros((1, 24), np.uint8)
    stored[0, :3] = 0x01, 0xF2, 0x87  # codes 1, 8, 63, 33
    tensors = {M + "weight_packed": stored, M + "weight_scale": np.uint8([[127]])}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w[NAME].numpy()[0, :5].tolist() == [0.125, 1, -7.5, -0.125, 0]


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"num_bits": 4, "type": "float"}, "the configuration has 4 bits, the tensors have 6"),
        ({"num_bits": 6, "type": "int"}, "the configuration has integers"),
    ],
)
def test_mxfp6_that_the_configuration_contradicts(weights, found, tmp_path):
    tensors = {
        M + "weight_packed": np.zeros((2, 48), np.uint8),
        M + "weight_scale": np.zeros((2, 2), np.uint8),
    }
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    with pytest.raises(WeightsError, match=found) as caught:
        open_weights(write_model(tmp_path, tensors, {"quantization_config": config}))
    assert caught.value.code == "quant_mismatch"
