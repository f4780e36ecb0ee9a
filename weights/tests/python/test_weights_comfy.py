"""Weights of ComfyUI's files: markers, and the formats of comfy-kitchen."""

import json

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, convert, open_weights
from weights_support import comfy
from weights_support.scheme_models import (
    E4M3,
    E5M2,
    bf16_bits,
    bf16_values,
    check_values,
    write_model,
)

RNG = np.random.default_rng(31)
M = "model.diffusion_model.blocks.0.attn.q."
NAME = M + "weight"


def codes(*shape, high=256):
    return RNG.integers(0, high, shape, np.uint8)


def integers(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def scales(*shape):
    return RNG.uniform(1e-3, 2, shape).astype(np.float32)


def exponents(*shape):
    return RNG.integers(110, 140, shape, np.uint8)


def bytes_of(text):
    return np.array([int(byte, 16) for byte in text.split()], np.uint8)


def model(folder, parts, metadata=None, **marker):
    tensors = {M + role: stored for role, stored in parts.items()}
    if marker:
        tensors[M + "comfy_quant"] = comfy.marker(**marker)
    return write_model(folder, tensors, metadata=metadata)


def check(w, scheme, type_name, params, wanted, parts):
    t = w[NAME]
    assert (t.storage, t.scheme, t.type_name) == ("scheme", scheme, type_name)
    assert t.scheme_params == params
    assert list(t.parts()) == list(parts)
    assert w.warnings == []
    assert [w[name].source for name in [*w, *w.unmapped]] == [M + "weight"]
    check_values(t, wanted)


# The layouts


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["F8_E4M3", "U8"])
@pytest.mark.parametrize(
    "shape", [(16, 16), (128, 64), (144, 80), (272, 256), (16, 4160), (3, 144, 80)]
)
def test_nvfp4(shape, kind, mmap, tmp_path):
    q, s = codes(*shape, high=16), codes(*shape[:-1], shape[-1] // 16, high=120)
    scale_2 = scales(shape[0]) if len(shape) == 3 else scales()
    parts = {
        "weight": comfy.high_first(q),
        "weight_scale": (kind, comfy.tiled(s)),
        "weight_scale_2": scale_2,
    }
    wanted = comfy.nvfp4(q, s, scale_2[:, None, None] if len(shape) == 3 else scale_2)
    with open_weights(model(tmp_path, parts, format="nvfp4"), mmap=mmap) as w:
        assert w[NAME].code == 132
        check(w, "comfy", "comfy_nvfp4", SchemeParams(4, 1, 16, True), wanted, parts)
        assert w[NAME].packed().nbytes == sum(part.nbytes for part in w[NAME].parts().values())


def test_nvfp4_by_hand(tmp_path):
    """Codes 0 to 7, -1 to -7 and 7, all with the scale 4, and 0.5 for all."""
    q = np.zeros((16, 8), np.uint8)
    q[0] = bytes_of("01 23 45 67 9a bc de f7")
    s = np.zeros((128, 4), np.uint8)
    s[0, 0] = 0x48  # byte 0 of the tile
    parts = {"weight": q, "weight_scale": ("F8_E4M3", s), "weight_scale_2": np.float32(0.5)}
    with open_weights(model(tmp_path, parts, format="nvfp4")) as w:
        row = [0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12, 12]
        assert w[NAME].numpy(rows=0).tolist() == row


PLACES = {(0, 0): 0, (0, 1): 1, (1, 0): 16, (32, 0): 4, (33, 2): 22, (127, 3): 511}
PLACES |= {(0, 4): 512, (128, 0): 1024}


@pytest.mark.parametrize("place", PLACES)
def test_the_order_of_scales_in_tiles(place, tmp_path):
    row, block = place
    s = np.zeros((256, 8), np.uint8)
    s.reshape(-1)[PLACES[place]] = 0x38  # 1.0
    q = np.full((256, 64), 0x22, np.uint8)
    parts = {"weight": q, "weight_scale": ("F8_E4M3", s), "weight_scale_2": np.float32(1)}
    with open_weights(model(tmp_path, parts, format="nvfp4")) as w:
        values = w[NAME].numpy()
        assert values.sum() == 16
        assert (values[row, 16 * block : 16 * block + 16] == 1).all()


def test_nvfp4_with_scales_of_the_inputs(tmp_path):
    q, s, pre = codes(32, 64, high=16), codes(32, 4, high=120), scales(64)
    parts = {
        "weight": comfy.high_first(q),
        "weight_scale": ("F8_E4M3", comfy.tiled(s)),
        "weight_scale_2": np.float32(0.25),
        "pre_quant_scale": pre,
    }
    with open_weights(model(tmp_path, parts, format="nvfp4")) as w:
        wanted = comfy.nvfp4(q, s, 0.25) * pre
        check(w, "comfy", "comfy_nvfp4", SchemeParams(4, 1, 16, True), wanted, parts)


@pytest.mark.parametrize(("rows", "shown"), [(130, 130), (144, 144), (128, 144), (145, 144)])
def test_the_bias_tells_the_padding(rows, shown, tmp_path):
    q, s = codes(144, 80, high=16), codes(144, 5, high=120)
    parts = {
        "weight": comfy.high_first(q),
        "weight_scale": ("F8_E4M3", comfy.tiled(s)),
        "weight_scale_2": np.float32(1),
        "bias": scales(rows),
    }
    with open_weights(model(tmp_path, parts, format="nvfp4")) as w:
        check_values(w[NAME], comfy.nvfp4(q, s, 1)[:shown])


@pytest.mark.parametrize("kind", ["F8_E8M0", "U8"])
@pytest.mark.parametrize("shape", [(32, 32), (160, 96), (288, 512), (2, 64, 4224)])
def test_mxfp8(shape, kind, tmp_path):
    q, s = codes(*shape), exponents(*shape[:-1], shape[-1] // 32)
    parts = {"weight": ("F8_E4M3", q), "weight_scale": (kind, comfy.tiled(s))}
    with open_weights(model(tmp_path, parts, format="mxfp8"), mmap=False) as w:
        wanted = comfy.mxfp8(q, s)
        check(w, "comfy", "comfy_mxfp8", SchemeParams(8, 1, 32, True), wanted, parts)


@pytest.mark.parametrize("size", [4, 16, 64, 256, 1024])
@pytest.mark.parametrize("scale", [(), (1,), (5,), (5, 1)])
def test_rotated_int8(scale, size, tmp_path):
    q, s = integers(5, 3072), scales(*scale)
    parts = {"weight": q, "weight_scale": s}
    fields = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": size}
    with open_weights(model(tmp_path, parts, **fields)) as w:
        wanted = comfy.rotated(q, s.reshape(-1, 1), size)
        check(w, "comfy", "comfy_int8_rotated", SchemeParams(8, 1, 3072, True), wanted, parts)


@pytest.mark.parametrize("scale", [(2, 5), (2, 5, 1)])
def test_rotated_experts(scale, tmp_path):
    q, s = integers(2, 5, 512), scales(*scale)
    parts = {"weight": q, "weight_scale": s}
    fields = {"params": {"convrot": True}, "format": "int8_tensorwise"}
    with open_weights(model(tmp_path, parts, **fields)) as w:
        check_values(w[NAME], comfy.rotated(q, s.reshape(2, 5, 1), 256))


def test_rotations_by_hand(tmp_path):
    q = bytes_of("7f 7f 7f 81 20 40 5f 7f").view(np.int8).reshape(2, 4)
    parts = {"weight": q, "weight_scale": np.float32([0.0314960629] * 2)}
    fields = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 4}
    with open_weights(model(tmp_path / "int8", parts, **fields)) as w:
        wanted = np.float32([[8, 0, 0, 0], [1.0078740, 2.0157480, 2.9921260, 4]])
        np.testing.assert_allclose(w[NAME].numpy(), wanted, rtol=1e-7)
    parts = {"weight": bytes_of("1f 80").reshape(1, 2), "weight_scale": np.float32([0.25])}
    with open_weights(
        model(tmp_path / "w4a4", parts, format="convrot_w4a4", convrot_groupsize=4)
    ) as w:
        assert w[NAME].numpy().tolist() == [[1, -1, -1.25, -0.75]]
    parts = {
        "weight": bytes_of("10 32 e4").reshape(1, 3),
        "weight_s_rel": ("F8_E4M3", bytes_of("40").reshape(1, 1)),
        "weight_s_channel": np.float32([1]),
    }
    fields = {"format": "asym_w4a8_int8", "group_size": 4, "convrot_groupsize": 4}
    with open_weights(model(tmp_path / "w6a8", parts, **fields)) as w:
        assert w[NAME].numpy().tolist() == [[-64, -30, 4, 38]]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(("size", "k"), [(4, 20), (256, 2304), (1024, 1024)])
def test_w4a4(size, k, kind, tmp_path):
    q, s = RNG.integers(-8, 8, (7, k)), scales(7)
    parts = {"weight": comfy.low_first(q).view(kind), "weight_scale": s}
    with open_weights(model(tmp_path, parts, format="convrot_w4a4", convrot_groupsize=size)) as w:
        wanted = comfy.rotated(q, s[:, None], size)
        check(w, "comfy", "comfy_w4a4", SchemeParams(4, 1, k, True), wanted, parts)


@pytest.mark.parametrize(("bits", "has_codebook"), [(4, False), (4, True), (6, False)])
@pytest.mark.parametrize("kind", ["F8_E4M3", "U8", "F32"])
@pytest.mark.parametrize("group", [16, 32, 96])
def test_w4a8(has_codebook, group, kind, bits, tmp_path):
    n, k = 5, 2304
    q = codes(n, k, high=1 << bits)
    if kind == "F32":
        relative = stored = scales(n, k // group) * np.float32(10)
    else:
        bits_of = codes(n, k // group, high=0x60)
        stored, relative = (kind, bits_of), E4M3[bits_of]
    s, book = scales(n), (RNG.normal(size=16) * 8).astype(np.float32)
    pack = comfy.low_first if bits == 4 else comfy.six_bits
    parts = {"weight": pack(q), "weight_s_rel": stored, "weight_s_channel": s}
    if has_codebook:
        parts["weight_codebook"] = book
    fields = {"format": "asym_w4a8_int8"} | ({} if group == 16 else {"group_size": group})
    with open_weights(model(tmp_path, parts, **fields)) as w:
        middle = 8 if bits == 4 else 32
        numbers = comfy.scaled_integers(q, relative, group, book if has_codebook else None, middle)
        wanted = comfy.rotated(numbers, s[:, None], 256)
        check(w, "comfy", "comfy_w4a8", SchemeParams(bits, 1, group, True), wanted, parts)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
@pytest.mark.parametrize(("n", "k", "group"), [(7, 128, 64), (130, 2304, 64), (4, 96, 32)])
def test_awq(n, k, group, kind, tmp_path):
    q = codes(n, k, high=16)
    s, z = scales(k // group, n), RNG.normal(size=(k // group, n)).astype(np.float32)
    if kind == "BF16":
        stored = [("BF16", bf16_bits(values)) for values in (s, z)]
        s, z = (bf16_values(bf16_bits(values)) for values in (s, z))
    else:
        stored = [values.astype({"F16": np.float16, "F32": np.float32}[kind]) for values in (s, z)]
        s, z = (values.astype(np.float32) for values in stored)
    parts = {"weight": comfy.low_first(q), "weight_scale": stored[0], "weight_zeros": stored[1]}
    fields = {"format": "awq_w4a16"} | ({} if group == 64 else {"group_size": group})
    with open_weights(model(tmp_path, parts, **fields), mmap=n == 7) as w:
        wanted = (q.astype(np.float32) - 8) * np.repeat(s.T, group, -1)
        wanted += np.repeat(z.T, group, -1)
        check(w, "comfy", "comfy_awq", SchemeParams(4, 1, group, False), wanted, parts)


@pytest.mark.parametrize("scale", ["[]", "[1]", "[N, 1]", "[N, B, 1]", "two levels"])
@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_fp8_scaled(kind, scale, tmp_path):
    """Files of ComfyUI without markers of modules: the scale is named scale_weight."""
    q = codes(48, 256, high=0x7C)
    shapes = {"[]": (), "[1]": (1,), "[N, 1]": (48, 1)}
    s = scales(*shapes.get(scale, (48, 4, 1)))
    parts = {"weight": (kind, q), "scale_weight": s, "scale_input": np.float32(1)}
    factors = s
    if scale == "two levels":
        parts["scale_weight_tensor"] = np.float32(0.03)
        factors = s * np.float32(0.03)
    if s.ndim == 3:
        factors = np.repeat(factors[..., 0], 64, -1)
    tensors = {M + role: stored for role, stored in parts.items()}
    tensors["model.scaled_fp8"] = ("F8_E4M3", codes(2))
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert (w[NAME].scheme, w.warnings, w.unmapped) == ("fp8", [], [NAME])
        check_values(w[NAME], (E4M3 if kind == "F8_E4M3" else E5M2)[q] * factors)
    notes = convert(tmp_path, tmp_path / "out.safetensors", dtype="f32")
    assert notes == [f"`{M}scale_input`: left out, because it scales activations"]


# Markers


def plain_parts(kind):
    if kind == "int8_tensorwise":
        return {"weight": integers(8, 64), "weight_scale": scales(8, 1)}
    type_name = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[kind]
    return {"weight": (type_name, codes(8, 64, high=0x7C)), "weight_scale": scales()}


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "int8_tensorwise"])
@pytest.mark.parametrize("place", ["tensor", "header", "short name", "text", "both"])
def test_formats_that_others_have_too(place, kind, tmp_path):
    parts = plain_parts(kind)
    with open_weights(model(tmp_path / "without", parts)) as w:
        wanted, scheme = w[NAME].numpy(), w[NAME].scheme
    module = M[:-1].removeprefix("model.diffusion_model.") if place == "short name" else M[:-1]
    layers = {module: kind if place == "text" else {"format": kind, "convrot": False}}
    metadata = None if place == "tensor" else comfy.header(layers)
    marker = {"format": kind} if place in ("tensor", "both") else {}
    with open_weights(model(tmp_path / "with", parts, metadata, **marker)) as w:
        assert (w[NAME].scheme, w.warnings, w.unmapped) == (scheme, [], [NAME])
        np.testing.assert_array_equal(w[NAME].numpy(), wanted)


def test_scales_of_stacked_int8(tmp_path):
    q, s = integers(3, 8, 64), scales(3, 8)
    with open_weights(model(tmp_path, {"weight": q, "weight_scale": s})) as w:
        check_values(w[NAME], q.astype(np.float32) * s[..., None])


NVFP4 = {
    "weight": codes(128, 64),
    "weight_scale": ("F8_E4M3", codes(128, 8, high=120)),
    "weight_scale_2": np.float32(1),
}


@pytest.mark.parametrize("place", ["tensor", "header", "short name"])
def test_a_format_that_is_not_known(place, tmp_path):
    """The module is refused also if only the header names it, and its tensors look like others."""
    layers = {
        M[:-1].removeprefix("model.diffusion_model.") if place == "short name" else M[:-1]: {}
    }
    (layer,) = layers
    layers[layer] = {"format": "svdquant_w4a4"}
    metadata = None if place == "tensor" else comfy.header(layers)
    marker = {"format": "svdquant_w4a4"} if place == "tensor" else {}
    path = model(tmp_path / "m", NVFP4, metadata, **marker)
    with open_weights(path) as w:
        (line,) = w.warnings
        assert 'says the format "svdquant_w4a4", which is not decoded' in line
        with pytest.raises(WeightsError, match='the format "svdquant_w4a4"') as caught:
            w[NAME].numpy("float32")
        assert (caught.value.code, caught.value.subject) == ("unsupported", NAME)
        np.testing.assert_array_equal(w[NAME].packed(), NVFP4["weight"].reshape(-1))
    with pytest.raises(WeightsError):
        convert(path, tmp_path / "out")


def test_without_a_marker_the_layout_is_modelopts(tmp_path):
    with open_weights(model(tmp_path / "modelopt", NVFP4)) as w:
        assert w[NAME].scheme == "nvfp4"
    parts = NVFP4 | {"weight": codes(16, 16), "weight_scale": ("F8_E4M3", codes(128, 4))}
    with open_weights(model(tmp_path / "tiles", parts)) as w:
        with pytest.raises(WeightsError, match="the marker `comfy_quant` is missing") as caught:
            w[NAME].numpy("float32")
        assert caught.value.code == "unsupported"


def test_markers_of_no_weight(tmp_path):
    layers = {"other": {"format": "nvfp4"}, "another": {"format": "nvfp4"}}
    parts = plain_parts("float8_e4m3fn")
    with open_weights(model(tmp_path, parts, comfy.header(layers))) as w:
        assert w.warnings == [
            "`_quantization_metadata` of the header names 2 modules without a weight: `other` ..."
        ]


def test_a_short_name_that_means_two_modules(tmp_path):
    tensors = {}
    for prefix in ("one.", "two."):
        tensors |= {prefix + "q." + role: part for role, part in NVFP4.items()}
    metadata = comfy.header({"q": {"format": "nvfp4"}})
    with open_weights(write_model(tmp_path, tensors, metadata=metadata)) as w:
        for prefix in ("one.", "two."):
            with pytest.raises(WeightsError, match="names `q`, which may be this module or") as e:
                w[prefix + "q.weight"].numpy("float32")
            assert e.value.code == "unsupported"


@pytest.mark.parametrize(
    ("parts", "fields", "found"),
    [
        ({"weight": codes(128, 64)}, {"format": "float8_e4m3fn"}, "the types are others"),
        ({}, {"format": "mxfp8"}, "the types are others"),
        ({"weight_scale_2": None}, {"format": "nvfp4"}, "weight_scale_2 is missing"),
        ({"weight_scale": None}, {"format": "nvfp4"}, "the scales are missing"),
        ({"weight_scale": ("F8_E4M3", codes(128, 4))}, {"format": "nvfp4"}, "tiles of 128 x 4"),
        ({"weight_scale_2": np.ones(3, np.float32)}, {"format": "nvfp4"}, "one weight_scale_2"),
        ({"weight": codes(128)}, {"format": "nvfp4"}, "must be a matrix"),
        ({}, {"format": "awq_w4a16"}, "the types are others"),
        (
            {"weight_scale": scales(1, 128)},
            {"format": "awq_w4a16"},
            "weight_zeros is missing",
        ),
        (
            {"weight_scale": scales(2, 64), "weight_zeros": scales(2, 128)},
            {"format": "awq_w4a16"},
            "one for each 64 columns",
        ),
        ({"weight_scale": scales(64)}, {"format": "convrot_w4a4"}, "a scale for each row"),
        ({}, {"format": 4}, "states no format"),
        ({}, {"format": "nvfp4", "convrot": 1}, "convrot is no boolean"),
        ({}, {"format": "nvfp4", "group_size": 0}, "group_size is no positive integer"),
    ],
)
def test_markers_that_the_tensors_contradict(parts, fields, found, tmp_path):
    parts = {role: part for role, part in (NVFP4 | parts).items() if part is not None}
    with pytest.raises(WeightsError, match=found) as caught:
        open_weights(model(tmp_path, parts, **fields))
    assert caught.value.code == "quant_mismatch"
    assert "comfy_quant" in str(caught.value)


@pytest.mark.parametrize("stored", [scales(64), scales(2, 64), codes(128)])
def test_scales_of_the_inputs_that_do_not_fit(stored, tmp_path):
    with pytest.raises(WeightsError, match="a float for each of 128 columns") as caught:
        open_weights(model(tmp_path, NVFP4 | {"pre_quant_scale": stored}, format="nvfp4"))
    assert caught.value.code == "quant_mismatch"


def test_two_markers_that_contradict_each_other(tmp_path):
    metadata = comfy.header({M[:-1]: {"format": "mxfp8"}})
    with pytest.raises(WeightsError, match="contradict each other: nvfp4 and mxfp8") as caught:
        open_weights(model(tmp_path, NVFP4, metadata, format="nvfp4"))
    assert caught.value.code == "quant_mismatch"
    assert caught.value.subject == NAME


@pytest.mark.parametrize("method", ["gptq", "modelopt", "compressed-tensors"])
def test_a_marker_that_the_configuration_contradicts(tmp_path, method):
    path = model(tmp_path, NVFP4, format="nvfp4")
    config = {"quantization_config": {"quant_method": method}}
    (path / "config.json").write_text(json.dumps(config))
    said = f"quant_method is `{method}`, but its tensors are those of comfy"
    with pytest.raises(WeightsError, match=said):
        open_weights(path)


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        (np.frombuffer(b"{", np.uint8), "json"),
        (np.frombuffer(b'{"format": "nvfp4", "format": "nvfp4"}', np.uint8), "duplicate"),
        (np.zeros((1 << 16) + 1, np.uint8), "limit"),
        (np.zeros((2, 2), np.uint8), "quant_mismatch"),
        (np.zeros(4, np.int8), "quant_mismatch"),
    ],
)
def test_markers_that_are_none(stored, code, tmp_path):
    tensors = {M + role: part for role, part in NVFP4.items()}
    with pytest.raises(WeightsError) as caught:
        open_weights(write_model(tmp_path, tensors | {M + "comfy_quant": stored}))
    assert caught.value.code == code


@pytest.mark.parametrize("size", [3, 8, 2, 4096, 512])
def test_rotations_that_cannot_be_undone(size, tmp_path):
    parts = {"weight": integers(4, 256), "weight_scale": scales(4)}
    fields = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": size}
    with open_weights(model(tmp_path, parts, **fields)) as w:
        with pytest.raises(WeightsError, match=f"rotations of {size} columns") as caught:
            w[NAME].numpy("float32")
        assert caught.value.code == "unsupported"


def test_a_part_that_is_left_over(tmp_path):
    parts = {"weight": integers(4, 128), "weight_correction": scales(16, 4)}
    parts |= {"weight_s_rel": scales(4, 16), "weight_s_channel": scales(4)}
    path = model(tmp_path, parts, format="asym_w4a8_int8")
    found = "like comfy, but `weight_correction` beside it"
    with open_weights(path) as w, pytest.raises(WeightsError, match=found):
        w[NAME].numpy("float32")


def test_weights_in_tiles_are_not_fused(tmp_path):
    tensors = {}
    for part in "qk":
        module = f"model.layers.0.self_attn.{part}_proj."
        tensors |= {module + role: stored for role, stored in NVFP4.items()}
        tensors[module + "comfy_quant"] = comfy.marker(format="nvfp4")
    with open_weights(write_model(tmp_path, tensors)) as w:
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights("layers.0.attention.q.weight", "layers.0.attention.k.weight")
        assert caught.value.code == "mixed_types"
