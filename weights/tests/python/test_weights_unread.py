"""Models whose values depend on what is not read: they are refused before anything is written."""

import numpy as np
import pytest

from safetensors.weights import WeightsError, convert, open_weights
from weights_support import scheme_stores
from weights_support.scheme_models import write_model

RNG = np.random.default_rng(31)
LAYER = "model.layers.0."
Q = LAYER + "self_attn.q_proj."


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def stored(module, form):
    """Returns the tensors of a module that one of scheme_stores' functions stores."""
    parts = form(normal(64, 64))[0]
    kinds = {"bfloat16": "BF16"}
    return {
        module + ending: (kinds[part.dtype.name], part.view("<u2"))
        if part.dtype.name in kinds
        else part
        for ending, part in parts.items()
    }


def f8(*shape):
    return "F8_E4M3", RNG.integers(1, 100, shape, np.uint8)


def check_not_converted(folder, source, said):
    """Checks that the tensor is not decoded, and that nothing of the model is written."""
    with open_weights(folder) as w:
        (name,) = [n for n in [*w, *w.unmapped] if w[n].source == source]
        assert not w[name].is_decoded
        with pytest.raises(WeightsError, match=said) as caught:
            w[name].numpy("float32")
        assert (caught.value.code, caught.value.subject) == ("unsupported", source)
        assert str(folder) in str(caught.value)
    with pytest.raises(WeightsError, match=said) as caught:
        convert(folder, folder / "out", dtype="f32")
    assert caught.value.code == "unsupported"
    assert not (folder / "out").exists()


@pytest.mark.parametrize("method", ["sdnq", "made_up", "FP8"])
@pytest.mark.parametrize("place", ["config.json", "text_config"])
def test_a_method_that_is_not_known(method, place, tmp_path):
    """SDNQ's F8 weights have scales of the same names, and are transposed."""
    tensors = {Q + "weight": f8(64, 64), Q + "scale": normal(64, 1), "model.norm.weight": normal(4)}
    config = {"quantization_config": {"quant_method": method}}
    if place == "text_config":
        config = {"text_config": config}
    write_model(tmp_path, tensors, config)
    check_not_converted(tmp_path, Q + "weight", f'scheme "{method}" is not decoded')
    with open_weights(tmp_path) as w:
        np.testing.assert_array_equal(w["output_norm.weight"].numpy(), tensors["model.norm.weight"])


def test_plain_tensors_of_a_method_that_is_not_known(tmp_path):
    tensors = {Q + "weight": normal(8, 8)}
    write_model(tmp_path, tensors, {"quantization_config": {"quant_method": "made_up"}})
    with open_weights(tmp_path) as w:
        np.testing.assert_array_equal(
            w["layers.0.attention.q.weight"].numpy(), tensors[Q + "weight"]
        )
        assert w.warnings == ["quant_method is `made_up`, but no tensor is quantised"]


@pytest.mark.parametrize(("method", "form"), [("w8a8_fp8", "fp8"), ("w8a8_int8", "int8")])
def test_the_methods_of_sglang(method, form, tmp_path):
    codes = f8(64, 64) if form == "fp8" else RNG.integers(-99, 99, (64, 64), np.int8)
    tensors = {Q + "weight": codes, Q + "weight_scale": normal(64, 1)}
    write_model(tmp_path, tensors, {"quantization_config": {"quant_method": method}})
    with open_weights(tmp_path) as w:
        assert (w.scheme, w.warnings) == (form, [])


def transforms(*locations):
    apply = [{"targets": ["Linear"], "location": location} for location in locations]
    return {"transform_config": {"config_groups": {"u": {"type": "hadamard", "apply": apply}}}}


CT = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": None,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "transform_config": {},
    "moe_sparsity_config": None,
    "version": "0.20.0",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True},
        }
    },
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (transforms("input", "weight_input"), r"`transform_config` \(`input`\)"),
        (transforms("weight_output", "output"), r"`transform_config` \(`output`\)"),
        (transforms("k_cache", "q_attn"), r"`transform_config` \(`k_cache`\)"),
        ({"transform_config": {"rotation": 1}}, "`transform_config`"),
        ({"transform_config": {"config_groups": {"u": {}}}}, r"`transform_config` \(`u`\)"),
        ({"corrections": {"low_rank": 4}}, "`corrections`, which is no known field"),
    ],
)
def test_fields_that_change_the_meaning_of_weights(fields, said, tmp_path):
    tensors = stored(Q[:-1], scheme_stores.int4) | {LAYER + "mlp.up_proj.weight": normal(8, 8)}
    write_model(tmp_path, tensors, {"quantization_config": CT | fields})
    check_not_converted(tmp_path, Q + "weight_packed", said)
    with open_weights(tmp_path) as w:
        assert len(w.warnings) == 1
        # A matrix of floats takes transformed activations, too.
        assert not w["layers.0.ffn.up.weight"].is_decoded


@pytest.mark.parametrize(
    "fields", [{}, transforms("weight_input", "weight_output"), {"corrections": []}, {"note": "x"}]
)
def test_fields_that_do_not_change_weights(fields, tmp_path):
    tensors = stored(Q[:-1], scheme_stores.int4)
    write_model(tmp_path, tensors, {"quantization_config": CT | fields})
    with open_weights(tmp_path) as w:
        assert w.warnings == []
        assert w["layers.0.attention.q.weight"].is_decoded


@pytest.mark.parametrize("act", ["mlp.act", "mlp.gelu_impl"])
@pytest.mark.parametrize("method", ["awq", None])
def test_scales_of_an_activation(method, act, tmp_path):
    """AutoAWQ multiplies the columns of the next matrix by the scales."""
    tensors = {
        **stored(LAYER + "mlp.c_fc", scheme_stores.awq),
        **stored(LAYER + "mlp.c_proj", scheme_stores.awq),
        **stored(LAYER + "self_attn.o_proj", scheme_stores.awq),
        LAYER + act + ".scales": normal(64).astype(np.float16),
        LAYER + "mlp.gate.weight": normal(8, 64),
        LAYER + "mlp.norm.weight": normal(64),
    }
    config = {"quantization_config": scheme_stores.AWQ} if method else {"model_type": "starcoder2"}
    write_model(tmp_path, tensors, config)
    said = f"`{LAYER}{act}.scales` divides values"
    for source in ("mlp.c_fc.qweight", "mlp.c_proj.qweight", "mlp.gate.weight"):
        check_not_converted(tmp_path, LAYER + source, said)
    with open_weights(tmp_path) as w:
        assert len(w.warnings) == 3
        assert w["layers.0.attention.output.weight"].scheme == "awq"
        by_source = {w[name].source: w[name] for name in [*w, *w.unmapped]}
        assert by_source[LAYER + "mlp.norm.weight"].is_decoded
        assert by_source[LAYER + act + ".scales"].is_decoded
