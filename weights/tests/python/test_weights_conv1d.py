"""Weights of Conv1D: bitsandbytes and GPTQ store the transposes of what plain checkpoints have."""

import numpy as np
import pytest

from safetensors.weights import WeightsError, convert, open_weights
from weights_support import scheme_stores
from weights_support.scheme_models import check_values, write_model

RNG = np.random.default_rng(41)
H = "transformer.h.0."
N, K = 96, 64  # outputs and inputs


def bnb_int8(array):
    most = np.abs(array).max(-1)
    codes = np.rint(array * 127 / most[:, None]).astype(np.int8)
    values = codes.astype(np.float32) * most[:, None] * np.float32(1 / 127)
    return {".weight": codes, ".SCB": most}, values


FORMS = {
    "bnb_int8": (bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "bnb_nf4": (scheme_stores.nf4, scheme_stores.NF4),
    "gptq": (scheme_stores.gptq, scheme_stores.GPTQ),
}


def model(folder, form, module, **config):
    """Writes a model with one layer, as it is quantised; returns the values [outputs, inputs]."""
    store, quant = FORMS[form]
    parts, values = store(RNG.normal(size=(N, K)).astype(np.float32))
    config = {name: value for name, value in config.items() if value is not None}
    tensors = {module + ending: part for ending, part in parts.items()}
    write_model(folder, tensors, {"quantization_config": quant, **config})
    return values


def only(w):
    (name,) = [*w, *w.unmapped]
    return w[name]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "module", ["attn.c_attn", "attn.c_proj", "crossattention.q_attn", "mlp.c_fc"]
)
@pytest.mark.parametrize("model_type", ["gpt2", "imagegpt"])
def test_the_values_of_the_plain_checkpoint(model_type, module, form, tmp_path):
    wanted = model(tmp_path, form, H + module, model_type=model_type).T
    with open_weights(tmp_path) as w:
        t = only(w)
        assert (t.source, t.scheme, tuple(t.shape)) == (H + module + ".weight", form, (K, N))
        values = t.numpy()
        check_values(t, values)
        np.testing.assert_allclose(values, wanted, rtol=1e-6)
        for rows in (slice(0, 1), slice(5, 40), slice(K - 1, K)):
            np.testing.assert_array_equal(t.numpy(rows=rows), values[rows])
    convert(tmp_path, tmp_path / "out", dtype="f32", verify=True)
    with open_weights(tmp_path / "out") as w:
        np.testing.assert_array_equal(only(w).numpy(), values)


def test_a_decoder_inside_another_model(tmp_path):
    parts = {"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}}
    wanted = model(tmp_path, "bnb_int8", "decoder." + H + "mlp.c_fc", **parts).T
    with open_weights(tmp_path) as w:
        np.testing.assert_allclose(only(w).numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "module"),
    [
        ("gpt_bigcode", H + "attn.c_attn"),
        ("gpt2", "score"),
        ("starcoder2", "model.layers.0.mlp.c_fc"),
        (None, "model.layers.0.mlp.c_fc"),
    ],
)
def test_other_layers_are_not_transposed(model_type, module, tmp_path):
    wanted = model(tmp_path, "bnb_int8", module, model_type=model_type)
    with open_weights(tmp_path) as w:
        np.testing.assert_allclose(only(w).numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_may_be_gpt2(form, tmp_path):
    model(tmp_path, form, H + "attn.c_attn")
    with pytest.raises(WeightsError, match="no model_type in config.json") as caught:
        convert(tmp_path, tmp_path / "out", dtype="f32")
    assert caught.value.code == "unsupported"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [1, 5])
def test_a_large_weight_is_decoded_in_pieces(rows, tmp_path):
    codes = RNG.integers(-127, 128, (3000, 1100)).astype(np.int8)
    scb = RNG.uniform(0.5, 1, 3000).astype(np.float32)
    tensors = {H + "mlp.c_proj.weight": codes, H + "mlp.c_proj.SCB": scb}
    config = {"model_type": "gpt2", "quantization_config": FORMS["bnb_int8"][1]}
    with open_weights(write_model(tmp_path, tensors, config)) as w:
        wanted = (codes.astype(np.float32) * scb[:, None] * np.float32(1 / 127)).T
        values = only(w).numpy()
        np.testing.assert_allclose(values, wanted, rtol=1e-6)
        np.testing.assert_array_equal(
            only(w).numpy(rows=slice(700, 700 + rows)), values[700 : 700 + rows]
        )
        np.testing.assert_array_equal(only(w).numpy("float16"), values.astype(np.float16))


def test_the_buffer_is_that_of_the_transpose(tmp_path):
    model(tmp_path, "bnb_int8", H + "attn.c_attn", model_type="gpt2")
    with open_weights(tmp_path) as w:
        t = only(w)
        assert t.parts()["weight"].shape == (N, K)
        assert t.packed().nbytes == N * K + 4 * N
        with pytest.raises(WeightsError, match="cannot be fused"):
            w.fuse_weights(t.name, t.name)
