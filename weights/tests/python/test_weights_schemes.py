"""Tensors of unsupported quantisation schemes are never returned as values."""

import importlib.util
import json

import numpy as np
import pytest

from safetensors.numpy import save_file
from safetensors.weights import QuantParams, WeightsError, detect_format, open_weights
from weights_support.scheme_models import E2M1, write_model

HAS_TORCH = importlib.util.find_spec("torch") is not None
LAYER = "model.layers.0."
EXPERTS = LAYER + "mlp.experts."
RNG = np.random.default_rng(3)


def codes(*shape, dtype=np.uint8):
    return RNG.integers(0, 100, shape, dtype)


def halves(*shape):
    return RNG.normal(size=shape).astype(np.float16)


def write(folder, tensors, config=None, metadata=None):
    tensors.setdefault("model.embed_tokens.weight", halves(4, 4))
    save_file(tensors, folder / "model.safetensors", metadata)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


def check_refused(w, name, scheme, stored):
    """Checks that the tensor is returned as `stored` and not as decoded values."""
    t = w[name]
    assert not t.is_decoded
    uses = [lambda: t.numpy("float32"), lambda: t.numpy("bfloat16")]
    if HAS_TORCH:
        uses.append(t.torch)
    for use in uses:
        with pytest.raises(WeightsError, match=f'scheme "{scheme}" is not decoded') as caught:
            use()
        assert caught.value.code == "unsupported"
        assert caught.value.subject == t.source
    if stored.dtype.kind in "iu":
        values = t.numpy()
        assert values.dtype == stored.dtype
        np.testing.assert_array_equal(values, stored)
    np.testing.assert_array_equal(t.packed(), np.frombuffer(stored.tobytes(), np.uint8))


OSS_CONFIG = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}


def test_gpt_oss_of_mlx_keeps_the_name_of_the_scheme(tmp_path):
    module = EXPERTS + "down_proj"
    tensors = {module + ".weight": codes(2, 4, 4, dtype=np.uint32)}
    tensors[module + ".scales"] = np.full((2, 4, 1), 127, np.uint8)
    write(tmp_path, tensors, OSS_CONFIG, {"format": "mlx"})
    assert detect_format(tmp_path) == "mlx_safetensors"
    with open_weights(tmp_path) as w:
        assert w.config.quantization == QuantParams("mxfp4", 4, 32)
        assert w.config.quantization_method is None
        assert w["layers.0.ffn.experts.down.weight"].numpy().shape == (2, 4, 32)


Q = LAYER + "self_attn.q_proj."
SCHEMES = {
    "gptq or awq": {"qweight": codes(4, 8, dtype=np.int32), "scales": halves(1, 8)},
    "bitsandbytes": {"weight": codes(4, 8), "weight.absmax": halves(4)},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_is_known_by_its_tensors(scheme, tmp_path):
    parts = SCHEMES[scheme]
    write(tmp_path, {Q + part: values for part, values in parts.items()})
    with open_weights(tmp_path) as w:
        for part, values in parts.items():
            (name,) = [n for n in [*w, *w.unmapped] if w[n].source == Q + part]
            if values.dtype == np.float16:
                np.testing.assert_array_equal(w[name].numpy("float16"), values)
            else:
                check_refused(w, name, scheme, values)


def write_f8(path, beside):
    """Writes a weight in F8_E4M3, with or without scales."""
    entries = {Q + "weight": ("F8_E4M3", [2, 4], bytes([0x38, 0xB8, 0x40, 0x30] * 2))}
    if beside is not None:
        entries[Q + beside] = ("F32", [1], np.float32(2).tobytes())
    header, body = {}, b""
    for name, (dtype, shape, data) in entries.items():
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


@pytest.mark.parametrize("beside", ["weight_scale", "weight_scale_inv", "scale", "qscale_weight"])
def test_f8_with_scales_beside_it_is_decoded_with_them(beside, tmp_path):
    write_f8(tmp_path / "model.safetensors", beside)
    with open_weights(tmp_path / "model.safetensors") as w:
        assert w["layers.0.attention.q.weight"].numpy().tolist() == [[2, -2, 4, 1]] * 2
        assert w.warnings == []


def test_f8_by_itself_is_decoded_with_a_warning(tmp_path):
    write_f8(tmp_path / "model.safetensors", None)
    with open_weights(tmp_path / "model.safetensors") as w:
        values = w["layers.0.attention.q.weight"].numpy()
        np.testing.assert_array_equal(values, [[1, -1, 2, 0.5]] * 2)
        assert w.warnings == [
            "1 tensor of F8 has no scales beside it: it is decoded as plain numbers"
        ]


def test_parts_of_a_pack_without_its_weight_have_no_canonical_name(tmp_path):
    parts = {Q + "scales": halves(4, 1), Q + "biases": halves(4, 1), Q + "qzeros": halves(4)}
    parts |= {Q + "g_idx": halves(4), Q + "global_scale": halves(1)}
    write(tmp_path, dict(parts), {"quantization": {"bits": 4, "group_size": 64}})
    with open_weights(tmp_path) as w:
        assert list(w) == ["token_embedding.weight"]
        assert w.unmapped == sorted(parts)


PLAIN = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_types_are_decoded_and_integers_come_as_they_are(kind, tmp_path):
    stored = np.array([[0, 1, 2], [3, 4, 5]]).astype(kind)
    if stored.dtype.kind in "iu":
        stored[1, 2] = np.iinfo(kind).max  # not every integer is a float
    save_file({"a": stored}, tmp_path / "a.safetensors")
    with open_weights(tmp_path / "a.safetensors") as w:
        t = w["a"]
        assert t.is_decoded
        np.testing.assert_array_equal(t.numpy(), stored.astype(np.float32))
        if stored.dtype.kind in "iu":
            exact = t.numpy(stored.dtype, rows=1)
            assert exact.dtype == stored.dtype
            np.testing.assert_array_equal(exact, stored[1])
            out = np.empty_like(stored)
            assert t.numpy(stored.dtype, out=out) is out
            np.testing.assert_array_equal(out, stored)
            with pytest.raises(ValueError, match="is none of float32, float16, bfloat16"):
                t.numpy("int64" if kind != "i8" else "int32")


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (6, 1), (2, 33), (3, 4)])
def test_rows_of_f4_that_begin_within_a_byte(rows, columns, mmap, tmp_path):
    nibbles = RNG.integers(0, 16, rows * columns, np.uint8)
    wanted = E2M1[nibbles].reshape(rows, columns)
    data = (nibbles[0::2] | nibbles[1::2] << 4).tobytes()
    entry = {"dtype": "F4", "shape": [rows, columns], "data_offsets": [0, len(data)]}
    text = json.dumps({"x.weight": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with open_weights(path, mmap=mmap) as w:
        t = w["x.weight"]
        for first in range(rows):
            for end in range(first + 1, rows + 1):
                for kind in ("float32", "float16"):
                    np.testing.assert_array_equal(
                        t.numpy(kind, rows=slice(first, end)), wanted[first:end]
                    )


REFUSED = "aqlm auto-round bitnet eetq fouroversix fp_quant higgs hqq metal quark sinq spqr vptq"


@pytest.mark.parametrize("method", REFUSED.split())
def test_schemes_refused_by_name(method, tmp_path):
    # Tensors that look like FP8 are not decoded either.
    packing = {"packing_format": "auto_round:fp8_static"} if method == "auto-round" else {}
    config = {"quantization_config": {"quant_method": method, **packing}}
    tensors = {
        Q + "weight": ("F8_E4M3", codes(4, 8)),
        Q + "weight_scale": np.ones(1, np.float32),
        Q + "codes": codes(4, 8),
        LAYER + "mlp.router.weight": halves(2, 4),
    }
    with open_weights(write_model(tmp_path, tensors, config)) as w:
        assert w.warnings == []
        assert w.scheme is None
        check_refused(w, Q + "codes", method, tensors[Q + "codes"])
        with pytest.raises(WeightsError, match=f'scheme "{method}" is not decoded') as caught:
            w["layers.0.attention.q.weight"].numpy()
        assert caught.value.subject == Q + "weight"
        assert w["layers.0.ffn.router.weight"].is_decoded


def fp8_tensors():
    return {Q + "weight": ("F8_E4M3", codes(4, 8)), Q + "weight_scale": np.ones(1, np.float32)}


def test_a_tensor_and_a_weight_of_one_name(tmp_path):
    tensors = {
        "foo.weight": np.ones(1, np.float32),
        "foo.weight_packed": codes(1, 16),
        "foo.weight_scale": codes(1, 1),
    }
    with pytest.raises(WeightsError, match="two tensors have this name") as caught:
        open_weights(write_model(tmp_path, tensors))
    assert (caught.value.code, caught.value.subject) == ("duplicate", "foo.weight")


UNRELATED = {
    "weight": {"m.weight": codes(4, 5), "m.scale": codes()},
    "rows": {"m.weight": codes(4, 5), "m.weight_scale": codes(4, 5)},
    "vector": {"m.weight": codes(16), "m.scale": codes(1)},
    "blocks": {"m_blocks": codes(4, 5), "m_scales": codes(4, 5)},
    "types": {"m_blocks": codes(2, 3, 16), "m_scales": codes(2, 3, dtype=np.int32)},
}


@pytest.mark.parametrize("kind", UNRELATED)
def test_tensors_that_only_have_the_names_of_a_scheme(kind, tmp_path):
    tensors = UNRELATED[kind]
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert (w.scheme, w.unmapped) == (None, sorted(tensors))
        (name, stored), *_ = tensors.items()
        np.testing.assert_array_equal(w[name].numpy(), stored)
        with pytest.raises(WeightsError, match="is not decoded"):
            w[name].numpy("float32")
    method = "mxfp4" if kind in ("blocks", "types") else "compressed-tensors"
    config = {"quantization_config": {"quant_method": method}}
    with pytest.raises(WeightsError) as caught:
        open_weights(write_model(tmp_path, tensors, config))
    assert caught.value.code == "quant_mismatch"


def test_many_warnings_are_cut(tmp_path):
    kinds = ["m" * 100_000, *(f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(120))]
    tensors = {}
    for kind in kinds:
        tensors |= {kind + ".weight_packed": codes(2, 4, dtype=np.int32)}
        tensors |= {kind + ".weight_scale": halves(2, 1)}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert len(w.warnings) == 101
        assert w.warnings[-1] == "21 more warnings like these"
        assert max(map(len, w.warnings)) < 1000


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "mxfp4"])
def test_a_method_that_the_tensors_contradict(method, tmp_path):
    config = {"quantization_config": {"quant_method": method}}
    with pytest.raises(WeightsError, match=f"is `{method}`, but its tensors are .* fp8") as caught:
        open_weights(write_model(tmp_path, fp8_tensors(), config))
    assert caught.value.code == "quant_mismatch"
    assert caught.value.subject == Q + "weight"
    assert caught.value.path == str(tmp_path / "config.json")


@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"])
@pytest.mark.parametrize("nested", [True, False])
def test_methods_that_the_tensors_fit(nested, method, tmp_path):
    config = {"quantization_config": {"quant_method": method}}
    if nested:
        config = {"model_type": "mistral3", "text_config": config}
    with open_weights(write_model(tmp_path, fp8_tensors(), config)) as w:
        assert w.scheme == "fp8"
        assert w.warnings == []


def test_a_method_without_quantised_tensors(tmp_path):
    config = {"quantization_config": {"quant_method": "fp8"}}
    with open_weights(write_model(tmp_path, {Q + "weight": halves(3, 4)}, config)) as w:
        assert w.warnings == ["quant_method is `fp8`, but no tensor is quantised"]


@pytest.mark.parametrize(
    ("text", "code", "subject"),
    [
        ('{"quantization": {"quant_algo": "FP8"}}', None, None),
        ('{"quantization": {"quant_algo": 8}}', "config", "quant_algo"),
        ('{"quantization": 8}', "config", "quantization"),
        ("{}", "config", "quantization"),
        ("{", "json", None),
    ],
)
def test_the_configuration_of_modelopt(text, code, subject, tmp_path):
    (tmp_path / "hf_quant_config.json").write_text(text)
    write_model(tmp_path, fp8_tensors(), {"model_type": "llama"})
    if code is None:
        assert open_weights(tmp_path).scheme == "fp8"
        return
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert caught.value.code == code
    assert caught.value.path == str(tmp_path / "hf_quant_config.json")
    assert subject is None or caught.value.subject == subject


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("bits", 9, "9 is not within 1 and 8"),
        ("bits", 0, "0 is not within 1 and 8"),
        ("bits", True, "an integer was expected, not a boolean"),
        ("bits", 4.5, "an integer was expected"),
        ("group_size", 0, "must not be 0"),
        ("group_size", -2, "-2 is not within -1"),
        ("group_size", "32", "an integer was expected, not a string"),
        ("sym", 1, "a boolean was expected, not an integer"),
        ("format", 1, "a string was expected, not an integer"),
        ("quant_method", None, None),
    ],
)
def test_values_of_the_configuration(key, value, why, tmp_path):
    config = {"quantization_config": {"quant_method": "fp8", key: value}}
    write_model(tmp_path, fp8_tensors(), config)
    if why is None:
        assert open_weights(tmp_path).scheme == "fp8"
        return
    with pytest.raises(WeightsError, match=why) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "config"
    assert caught.value.subject == key


@pytest.mark.parametrize("names", [["qmodel.pt"], ["pytorch_model.bin", "training_args.bin"]])
def test_pickled_weights_are_not_read(names, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(b"PK")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=f"pickled weights: .* reads `{names[0]}`") as caught:
        open_weights(tmp_path)
    assert caught.value.code == "missing_shard"
