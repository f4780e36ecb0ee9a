"""Weights of optimum-quanto."""

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, convert, open_weights
from weights_support.scheme_models import TABLES, as_stored, check_values, write_model

RNG = np.random.default_rng(37)
UP = "model.layers.3.mlp.up_proj."
NAME = "layers.3.ffn.up.weight"
CONFIG = {"model_type": "llama", "quantization_config": {"quant_method": "quanto"}}


def codes(*shape, high=256):
    return RNG.integers(0, high, shape, np.uint8)


def with_others(parts):
    """Adds the tensors that every module has."""
    parts = parts | {"input_scale": np.float32([1]), "output_scale": np.float32([1])}
    return {UP + role: stored for role, stored in parts.items()}


@pytest.mark.parametrize("config", [CONFIG, None])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("codes_type", ["I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ"])
def test_eight_bits(codes_type, kind, config, tmp_path):
    q = codes(96, 320, high=0x7C)  # no NaN, which `convert` refuses
    stored, s = as_stored(kind, RNG.uniform(1e-3, 2, (96, 1)).astype(np.float32))
    is_int = codes_type == "I8"
    data = q.view(np.int8) if is_int else (codes_type, q)
    tensors = with_others({"weight._data": data, "weight._scale": stored})
    with open_weights(write_model(tmp_path / "m", tensors, config)) as w:
        assert w.scheme == ("int8" if is_int else "fp8")
        assert (list(w), w.unmapped, w.warnings) == ([NAME], [], [])
        assert w.extras == [UP + "input_scale", UP + "output_scale"]
        t = w[NAME]
        assert t.source == UP + "weight"
        assert list(t.parts()) == ["_data", "_scale"]
        assert t.scheme_params == SchemeParams(8, 1, 320, True)
        check_values(
            t, (q.view(np.int8).astype(np.float32) if is_int else TABLES[codes_type][q]) * s
        )
    notes = convert(tmp_path / "m", tmp_path / "out.safetensors", dtype="f32")
    assert len(notes) == 1


def packed(codes, bits):
    """Packs rows of codes: row r is in line r % lines, the first in the lowest bits."""
    lines = -(-len(codes) * bits // 8)
    padded = np.zeros((lines * 8 // bits, codes.shape[1]), np.uint8)
    padded[: len(codes)] = codes
    parts = padded.reshape(8 // bits, lines, -1) << (bits * np.arange(8 // bits))[:, None, None]
    return np.bitwise_or.reduce(parts, axis=0).astype(np.uint8)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("shift", ["float", "int8", "uint8"])
@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize(
    ("n", "k", "group"), [(64, 256, 128), (5, 96, 32), (7, 2304, 96), (1, 192, 64), (5, 32, 32)]
)
def test_fewer_bits(n, k, group, bits, shift, mmap, tmp_path):
    rows = n * k // group
    q = codes(rows, group, high=1 << bits)
    stored, s = as_stored("BF16", RNG.uniform(1e-3, 2, (rows, 1)).astype(np.float32))
    if shift == "float":
        z = RNG.normal(size=(rows, 1)).astype(np.float32)
        wanted = s * q.astype(np.float32) - z
    else:
        z = codes(rows, 1, high=1 << bits).astype(shift)
        wanted = s * (q.astype(np.float32) - z.astype(np.float32))
    parts = {"weight._data._data": packed(q, bits), "weight._scale": stored, "weight._shift": z}
    tensors = with_others(parts | {"bias": np.zeros(n, np.float32)})
    with open_weights(write_model(tmp_path, tensors, CONFIG), mmap=mmap) as w:
        assert (w.scheme, w.warnings, w.unmapped) == ("quanto", [], [])
        t = w[NAME]
        assert (t.type_name, t.code) == (f"quanto_q{bits}", 135)
        assert t.scheme_params == SchemeParams(bits, 1, group, False)
        assert list(t.parts()) == ["_data", "_scale", "_shift"]
        check_values(t, wanted.reshape(n, k))


def test_two_groups_do_not_tell_their_bits(tmp_path):
    parts = {
        "weight._data._data": codes(1, 64),
        "weight._scale": np.ones((2, 1), np.float32),
        "weight._shift": np.ones((2, 1), np.float32),
        "bias": np.zeros(2, np.float32),
    }
    path = write_model(tmp_path, with_others(parts), CONFIG)
    with open_weights(path) as w, pytest.raises(WeightsError, match="may have 4 or 2 bits"):
        w[UP + "weight._data._data"].numpy("float32")


def test_four_bits_by_hand(tmp_path):
    parts = {
        "weight._data._data": np.uint8([[0xA1, 0x0F], [0x32, 0x54]]),
        "weight._scale": np.float32([[0.5]] * 3),
        "weight._shift": np.float32([[1]] * 3),
        "bias": np.zeros(3, np.float32),
    }
    with open_weights(write_model(tmp_path, with_others(parts), CONFIG)) as w:
        assert w[NAME].numpy().tolist() == [[-0.5, 6.5], [0, 1], [4, -1]]


def test_without_a_bias_the_number_of_rows_is_not_known(tmp_path):
    parts = {
        "weight._data._data": codes(32, 128),
        "weight._scale": np.ones((64, 1), np.float32),
        "weight._shift": np.ones((64, 1), np.float32),
    }
    path = write_model(tmp_path / "m", with_others(parts), CONFIG)
    with open_weights(path) as w:
        assert "the number of rows is not in the file" in w.warnings[0]
        with pytest.raises(WeightsError, match="the number of rows is not in the file") as caught:
            w[UP + "weight._data._data"].numpy("float32")
        assert caught.value.code == "unsupported"
    with pytest.raises(WeightsError):
        convert(path, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"bias": np.zeros(3, np.float32)}, "3 rows, as the bias has"),
        ({"weight._shift": np.ones((63, 1), np.float32)}, "a scale and a shift for each group"),
        ({"weight._data._data": codes(31, 128)}, "neither 4 nor 2 bits"),
        ({"weight._data._data": codes(32)}, "a scale and a shift for each group"),
    ],
)
def test_fewer_bits_that_contradict_themselves(parts, found, tmp_path):
    good = {
        "weight._data._data": codes(32, 128),
        "weight._scale": np.ones((64, 1), np.float32),
        "weight._shift": np.ones((64, 1), np.float32),
        "bias": np.zeros(16, np.float32),
    }
    with pytest.raises(WeightsError, match=found) as caught:
        open_weights(write_model(tmp_path, with_others(good | parts), CONFIG))
    assert caught.value.code == "quant_mismatch"


@pytest.mark.parametrize("config", [CONFIG, None])
def test_parts_that_are_left_over(config, tmp_path):
    tensors = with_others(
        {
            "weight._data": ("F8_E4M3", codes(8, 32)),
            "weight._scale": np.ones((8, 1), np.float32),
            "weight._zeropoint": np.ones((8, 1), np.float32),
        }
    )
    path = write_model(tmp_path, tensors, config)
    found = "`weight._zeropoint` beside it is no part"
    with open_weights(path) as w, pytest.raises(WeightsError, match=found):
        w[UP + "weight._data"].numpy("float32")
