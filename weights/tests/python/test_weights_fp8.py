"""Weights of 8-bit floats with scales beside them: fp8 and mxfp8."""

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from weights_support.scheme_models import (
    E8M0,
    TABLES,
    as_stored,
    check_values,
    write_model,
)

RNG = np.random.default_rng(21)
ATTENTION = "model.layers.3.self_attn."
EXPERTS = "model.layers.3.mlp.experts."
BLOCKS = {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8"}}


def codes(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def scale_of(kind, *shape):
    """Returns scales as stored, and their values."""
    if kind in ("U8", "F8_E8M0"):
        bits = RNG.integers(110, 140, shape, np.uint8)
        return (kind, bits), E8M0[bits]
    values = np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-9, 5, shape)).astype(np.float32)
    return as_stored(kind, values)


def spread(scale, rows, columns, n, k):
    """Repeats each scale over its block, and cuts off what is beyond the edges."""
    return np.repeat(np.repeat(scale, rows, -2), columns, -1)[..., :n, :k]


@pytest.mark.parametrize(("n", "k"), [(576, 7168), (100, 300), (1, 129), (128, 128), (257, 2049)])
@pytest.mark.parametrize("mmap", [True, False])
def test_blocks_with_ragged_edges(n, k, mmap, tmp_path):
    q = codes(n, k)
    stored, s = scale_of("F32", -(-n // 128), -(-k // 128))
    module = ATTENTION + "kv_a_proj_with_mqa."
    tensors = {module + "weight": ("F8_E4M3", q), module + "weight_scale_inv": stored}
    with open_weights(write_model(tmp_path, tensors, BLOCKS), mmap=mmap) as w:
        assert w.scheme == "fp8"
        assert list(w) == ["layers.3.attention.kv_a.weight"]
        assert w.unmapped == w.extras == []
        t = w["layers.3.attention.kv_a.weight"]
        assert (t.storage, t.scheme, t.type_name, t.code) == ("scheme", "fp8", "fp8_e4m3", 120)
        assert t.scheme_params == SchemeParams(8, 128, 128, True)
        assert t.source == module + "weight"
        assert t.nbytes == q.nbytes + s.nbytes
        check_values(t, TABLES["F8_E4M3"][q] * spread(s, 128, 128, n, k))
        parts = t.parts()
        assert list(parts) == ["weight", "weight_scale_inv"]
        np.testing.assert_array_equal(parts["weight"], q)
        np.testing.assert_array_equal(parts["weight_scale_inv"], s)
        assert t.packed().tobytes() == q.tobytes() + s.tobytes()
        for found, wanted in zip(t.sections(), (q, s), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_worked_example(tmp_path):
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", np.array([[0x3C]], np.uint8)),
        ATTENTION + "q_proj.weight_scale_inv": np.array([[0.0625]], np.float32),
    }
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w["layers.3.attention.q.weight"].numpy().tolist() == [[0.09375]]


N, K = 96, 320
SHAPES = {  # of the scales: their blocks
    (): (N, K),
    (1,): (N, K),
    (N,): (1, K),
    (N, 1): (1, K),
    (1, 1): (128, 128, N, K),
    (1, K): (N, 1),
    (3, 5): (32, 64),
    (N, 10): (1, 32),
}


@pytest.mark.parametrize("role", ["weight_scale_inv", "weight_scale", "scale", "qscale_weight"])
@pytest.mark.parametrize("shape", list(SHAPES)[:4])
def test_scales_of_tensors_and_rows(role, shape, tmp_path):
    q = codes(N, K)
    stored, s = scale_of("BF16", *shape)
    tensors = {ATTENTION + "q_proj." + role: stored, ATTENTION + "q_proj.weight": ("F8_E4M3", q)}
    with open_weights(write_model(tmp_path, tensors, shards=2)) as w:
        t = w["layers.3.attention.q.weight"]
        rows, columns = SHAPES[shape]
        assert t.scheme_params == SchemeParams(8, rows, columns, True)
        assert list(t.parts()) == ["weight", role]
        check_values(t, TABLES["F8_E4M3"][q] * s.reshape(-1, 1))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "U8", "F8_E8M0"])
@pytest.mark.parametrize("type_name", [name for name in TABLES if name != "F8_E8M0"])
@pytest.mark.parametrize("shape", [(3, 5), (N, 10), (1, K)])
def test_all_types_of_codes_and_scales(shape, type_name, kind, tmp_path):
    q = codes(N, K)
    stored, s = scale_of(kind, *shape)
    tensors = {
        ATTENTION + "q_proj.weight": (type_name, q),
        ATTENTION + "q_proj.weight_scale": stored,
    }
    with open_weights(write_model(tmp_path, tensors)) as w:
        t = w["layers.3.attention.q.weight"]
        rows, columns = SHAPES[shape]
        is_mx = columns == 32 and kind in ("U8", "F8_E8M0")
        assert t.scheme == w.scheme == ("mxfp8" if is_mx else "fp8")
        assert t.scheme_params == SchemeParams(8, rows, columns, True)
        check_values(t, TABLES[type_name][q] * spread(s, rows, columns, N, K))


def test_a_scale_that_is_no_number(tmp_path):
    q = codes(4, 64)
    bits = np.array([[127, 255]] * 4, np.uint8)
    tensors = {ATTENTION + "q_proj.weight": ("F8_E4M3", q)}
    tensors[ATTENTION + "q_proj.weight_scale"] = ("F8_E8M0", bits)
    with open_weights(write_model(tmp_path, tensors)) as w:
        values = w["layers.3.attention.q.weight"].numpy()
        assert np.isnan(values[:, 32:]).all()
        np.testing.assert_array_equal(values[:, :32], TABLES["F8_E4M3"][q[:, :32]])


@pytest.mark.parametrize(
    ("shape", "wide"),
    [((3, 5, 10), True), ((3,), False), ((1,), False), ((3, 150, 1), False), ((3, 1, 1), False)],
)
def test_stacks_of_experts(shape, wide, tmp_path):
    experts, n, k = 3, 150, 321
    q = codes(experts, n, k)
    stored, s = scale_of("F32", *shape)
    wanted = spread(s, 32, 33, n, k) if wide else s.reshape(-1, 1, 1)
    if shape == (3, 150, 1):
        wanted = s
    config = (
        BLOCKS
        if not wide
        else {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 33]}}
    )
    tensors = {
        EXPERTS + "down_proj": ("F8_E4M3", q),
        EXPERTS + "down_proj_scale_inv": stored,
    }
    with open_weights(write_model(tmp_path, tensors, config, shards=2)) as w:
        t = w["layers.3.ffn.experts.down"]
        assert t.source == EXPERTS + "down_proj"
        assert list(t.parts()) == ["down_proj", "down_proj_scale_inv"]
        check_values(t, TABLES["F8_E4M3"][q] * wanted)


@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv"])
def test_a_weight_without_a_module(scale, tmp_path):
    q = codes(4, 8)
    tensors = {"weight": ("F8_E4M3", q), scale: np.ones(1, np.float32)}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert [*w, *w.unmapped] == ["weight"]
        check_values(w["weight"], TABLES["F8_E4M3"][q])


def test_rows_are_decoded_alone(tmp_path):
    q = codes(600, 2100)
    stored, s = scale_of("F32", 5, 17)
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", q),
        ATTENTION + "q_proj.weight_scale_inv": stored,
    }
    with open_weights(write_model(tmp_path, tensors, BLOCKS)) as w:
        t = w["layers.3.attention.q.weight"]
        wanted = TABLES["F8_E4M3"][q] * spread(s, 128, 128, 600, 2100)
        for row in (0, 127, 128, 575, 599, -1):
            np.testing.assert_array_equal(t.numpy(rows=row), wanted[row])
        out = np.empty((200, 2100), np.float32)
        assert t.numpy(rows=slice(100, 300), out=out) is out
        np.testing.assert_array_equal(out, wanted[100:300])


def test_values_in_torch(tmp_path):
    torch = pytest.importorskip("torch")
    q = codes(200, 300)
    stored, _ = scale_of("F32", 2, 3)
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", q),
        ATTENTION + "q_proj.weight_scale_inv": stored,
    }
    with open_weights(write_model(tmp_path, tensors, BLOCKS)) as w:
        t = w["layers.3.attention.q.weight"]
        wanted = torch.from_numpy(t.numpy())
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            torch.testing.assert_close(
                t.torch(dtype), wanted.to(dtype), rtol=0, atol=0, equal_nan=True
            )


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2,), (200, 2), (2, 1, 3), (0, 3)])
def test_scales_that_do_not_fit(shape, tmp_path):
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", codes(301, 301)),
        ATTENTION + "q_proj.weight_scale_inv": np.ones(shape, np.float32),
    }
    with pytest.raises(
        WeightsError, match=r"F8_E4M3 \[301, 301\], weight_scale_inv F32 "
    ) as caught:
        open_weights(write_model(tmp_path, tensors, BLOCKS))
    assert caught.value.code == "quant_mismatch"
    assert caught.value.subject == ATTENTION + "q_proj.weight"


@pytest.mark.parametrize("kind", ["I32", "F64", "F8_E4M3"])
def test_scales_of_a_wrong_type(kind, tmp_path):
    bits = {"I32": np.ones((1, 1), np.int32), "F64": np.ones((1, 1))}
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", codes(3, 4)),
        ATTENTION + "q_proj.weight_scale_inv": bits.get(kind, (kind, codes(1, 1))),
    }
    with pytest.raises(WeightsError, match="scales are of the wrong type") as caught:
        open_weights(write_model(tmp_path, tensors, BLOCKS))
    assert caught.value.code == "quant_mismatch"


def test_two_spellings_of_scales(tmp_path):
    tensors = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", codes(3, 4)),
        ATTENTION + "q_proj.weight_scale_inv": np.ones((1, 1), np.float32),
        ATTENTION + "q_proj.weight_scale": np.ones((1, 1), np.float32),
    }
    with pytest.raises(WeightsError, match="both belong to it") as caught:
        open_weights(write_model(tmp_path, tensors, BLOCKS))
    assert caught.value.code == "duplicate"
    assert caught.value.subject == ATTENTION + "q_proj.weight"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ([0, 128], "0 is not within 1 and 65536"),
        ([128, 65_537], "65537 is not within 1 and 65536"),
        ([128], "two numbers"),
        ([True, 128], "an integer was expected, not a boolean"),
        ([128.0, 128], "an integer was expected"),
        (128, "an array was expected"),
    ],
)
def test_block_sizes_that_cannot_be(size, why, tmp_path):
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": size}}
    tensors = {ATTENTION + "q_proj.weight": ("F8_E4M3", codes(3, 4))}
    with pytest.raises(WeightsError, match=why) as caught:
        open_weights(write_model(tmp_path, tensors, config))
    assert caught.value.code == "config"
    assert caught.value.subject == "weight_block_size"


def fp8(name, n, k, scale):
    return {
        ATTENTION + name + "_proj.weight": ("F8_E4M3", codes(n, k)),
        ATTENTION + name + "_proj.weight_scale_inv": scale,
    }


def test_fused_rows(tmp_path):
    tensors = {}
    for name, n in (("q", 256), ("k", 128), ("v", 100)):
        tensors |= fp8(name, n, 300, scale_of("F32", -(-n // 128), 3)[1])
    with open_weights(write_model(tmp_path, tensors, BLOCKS)) as w:
        q, k, v = (w[f"layers.3.attention.{name}.weight"] for name in "qkv")
        fused = w.fuse_weights(q.name, k.name, v.name).tobytes()
        parts = [list(t.parts().values()) for t in (q, k, v)]
        assert fused == b"".join(part[i].tobytes() for i in range(2) for part in parts)
        with pytest.raises(WeightsError, match="cannot be fused") as caught:
            w.fuse_weights(v.name, q.name)  # 100 rows are not whole blocks
        assert caught.value.code == "mixed_types"


def test_blocks_that_are_not_full_may_only_be_the_last(tmp_path):
    tensors = {}
    for name, n in (("q", 256), ("k", 200), ("v", 128)):
        tensors |= fp8(name, n, 128, scale_of("F32", -(-n // 128), 1)[1])
    with open_weights(write_model(tmp_path, tensors, BLOCKS)) as w:
        q, k, v = (f"layers.3.attention.{name}.weight" for name in "qkv")
        assert w.fuse_weights(k).tobytes() == w[k].packed().tobytes()
        assert w.fuse_weights(q, v, k).nbytes == w[q].nbytes + w[v].nbytes + w[k].nbytes
        with pytest.raises(
            WeightsError, match="cannot be fused with `layers.3.attention.k"
        ) as caught:
            w.fuse_weights(q, k, v)
        assert "rows that are not whole blocks of 128" in str(caught.value)
        assert (caught.value.code, caught.value.subject) == ("mixed_types", v)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_of_whole_weights_are_not_rows(shape, tmp_path):
    tensors = fp8("q", 128, 300, scale_of("F32", *shape)[1])
    tensors |= fp8("k", 128, 300, scale_of("F32", *shape)[1])
    with open_weights(write_model(tmp_path, tensors)) as w:
        with pytest.raises(WeightsError, match="cannot be fused") as caught:
            w.fuse_weights("layers.3.attention.q.weight", "layers.3.attention.k.weight")
        assert caught.value.code == "mixed_types"


def test_what_is_not_fused(tmp_path):
    tensors = fp8("q", 256, 300, scale_of("F32", 1)[1])  # a block of 256 rows
    tensors |= fp8("k", 128, 300, scale_of("F32", 1)[1])
    tensors |= fp8("v", 128, 300, scale_of("BF16", 1)[0])
    tensors |= fp8("o", 128, 300, scale_of("F32", 128, 1)[1])
    with open_weights(write_model(tmp_path, tensors)) as w:
        for first, second in ("qk", "kv"):
            with pytest.raises(WeightsError, match="cannot be fused"):
                w.fuse_weights(*(f"layers.3.attention.{name}.weight" for name in (first, second)))
        with pytest.raises(WeightsError, match="cannot be fused"):
            w.fuse_weights("layers.3.attention.k.weight", "layers.3.attention.output.weight")


def test_scales_of_activations_are_extras(tmp_path):
    here = {
        ATTENTION + "q_proj.input_scale": np.float32([0.5]),
        ATTENTION + "k_scale": np.ones(1, np.float32),
    }
    far = "model.layers.10.self_attn.k_scale"  # no quantised weights are beside it
    tensors = fp8("q", 128, 300, scale_of("F32", 1)[1]) | here
    tensors |= {far: np.ones(1, np.float32), "model.other": np.ones(1, np.float32)}
    with open_weights(write_model(tmp_path / "bare", tensors)) as w:
        assert sorted(w.extras) == sorted(here)
        assert w.unmapped == [far, "model.other"]
        assert w[ATTENTION + "k_scale"].numpy().tolist() == [1.0]
    with open_weights(write_model(tmp_path / "stated", tensors, BLOCKS)) as w:
        assert sorted(w.extras) == sorted([*here, far])
        assert w.unmapped == ["model.other"]


def test_plain_models_have_no_extras(tmp_path):
    tensors = {"model.k_scale": np.float32([2.0]), "model.norm.weight": np.float32([2.0])}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert (w.extras, w.scheme, w.unmapped) == ([], None, ["model.k_scale"])
        assert w["output_norm.weight"].parts()["weight"].tolist() == [2.0]


def test_blocks_that_are_not_those_of_the_configuration(tmp_path):
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    tensors = {}
    for layer in range(12):
        q = f"model.layers.{layer}.self_attn.q_proj."
        tensors[q + "weight"] = ("F8_E4M3", codes(96, 320))
        tensors[q + "weight_scale_inv"] = scale_of("F32", 3, 5)[1]
    with open_weights(write_model(tmp_path, tensors, config)) as w:
        assert w["layers.3.attention.q.weight"].scheme_params == SchemeParams(8, 32, 64, True)
        assert w.warnings == [
            "model.layers.N.self_attn.q_proj.weight_scale_inv (12 tensors): weight_block_size is"
            " 64 x 64, but the scales' shapes are those of blocks of 32 x 64"
        ]
