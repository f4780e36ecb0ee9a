"""MXFP4 of gpt-oss, as transformers stores it."""

import numpy as np
import pytest

from safetensors.numpy import load_file
from safetensors.weights import SchemeParams, WeightsError, convert, detect_format, open_weights
from weights_support.scheme_models import (
    E2M1,
    E8M0,
    bf16_bits,
    bf16_values,
    check_values,
    same_bits,
    write_model,
)

RNG = np.random.default_rng(4)
EXPERTS = "model.layers.1.mlp.experts."
HERE = "layers.1.ffn.experts."
CONFIG = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
# As in gpt-oss: hidden and intermediate sizes that are no multiples of 128.
E, F, K = 3, 96, 160


def quantised(experts, rows, columns):
    blocks = RNG.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
    scales = RNG.integers(100, 140, (experts, rows, columns // 32), np.uint8)
    return blocks, scales


def values_of(blocks, scales):
    """Restates the layout: byte j of a block holds the values 2j (low nibble) and 2j + 1."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    values = E2M1[codes] * E8M0[scales][..., None]
    return values.reshape(*scales.shape[:-1], -1)


def model():
    gate_up, gate_up_scales = quantised(E, 2 * F, K)
    down, down_scales = quantised(E, K, F)
    bias = RNG.normal(size=(E, 2 * F)).astype(np.float32)
    return {
        EXPERTS + "gate_up_proj_blocks": gate_up,
        EXPERTS + "gate_up_proj_scales": gate_up_scales,
        EXPERTS + "gate_up_proj_bias": ("BF16", bf16_bits(bias)),
        EXPERTS + "down_proj_blocks": down,
        EXPERTS + "down_proj_scales": down_scales,
        EXPERTS + "down_proj_bias": RNG.normal(size=(E, K)).astype(np.float32),
        "model.layers.1.mlp.router.weight": RNG.normal(size=(E, K)).astype(np.float32),
    }


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("config", [CONFIG, None])
@pytest.mark.parametrize("shards", [1, 2])
def test_experts(shards, config, mmap, tmp_path):
    tensors = model()
    write_model(tmp_path, tensors, config, shards=shards)
    assert detect_format(tmp_path) == "hf_safetensors"
    with open_weights(tmp_path, mmap=mmap) as w:
        assert w.scheme == "mxfp4"
        assert w.unmapped == w.warnings == []
        assert {name for name in w if name.startswith(HERE)} == {
            HERE + part + "." + kind
            for part in ("gate", "up", "down")
            for kind in ("weight", "bias")
        }
        both = values_of(
            *(tensors[EXPERTS + "gate_up_proj_" + end] for end in ("blocks", "scales"))
        )
        down = values_of(*(tensors[EXPERTS + "down_proj_" + end] for end in ("blocks", "scales")))
        check_values(w[HERE + "gate.weight"], both[:, 0::2])
        check_values(w[HERE + "up.weight"], both[:, 1::2])
        check_values(w[HERE + "down.weight"], down)
        biases = bf16_values(tensors[EXPERTS + "gate_up_proj_bias"][1])
        check_values(w[HERE + "gate.bias"], biases[:, 0::2])
        check_values(w[HERE + "up.bias"], biases[:, 1::2])
        same_bits(w[HERE + "down.bias"].numpy(), tensors[EXPERTS + "down_proj_bias"])
        for part in ("gate", "up", "down"):
            t = w[HERE + part + ".weight"]
            assert (t.storage, t.scheme, t.type_name, t.code) == ("scheme", "mxfp4", "mxfp4", 122)
            assert t.scheme_params == SchemeParams(4, 1, 32, True)


def test_files_of_openai(tmp_path):
    """They have the same blocks and scales, for parameters with the names of OpenAI's model."""
    mlp = "block.1.mlp."
    up, down = quantised(E, 2 * F, K), quantised(E, K, F)
    tensors = {
        mlp + "mlp1_weight.blocks": up[0],
        mlp + "mlp1_weight.scales": up[1],
        mlp + "mlp1_bias": RNG.normal(size=(E, 2 * F)).astype(np.float32),
        mlp + "mlp2_weight.blocks": down[0],
        mlp + "mlp2_weight.scales": down[1],
    }
    with open_weights(write_model(tmp_path, tensors, {"num_hidden_layers": 2})) as w:
        assert (w[mlp + "mlp1_weight"].scheme, w.warnings) == ("mxfp4", [])
        assert w.unmapped == [mlp + "mlp1_bias", mlp + "mlp1_weight", mlp + "mlp2_weight"]
        check_values(w[mlp + "mlp1_weight"], values_of(*up))
        check_values(w[mlp + "mlp2_weight"], values_of(*down))
    convert(tmp_path, tmp_path / "out", dtype="f32")
    (file,) = (tmp_path / "out").glob("*.safetensors")
    found = load_file(file)
    assert set(found) == {mlp + "mlp1_bias", mlp + "mlp1_weight", mlp + "mlp2_weight"}
    np.testing.assert_array_equal(found[mlp + "mlp1_weight"], values_of(*up))


def test_stored_bytes(tmp_path):
    tensors = model()
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        up = w[HERE + "up.weight"]
        blocks = tensors[EXPERTS + "gate_up_proj_blocks"]
        scales = tensors[EXPERTS + "gate_up_proj_scales"]
        # The buffer has the rows of up only; the parts are the tensors of the file.
        assert up.packed().tobytes() == blocks[:, 1::2].tobytes() + scales[:, 1::2].tobytes()
        assert up.nbytes == len(up.packed())
        assert list(up.parts()) == ["gate_up_proj_blocks", "gate_up_proj_scales"]
        np.testing.assert_array_equal(up.parts()["gate_up_proj_blocks"], blocks)
        down = w[HERE + "down.weight"]
        parts = [tensors[EXPERTS + "down_proj_" + end] for end in ("blocks", "scales")]
        assert down.packed().tobytes() == b"".join(part.tobytes() for part in parts)
        for found, wanted in zip(down.sections(), parts, strict=True):
            np.testing.assert_array_equal(found, wanted)
        for found, wanted in zip(up.sections(), (blocks, scales), strict=True):
            np.testing.assert_array_equal(found, wanted[:, 1::2])
        gate = bf16_values(tensors[EXPERTS + "gate_up_proj_bias"][1])[:, 0::2]
        assert w[HERE + "gate.bias"].packed().tobytes() == gate.astype(np.float16).tobytes()
        with pytest.raises(WeightsError, match="cannot be fused"):
            w.fuse_weights(HERE + "gate.weight", HERE + "up.weight")
    with open_weights(tmp_path, bf16="keep") as w:
        stored = tensors[EXPERTS + "gate_up_proj_bias"][1][:, 0::2]
        assert w[HERE + "gate.bias"].packed().tobytes() == stored.tobytes()


def test_a_worked_example_and_a_scale_that_is_no_number(tmp_path):
    blocks = np.zeros((1, 2, 1, 16), np.uint8)
    blocks[..., :2] = 0x21, 0x43
    tensors = {
        EXPERTS + "down_proj_blocks": blocks,
        EXPERTS + "down_proj_scales": np.array([[[128], [255]]], np.uint8),
    }
    with open_weights(write_model(tmp_path, tensors)) as w:
        values = w[HERE + "down.weight"].numpy()
        assert values[0, 0, :4].tolist() == [1, 2, 3, 4]
        assert np.isnan(values[0, 1]).all()


def test_values_agree_with_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    tensors = model()
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        for base, name in (("gate_up_proj", "gate"), ("gate_up_proj", "up"), ("down_proj", "down")):
            parts = [
                torch.from_numpy(tensors[f"{EXPERTS}{base}_{end}"]) for end in ("blocks", "scales")
            ]
            # Its parameter is the transpose, and gate and up alternate.
            theirs = mxfp4.convert_moe_packed_tensors(*parts, dtype=torch.bfloat16)
            theirs = theirs.transpose(1, 2)
            theirs = {"gate": theirs[:, 0::2], "up": theirs[:, 1::2]}.get(name, theirs)
            ours = w[f"{HERE}{name}.weight"].torch(torch.bfloat16)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


BLOCKS, SCALES = EXPERTS + "gate_up_proj_blocks", EXPERTS + "gate_up_proj_scales"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({SCALES: np.zeros((E, 2 * F, 4), np.uint8)}, "16 bytes for each scale"),
        ({SCALES: np.zeros((E, 2 * F), np.uint8)}, "16 bytes for each scale"),
        ({SCALES: np.zeros((E, 2 * F, 5), np.int8)}, "must be U8"),
        ({BLOCKS: np.zeros((E, 2 * F, 5, 8), np.uint8)}, "16 bytes for each scale"),
        (
            {
                BLOCKS: np.zeros((E, 7, 5, 16), np.uint8),
                SCALES: np.zeros((E, 7, 5), np.uint8),
            },
            "gate and up must have equal rows",
        ),
        ({EXPERTS + "gate_up_proj_bias": np.zeros((E, F), np.float32)}, "one bias for each row"),
    ],
)
def test_tensors_that_do_not_fit(change, why, tmp_path):
    with pytest.raises(WeightsError, match=why) as caught:
        open_weights(write_model(tmp_path, model() | change, CONFIG))
    assert caught.value.code == "quant_mismatch"
    assert caught.value.subject == BLOCKS


def test_blocks_without_scales_are_no_values(tmp_path):
    tensors = model()
    del tensors[SCALES]
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        t = w[BLOCKS]
        assert not t.is_decoded
        np.testing.assert_array_equal(t.numpy(), tensors[BLOCKS])
        with pytest.raises(WeightsError, match='scheme "mxfp4" is not decoded'):
            t.numpy("float32")
