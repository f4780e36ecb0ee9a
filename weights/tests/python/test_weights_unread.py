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
@pytest.mark.parametrize("place", ["config.json", "text_config", "llm_config", "a_config.b_config"])
def test_a_method_that_is_not_known(method, place, tmp_path):
    """SDNQ's F8 weights have scales of the same names, and are transposed."""
    tensors = {Q + "weight": f8(64, 64), Q + "scale": normal(64, 1), "model.norm.weight": normal(4)}
    config = {"quantization_config": {"quant_method": method}}
    if place != "config.json":
        for part in reversed(place.split(".")):
            config = {part: config}
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


def test_plain_tensors_of_a_method_that_is_not_known_are_not_converted(tmp_path):
    """BitNet's layers round floats when the model runs."""
    tensors = {Q + "weight": normal(8, 8)}
    write_model(tmp_path, tensors, {"quantization_config": {"quant_method": "bitnet"}})
    with pytest.raises(
        WeightsError, match="quant_method is `bitnet`, which is not decoded"
    ) as caught:
        convert(tmp_path, tmp_path / "out", dtype="f32")
    assert (caught.value.code, caught.value.path) == ("unsupported", str(tmp_path / "config.json"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("same", [True, False])
def test_two_configurations(same, tmp_path):
    tensors = {Q + "weight": f8(64, 64), Q + "weight_scale": normal(64, 1)}
    parts = [{"quantization_config": {"quant_method": "fp8", "n": same or n}} for n in range(2)]
    write_model(tmp_path, tensors, parts[0] | {"llm_config": parts[1]})
    if same:
        with open_weights(tmp_path) as w:
            assert w.scheme == "fp8"
    else:
        with pytest.raises(WeightsError, match="stated twice, and differently") as caught:
            open_weights(tmp_path)
        assert (caught.value.code, caught.value.subject) == ("config", "quantization_config")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"rotation": "hadamard"}, "activations are transformed"),
        ({"weight_scale_semantics": "inverse"}, "divided by their scales"),
    ],
)
def test_fields_of_gptqmodel(field, said, tmp_path):
    """They are short texts, and no tensor tells what they do."""
    tensors = {Q + "weight": f8(64, 64), Q + "weight_scale_inv": normal(64, 1)}
    config = {"quant_method": "fp8"} | field
    write_model(tmp_path, tensors, {"quantization_config": config})
    check_not_converted(tmp_path, Q + "weight", said)
    config[next(iter(field))] = None
    write_model(tmp_path, tensors, {"quantization_config": config})
    with open_weights(tmp_path) as w:
        assert w["layers.0.attention.q.weight"].is_decoded


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


def int8(array):
    most = np.abs(array).max(-1)
    return {".weight": np.rint(array / most[:, None] * 127).astype(np.int8), ".SCB": most}, None


@pytest.mark.parametrize(
    ("form", "scheme", "config"),
    [
        (scheme_stores.awq, "awq", scheme_stores.AWQ),
        (scheme_stores.gptq, "gptq", scheme_stores.GPTQ),
        (scheme_stores.int4, "ct_int", CT),
        (scheme_stores.nf4, "bnb_nf4", scheme_stores.NF4),
        (int8, "bnb_int8", scheme_stores.NF4),
    ],
)
def test_a_module_without_a_name(form, scheme, config, tmp_path):
    tensors = {name.removeprefix("."): part for name, part in stored("", form).items()}
    write_model(tmp_path / "bare", tensors, {"quantization_config": config, "model_type": "llama"})
    named = {"m." + name: part for name, part in tensors.items()}
    write_model(tmp_path / "named", named, {"quantization_config": config, "model_type": "llama"})
    with open_weights(tmp_path / "bare") as w, open_weights(tmp_path / "named") as other:
        assert ([*w, *w.unmapped], w.warnings) == (["weight"], [])
        assert w["weight"].scheme == scheme
        np.testing.assert_array_equal(w["weight"].numpy(), other["m.weight"].numpy())


@pytest.mark.parametrize(("kind", "scale"), [("I8", "weight_scale"), ("F8", "scale")])
def test_codes_of_eight_bits_without_a_module(kind, scale, tmp_path):
    codes = f8(4, 8) if kind == "F8" else RNG.integers(-99, 99, (4, 8), np.int8)
    with open_weights(write_model(tmp_path, {"weight": codes, scale: normal(4, 1)})) as w:
        assert ([*w, *w.unmapped], w["weight"].scheme) == (
            ["weight"],
            "fp8" if kind == "F8" else "int8",
        )


M = "double_blocks.0.img_attn.qkv."
BYTES = RNG.integers(1, 99, (64, 32), np.uint8)
OTHER_NAMES = {
    "flux-fp8-api": {
        "float8_data": f8(64, 64),
        "weight": normal(1),
        "scale": normal(),
        "scale_reciprocal": normal(),
        "input_scale": normal(),
    },
    "weight_fp8": {"weight_fp8": f8(64, 64), "weight_scale": normal()},
    "weight_q": {"weight_q": f8(64, 64), "scale": normal(1)},
    "quantized_weight": {"quantized_weight": f8(64, 64), "scale": normal(64)},
    "beneath its name": {"w1": f8(64, 64), "w1.scale": normal()},
    "anything beneath its name": {"w1": BYTES, "w1.shift": normal()},
    "bytes": {"packed": BYTES, "absmax": normal(64)},
    "signed bytes": {"weight_int8": BYTES.astype(np.int8), "SCB": normal(64)},
    "words": {"packed": BYTES.astype(np.int32), "group_scales": normal(64, 4)},
    "zeros alone": {"packed": BYTES, "zeros": normal(64)},
    "a codebook": {"indices": BYTES, "codebook": normal(256)},
    "scales of a type of codes": {"packed": BYTES, "scale": ("F8_E8M0", BYTES[:, :4])},
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_codes_of_other_names_with_a_scale_beside_them(kind, tmp_path):
    tensors = {M + role: part for role, part in OTHER_NAMES[kind].items()}
    (codes,) = [name for name in tensors if name.endswith(tuple(list(OTHER_NAMES[kind])[:1]))]
    write_model(tmp_path, tensors | {"norm.scale": normal(4)})
    check_not_converted(tmp_path, codes, f"codes with `{M}.*` beside them: no scheme")
    with open_weights(tmp_path) as w:
        (line, *others) = w.warnings
        assert "not decoded" in line
        assert not any("has no scales beside it" in other for other in others)


PLAIN_NAMES = {
    "CLIP": {"text_projection": f8(8, 8), "logit_scale": normal()},
    "diffusion": {"table": f8(8, 8), "scale_shift_table": normal(6, 8)},
    "cast as a whole": {"proj": f8(8, 8), "layer_scale": f8(8)},
    "a mask": {"bias": BYTES, "scale": normal()},
    "activations": {"proj": f8(8, 8), "input_scale": normal(1)},
    "the scale of another module": {"proj": f8(8, 8), "norm.scale": normal(8)},
    "a bias beneath its name": {"w1": BYTES, "w1.bias": normal(64)},
    "no axes": {"count": BYTES[0], "scale": normal(8)},
}


@pytest.mark.parametrize("kind", PLAIN_NAMES)
def test_plain_numbers_beside_a_scale_that_is_not_theirs(kind, tmp_path):
    tensors = {M + role: part for role, part in PLAIN_NAMES[kind].items()}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert all(w[name].is_decoded for name in [*w, *w.unmapped])


def test_a_part_of_one_of_two_codes(tmp_path):
    """`gate_scale_inv` is a part of `gate`, and says nothing about `up`."""
    experts = LAYER + "experts."
    tensors = {
        experts + "gate": f8(2, 8, 8),
        experts + "gate_scale_inv": normal(2, 1, 1),
        experts + "up": f8(2, 8, 8),
    }
    with open_weights(write_model(tmp_path, tensors)) as w:
        by_source = {w[name].source: w[name] for name in [*w, *w.unmapped]}
        assert by_source[experts + "gate"].scheme == "fp8"
        assert by_source[experts + "up"].is_decoded
    tensors[experts + "gate.zero"] = normal(1)
    write_model(tmp_path, tensors)
    check_not_converted(tmp_path, experts + "gate", "but `model.*gate.zero` beside it is no part")
