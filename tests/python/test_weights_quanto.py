"""Weights of optimum-quanto."""

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, convert, open_weights
from support.scheme_models import TABLES, as_stored, check_values, write_model

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
