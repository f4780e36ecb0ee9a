"""Weights of compressed-tensors: packed and plain integers, 4-bit floats."""

import itertools

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from weights_support import ct
from weights_support.scheme_models import (
    E2M1,
    E4M3,
    E8M0,
    as_stored,
    check_values,
    write_model,
)

RNG = np.random.default_rng(22)
M = "model.layers.3.self_attn.q_proj."
NAME = "layers.3.attention.q.weight"
EXPERTS = "model.layers.3.mlp.experts.gate_up_proj."


def config(weights=None, targets=("Linear",), format="pack-quantized", **more):
    group = {"targets": list(targets), "weights": weights or {}}
    quant = {"quant_method": "compressed-tensors", "format": format}
    return {"quantization_config": quant | {"config_groups": {"group_0": group}} | more}


def ints(bits, strategy="group", group_size=None, symmetric=True):
    return {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": symmetric,
    }


def codes(bits, *shape):
    return RNG.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape).astype(np.int8)


def scale_of(kind, *shape):
    """Returns scales as stored, and their values."""
    values = np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-9, 5, shape)).astype(np.float32)
    return as_stored(kind, values)


def packed(q, scale, zeros=None, shape=True, **more):
    """Returns the parts of a module."""
    parts = {"weight_packed": q, "weight_scale": scale}
    if zeros is not None:
        parts["weight_zero_point"] = zeros
    if shape is not True and shape is not None:
        parts["weight_shape"] = np.array(shape, np.int64)
    return {M + role: part for role, part in (parts | more).items()}


def error_of(folder, tensors, settings, *, at_open=True):
    write_model(folder, tensors, settings)
    with pytest.raises(WeightsError) as caught:
        decode(folder, at_open)
    return caught.value


def decode(folder, fails_at_open):
    with open_weights(folder) as w:
        assert not fails_at_open
        w[NAME].numpy()


SHAPES = [(1, 32), (8, 256), (64, 100), (576, 512), (96, 4096)]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_packed_integers(n, k, bits, tmp_path):
    q = codes(bits, n, k)
    group = 32 if k % 32 == 0 else 25
    kinds = itertools.islice(itertools.cycle(("F16", "BF16", "F32")), bits % 3, None)
    for i, (strategy, symmetric) in enumerate(
        itertools.product(("group", "channel", "tensor"), (True, False))
    ):
        kind = next(kinds)
        shape = {"group": (n, k // group), "channel": (n, 1), "tensor": (1,)}[strategy]
        stored, s = scale_of(kind, *shape)
        z = codes(bits, *shape)
        parts = packed(ct.pack_dense(q, bits), stored, shape=(n, k))
        if not symmetric:
            zeros = z if strategy == "tensor" else ct.pack_zeros(z, bits)
            parts[M + "weight_zero_point"] = zeros
        settings = config(ints(bits, strategy, group if strategy == "group" else None, symmetric))
        folder = write_model(tmp_path / str(i), parts, settings, shards=2)
        if (k, bits) == (100, 3):  # 10 words with gaps or without
            with pytest.raises(WeightsError, match="may or may not have gaps"):
                open_weights(folder)
            continue
        with open_weights(folder, mmap=i % 2 == 0) as w:
            assert list(w) == [NAME]
            assert w.scheme == "ct_int"
            assert w.unmapped == w.extras == w.warnings == []
            t = w[NAME]
            assert (t.scheme, t.type_name, t.code) == ("ct_int", f"int{bits}", 124)
            rows = n if strategy == "tensor" else 1
            columns = group if strategy == "group" else k
            assert t.scheme_params == SchemeParams(bits, rows, columns, symmetric)
            wide = (n, 1) if strategy == "tensor" else shape
            s, z = np.broadcast_to(s, wide), np.broadcast_to(z, wide)
            check_values(t, ct.integers(q, s, 0 if symmetric else z))
            assert list(t.parts())[:2] == ["weight_packed", "weight_scale"]


def test_a_worked_example(tmp_path):
    words = np.array([[0x87654321]], np.uint32).view(np.int32)
    parts = packed(words, np.ones((1, 1), np.float16), shape=(1, 8))
    with open_weights(write_model(tmp_path, parts, config(ints(4, "channel")))) as w:
        assert w[NAME].numpy().tolist() == [[-7, -6, -5, -4, -3, -2, -1, 0]]


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_older_form_has_gaps_in_words(bits, symmetric, tmp_path):
    n, k, group = 37, 320, 64
    q, z = codes(bits, n, k), codes(bits, n, k // group)
    stored, s = scale_of("F16", n, k // group)
    words = ct.pack_words(q, bits)
    assert words.shape != ct.pack_dense(q, bits).shape
    parts = packed(words, stored, shape=(n, k))
    if not symmetric:
        zeros = ct.pack_words(z.T, bits).T
        parts[M + "weight_zero_point"] = np.ascontiguousarray(zeros)
    with open_weights(
        write_model(tmp_path, parts, config(ints(bits, "group", group, symmetric)))
    ) as w:
        check_values(w[NAME], ct.integers(q, s, 0 if symmetric else z))


def test_words_that_may_or_may_not_have_gaps_are_refused(tmp_path):
    q = codes(3, 2, 12)  # 36 bits, or 10 and 2 codes
    parts = packed(ct.pack_dense(q, 3), np.ones((2, 1), np.float16), shape=(2, 12))
    error = error_of(tmp_path, parts, config(ints(3, "channel")))
    assert error.code == "quant_mismatch"
    assert "12 codes of 3 bits may or may not have gaps" in str(error)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_columns_in_another_order(bits, symmetric, tmp_path):
    n, k, group = 6, 4096 + 128, 128
    q, z = codes(bits, n, k), codes(bits, n, k // group)
    stored, s = scale_of("BF16", n, k // group)
    order = RNG.permutation(np.arange(k, dtype=np.int32) // group).astype(np.int32)
    for i, g_idx in enumerate((order, np.full(k, -1, np.int32))):
        parts = packed(ct.pack_dense(q, bits), stored, shape=(n, k), weight_g_idx=g_idx)
        if not symmetric:
            parts[M + "weight_zero_point"] = ct.pack_zeros(z, bits)
        settings = config(ints(bits, "group", group, symmetric) | {"actorder": "group"})
        with open_weights(write_model(tmp_path / str(i), parts, settings, shards=3)) as w:
            group_of = None if i else order
            check_values(w[NAME], ct.integers(q, s, 0 if symmetric else z, group_of))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda g: g.__setitem__(5, 4), "has the group 4 of 4"),
        (lambda g: g.__setitem__(5, -1), "has the group -1 of 4"),
        (lambda g: g.__setitem__(5, 3), "gives 31 columns to group 0, not 32"),
    ],
)
def test_groups_of_columns_are_checked_before_they_are_used(change, found, tmp_path):
    g_idx = np.repeat(np.arange(4, dtype=np.int32), 32)
    change(g_idx)
    q = ct.pack_dense(codes(4, 2, 128), 4)
    parts = packed(q, np.ones((2, 4), np.float16), shape=(2, 128), weight_g_idx=g_idx)
    error = error_of(tmp_path, parts, config(ints(4, "group", 32)), at_open=False)
    assert error.code == "quant_mismatch"
    assert found in str(error)
    assert "weight_packed I32 [2, 16]" in str(error)


def test_stacks_of_experts(tmp_path):
    e, n, k, group = 3, 37, 96, 32
    q, z = codes(4, e, n, k), codes(4, e, n, k // group)
    stored, s = scale_of("F16", e, n, k // group)
    parts = {
        EXPERTS + "weight_packed": ct.pack_dense(q, 4),
        EXPERTS + "weight_scale": stored,
        EXPERTS + "weight_zero_point": ct.pack_zeros(z, 4),
        EXPERTS + "weight_shape": np.array([e, n, k], np.int64),
    }
    settings = config(ints(4, "group", group, False))
    with open_weights(write_model(tmp_path, parts, settings, shards=2)) as w:
        (name,) = w
        check_values(w[name], ct.integers(q, s, z))


def test_bits_without_a_configuration(tmp_path):
    q = codes(5, 4, 96)
    words, scales = ct.pack_dense(q, 5), np.ones((4, 3), np.float16)
    with open_weights(write_model(tmp_path / "a", packed(words, scales, shape=(4, 96)))) as w:
        assert w[NAME].scheme_params == SchemeParams(5, 1, 32, True)
        check_values(w[NAME], q.astype(np.float32))
    # Without a shape, nothing states the bits.
    with open_weights(write_model(tmp_path / "b", packed(words, scales))) as w:
        (name,) = [name for name in w.unmapped if name.endswith("weight_packed")]
        assert not w[name].is_decoded
        np.testing.assert_array_equal(w[name].numpy(), words)
        with pytest.raises(WeightsError, match="whose bits nothing states") as caught:
            w[name].numpy("float32")
        assert caught.value.code == "unsupported"
        assert len(w.warnings) == 1
        assert "packed integers whose bits nothing states" in w.warnings[0]


def test_groups_of_modules(tmp_path):
    bits = {"q_proj": 4, "k_proj": 8, "v_proj": 3, "o_proj": 5}
    groups = {
        "group_0": {"targets": ["re:.*self_attn\\.(q|x)_proj$"], "weights": ints(4, "group", 32)},
        "group_1": {"targets": ["model.layers.3.self_attn.k_proj"], "weights": ints(8, "channel")},
        "group_2": {"targets": ["Linear"], "weights": ints(5, "channel")},
        "group_3": {
            "targets": ["re:model\\.layers\\.[0-9]+.*v_proj"],
            "weights": ints(3, "channel"),
        },
    }
    settings = config()
    settings["quantization_config"]["config_groups"] = groups
    tensors, wanted = {}, {}
    for module, width in bits.items():
        q = codes(width, 6, 64)
        groups_of_row = 2 if module == "q_proj" else 1
        stored, s = scale_of("F16", 6, groups_of_row)
        prefix = f"model.layers.3.self_attn.{module}."
        tensors |= {
            prefix + "weight_packed": ct.pack_dense(q, width),
            prefix + "weight_scale": stored,
            prefix + "weight_shape": np.array([6, 64], np.int64),
        }
        name = f"layers.3.attention.{module[0] if module != 'o_proj' else 'output'}.weight"
        wanted[name] = ct.integers(q, s)
    with open_weights(write_model(tmp_path, tensors, settings)) as w:
        assert sorted(w) == sorted(wanted)
        for name, values in wanted.items():
            check_values(w[name], values)


@pytest.mark.parametrize("pattern", ["re:^(?!.*experts).*", "re:.*\\w+", "re:(a", "re:a{2}"])
def test_other_patterns_are_named(pattern, tmp_path):
    q = ct.pack_dense(codes(4, 2, 64), 4)
    parts = packed(q, np.ones((2, 1), np.float16), shape=(2, 64))
    settings = config(ints(4, "channel"), targets=[pattern])
    with open_weights(write_model(tmp_path / "one", parts, settings)) as w:
        assert w[NAME].scheme_params == SchemeParams(4, 1, 64, True)  # the only group has all
    other = {"targets": ["re:.*"], "weights": ints(8, "channel")}
    settings["quantization_config"]["config_groups"]["group_1"] = other
    settings["quantization_config"]["config_groups"]["group_1"]["targets"] = ["re:zz"]
    error = error_of(tmp_path / "two", parts, settings)
    assert error.code == "unsupported"
    assert f"the pattern `{pattern[3:]}`" in str(error)


def test_long_names_are_not_matched_with_patterns(tmp_path):
    groups = [
        {"targets": [target], "weights": ints(4, "channel")} for target in ("re:.*x", "re:.*y")
    ]
    settings = config()
    settings["quantization_config"]["config_groups"] = {str(i): g for i, g in enumerate(groups)}
    q = ct.pack_dense(codes(4, 2, 64), 4)
    tensors = {
        size: {
            "x" * size + ".weight_packed": q,
            "x" * size + ".weight_scale": np.ones((2, 1), np.float16),
            "x" * size + ".weight_shape": np.array([2, 64], np.int64),
        }
        for size in (1024, 1025)
    }
    with open_weights(write_model(tmp_path / "fits", tensors[1024], settings)) as w:
        assert w.unmapped == ["x" * 1024 + ".weight"]
    error = error_of(tmp_path / "long", tensors[1025], settings)
    assert (error.code, error.subject) == ("limit", "targets")
    assert "a name of 1025 bytes" in str(error)


Q4 = ct.pack_dense(codes(4, 2, 128), 4)
ONES = np.ones((2, 4), np.float16)
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("parts", "settings", "found"),
    [
        (packed(Q4, ONES), GPTQ, "has the method `gptq`, the tensors are those of compressed"),
        (packed(Q4, ONES), config(ints(4), format="int-quantized"), "format `int-quantized`"),
        (packed(Q4, ONES), config(ints(4) | {"type": "float"}), "has floats, the tensors"),
        (packed(Q4, ONES), config(ints(4, group_size=64)), "has groups of 64"),
        (packed(Q4, ONES, shape=(2, 128)), config(ints(8)), "128 codes of 8 bits"),
        (packed(Q4, ONES, shape=(2, 120)), config(ints(4)), "120 codes of 4 bits"),
        (packed(Q4, ONES, shape=(2, 1 << 62)), config(ints(4)), "weight_shape says [2, 46116"),
        (packed(Q4, ONES, shape=(2, -5)), config(ints(4)), "weight_shape says [2, -5]"),
        (packed(Q4, ONES, shape=[1] * 99), config(ints(4)), "a number for each axis"),
        (packed(Q4, ONES), config(ints(4, symmetric=False)), "is not symmetric, but there is no"),
        (packed(Q4, ONES[:1]), config(ints(4)), "scales must have the weight's rows"),
        (packed(Q4, ONES.astype(np.int16)), config(ints(4)), "scales are of the wrong type"),
        (packed(Q4, np.ones((2, 0), np.float16)), config(ints(4)), "the weight's rows"),
        (packed(Q4[0], ONES), config(ints(4)), "must be a matrix"),
        (packed(Q4, ONES, Q4), config(ints(4)), "zero points do not fit"),
        (packed(Q4, ONES, ONES), config(ints(4)), "zero points do not fit"),
        (packed(Q4, np.ones((2, 3), np.float16)), config(ints(4)), "are not equal groups"),
        (packed(Q4, ONES), config(ints(3)), "weight_shape is missing"),
        (packed(Q4, ONES, weight_g_idx=np.zeros(127, np.int32)), config(ints(4)), "weight_g_idx"),
        (packed(Q4, ONES, weight_g_idx=np.zeros(128, np.int64)), config(ints(4)), "weight_g_idx"),
    ],
)
def test_tensors_that_contradict_each_other_or_the_configuration(parts, settings, found, tmp_path):
    error = error_of(tmp_path, parts, settings)
    assert error.code == "quant_mismatch"
    assert error.subject == M + "weight_packed"
    assert found in str(error)


def test_a_shape_that_contradicts_the_tensors(tmp_path):
    for i, shape in enumerate(([3, 128], [2, 128, 1], [2, 127], [128])):
        parts = packed(Q4, ONES, shape=shape)
        error = error_of(tmp_path / str(i), parts, config(ints(4, group_size=32)), at_open=False)
        assert error.code == "quant_mismatch"
        assert f"weight_shape says {shape}, the tensors 2 x 128" in str(error)


def test_zero_points_although_the_configuration_has_none(tmp_path):
    z = codes(4, 2, 4)
    parts = packed(Q4, ONES, ct.pack_zeros(z, 4))
    with open_weights(write_model(tmp_path, parts, config(ints(4)))) as w:
        assert not w[NAME].scheme_params.symmetric
        assert len(w.warnings) == 1
        assert "has zero points, although the configuration is symmetric" in w.warnings[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_bits", 9),
        ("num_bits", 0),
        ("num_bits", True),
        ("num_bits", 4.0),
        ("num_bits", "4"),
        ("group_size", 0),
        ("group_size", -2),
        ("group_size", 1 << 40),
        ("symmetric", 1),
        ("strategy", 3),
        ("type", []),
        ("block_structure", [0, 128]),
        ("block_structure", [128, 1 << 20]),
        ("weights", 3),
        ("config_groups", 3),
        ("targets", "Linear"),
        ("targets", [1]),
    ],
)
def test_values_of_the_configuration_are_checked(key, value, tmp_path):
    settings = config(ints(4, group_size=32))
    group = settings["quantization_config"]["config_groups"]["group_0"]
    if key == "config_groups":
        group = settings["quantization_config"]
    (group if key in ("targets", "weights", "config_groups") else group["weights"])[key] = value
    error = error_of(tmp_path, packed(Q4, ONES), settings)
    assert error.code == "config"
    assert error.subject == key


def test_long_patterns_are_refused(tmp_path):
    settings = config(ints(4), targets=["re:" + "a" * 20_000])
    error = error_of(tmp_path, packed(Q4, ONES), settings)
    assert error.code == "limit"


def test_a_part_of_two_spellings(tmp_path):
    parts = packed(Q4, ONES) | {M + "weight": codes(8, 2, 128)}
    error = error_of(tmp_path, parts, config(ints(4)))
    assert error.code == "duplicate"


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_integers_of_eight_bits(n, k, tmp_path):
    q = codes(8, n, k)
    scales = {"group": (n, k // 4), "channel": (n, 1), "row": (n,), "tensor": (1,), "scalar": ()}
    kinds = itertools.cycle(("F16", "BF16", "F32"))
    zeros = itertools.cycle((None, np.int8, np.int32))
    for i, (strategy, shape) in enumerate(list(scales.items()) * 2):
        zero_type = next(zeros)
        stored, s = scale_of(next(kinds), *shape)
        z = codes(8, *shape)
        parts = {M + "weight": q, M + "weight_scale": stored}
        if zero_type is not None:
            parts[M + "weight_zero_point"] = z.astype(zero_type)
        group_size = 4 if strategy == "group" else None
        weights = ints(8, strategy, group_size, zero_type is None)
        settings = config(weights, format="int-quantized")
        with open_weights(write_model(tmp_path / str(i), parts, settings, shards=2)) as w:
            t = w[NAME]
            assert (t.scheme, t.type_name, t.code) == ("int8", "int8", 125)
            assert t.scheme_params.symmetric == (zero_type is None)
            wide = shape if len(shape) == 2 else (-1, 1)
            s, z = s.reshape(wide), z.reshape(wide)
            s, z = np.broadcast_to(s, (n, s.shape[1])), np.broadcast_to(z, (n, s.shape[1]))
            check_values(t, ct.integers(q, s, 0 if zero_type is None else z))


def test_experts_of_eight_bits(tmp_path):
    q = codes(8, 3, 5, 70)
    stored, s = scale_of("F32", 3, 5, 1)
    parts = {EXPERTS + "weight": q, EXPERTS + "weight_scale": stored}
    with open_weights(write_model(tmp_path, parts)) as w:
        (name,) = w
        check_values(w[name], ct.integers(q, s))


@pytest.mark.parametrize(
    ("parts", "settings", "found"),
    [
        ({"weight_scale": ONES[:, :3]}, None, "the scales' shape does not fit"),
        ({"weight_zero_point": ONES}, None, "zero points must be"),
        ({"weight_zero_point": np.zeros((2, 3), np.int8)}, None, "zero points must be"),
        ({}, config(ints(8, symmetric=False)), "is not symmetric, but there is no"),
        ({}, config(ints(8) | {"type": "float"}), "has floats"),
    ],
)
def test_integers_of_eight_bits_that_contradict_each_other(parts, settings, found, tmp_path):
    parts = {"weight": codes(8, 2, 128), "weight_scale": ONES} | parts
    error = error_of(tmp_path, {M + role: part for role, part in parts.items()}, settings)
    assert error.code == "quant_mismatch"
    assert found in str(error)


FP4_SHAPES = [(1, 32), (8, 256), (576, 512), (96, 4096)]


def nvfp4_parts(q, scales, global_scale):
    parts = {"weight_packed": ct.pack_nibbles(q), "weight_scale": ("F8_E4M3", scales)}
    return {
        M + role: part for role, part in (parts | {"weight_global_scale": global_scale}).items()
    }


@pytest.mark.parametrize(("n", "k"), [*FP4_SHAPES, (64, 112)])
def test_nvfp4(n, k, tmp_path):
    q = RNG.integers(0, 16, (n, k), np.uint8)
    scales = RNG.integers(0, 256, (n, k // 16), np.uint8)
    for i, shape in enumerate(((1,), ())):
        global_scale = RNG.uniform(0.1, 900, shape).astype(np.float32)
        wanted = E2M1[q] * ct.spread(E4M3[scales] / global_scale, k, 16)
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        settings = config(weights, format="nvfp4-pack-quantized")
        parts = nvfp4_parts(q, scales, global_scale)
        parts[M + "input_global_scale"] = np.ones(1, np.float32)
        folder = write_model(tmp_path / str(i), parts, settings, shards=2)
        with open_weights(folder, mmap=i == 0) as w:
            t = w[NAME]
            assert (t.scheme, t.type_name, t.code) == ("nvfp4", "nvfp4", 123)
            assert t.scheme_params == SchemeParams(4, 1, 16, True)
            assert list(t.parts()) == ["weight_packed", "weight_scale", "weight_global_scale"]
            assert w.extras == [M + "input_global_scale"]
            assert w.unmapped == w.warnings == []
            check_values(t, wanted)


@pytest.mark.parametrize(("n", "k"), FP4_SHAPES)
@pytest.mark.parametrize("kind", ["U8", "F8_E8M0"])
def test_mxfp4(n, k, kind, tmp_path):
    q = RNG.integers(0, 16, (n, k), np.uint8)
    scales = RNG.integers(0, 256, (n, k // 32), np.uint8)
    scales[0, 0] = 255
    scales.flat[-1] = 0
    parts = {"weight_packed": ct.pack_nibbles(q), "weight_scale": (kind, scales)}
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    settings = config(weights, format="mxfp4-pack-quantized")
    tensors = {M + role: part for role, part in parts.items()}
    with open_weights(write_model(tmp_path, tensors, settings, shards=2)) as w:
        t = w[NAME]
        assert (t.scheme, t.type_name, t.code) == ("mxfp4", "mxfp4", 122)
        assert t.scheme_params == SchemeParams(4, 1, 32, True)
        with np.errstate(under="ignore", over="ignore"):
            wanted = E2M1[q] * ct.spread(E8M0[scales], k, 32)
        check_values(t, wanted)


@pytest.mark.parametrize("kind", ["U8", "I8", "F4"])
@pytest.mark.parametrize("role", ["weight_scale", "scale"])
def test_mxfp4_by_its_scales(role, kind, tmp_path):
    e, n, k = 2, 5, 96
    q = RNG.integers(0, 16, (e, n, k), np.uint8)
    scales = RNG.integers(100, 140, (e, n, k // 32), np.uint8)
    parts = {
        EXPERTS + "weight": (kind, ct.pack_nibbles(q)),
        EXPERTS + role: ("F8_E8M0", scales),
    }
    settings = {"quantization_config": {"quant_method": "fp8"}}
    with open_weights(write_model(tmp_path, parts, settings)) as w:
        (name,) = w
        check_values(w[name], E2M1[q] * ct.spread(E8M0[scales], k, 32))


FP4_CODES = RNG.integers(0, 16, (4, 64), np.uint8)
FP4_SCALES = np.full((4, 4), 0x38, np.uint8)
ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("parts", "settings", "found"),
    [
        ({"weight_global_scale": None}, None, "weight_global_scale is missing"),
        ({"weight_global_scale": np.ones(2, np.float32)}, None, "one global scale in F32"),
        ({"weight_global_scale": np.ones(0, np.float32)}, None, "one global scale in F32"),
        ({"weight_global_scale": np.ones(1, np.float16)}, None, "one global scale in F32"),
        ({"weight_scale": ("F8_E4M3", FP4_SCALES[:, :3])}, None, "a scale for each 16 values"),
        ({"weight_scale": ("F8_E4M3", FP4_SCALES[:3])}, None, "a scale for each 16 values"),
        ({"weight_scale": ("U8", FP4_SCALES)}, None, "a scale for each 32 values"),
        ({}, config({"num_bits": 8, "type": "float"}, format=""), "has 8 bits, the tensors have 4"),
        ({}, config({"num_bits": 4, "type": "int"}, format=""), "has integers, the tensors"),
        ({}, config(format="pack-quantized"), "has the format `pack-quantized`"),
    ],
)
def test_floats_that_contradict_each_other(parts, settings, found, tmp_path):
    tensors = nvfp4_parts(FP4_CODES, FP4_SCALES, ONE) | {M + role: p for role, p in parts.items()}
    tensors = {name: part for name, part in tensors.items() if part is not None}
    error = error_of(tmp_path, tensors, settings)
    assert error.code == "quant_mismatch"
    assert found in str(error)


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_floats_of_eight_bits(strategy, format, tmp_path):
    n, k = 100, 130
    q = RNG.integers(0, 256, (n, k), np.uint8)
    shape = {"tensor": (1,), "channel": (n, 1), "block": (4, 3)}[strategy]
    stored, s = scale_of("BF16", *shape)
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True}
    if strategy == "block":
        weights["block_structure"] = [32, 48]
    parts = {M + "weight": ("F8_E4M3", q), M + "weight_scale": stored}
    settings = config(weights, format=format)
    with open_weights(write_model(tmp_path, parts, settings, shards=2)) as w:
        assert w.scheme == "fp8"
        assert w.warnings == []
        if strategy == "block":
            s = np.repeat(ct.spread(s, k, 48), 32, 0)[:n]
        check_values(w[NAME], E4M3[q] * s)


def test_mxfp8(tmp_path):
    q = RNG.integers(0, 256, (6, 96), np.uint8)
    scales = RNG.integers(100, 140, (6, 3), np.uint8)
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    parts = {M + "weight": ("F8_E4M3", q), M + "weight_scale": scales}
    settings = config(weights, format="mxfp8-quantized")
    with open_weights(write_model(tmp_path, parts, settings)) as w:
        assert w.scheme == "mxfp8"
        check_values(w[NAME], E4M3[q] * ct.spread(E8M0[scales], 96, 32))


def test_rows_are_fused_part_by_part(tmp_path):
    tensors, rows = {}, []
    for name, n in (("q", 5), ("k", 3), ("v", 3)):
        prefix = f"model.layers.3.self_attn.{name}_proj."
        codes_of_rows = RNG.integers(0, 256, (n, 32), np.uint8)
        scales = RNG.integers(110, 130, (n, 2), np.uint8)
        tensors |= {prefix + "weight_packed": codes_of_rows, prefix + "weight_scale": scales}
        rows.append((codes_of_rows, scales))
    names = [f"layers.3.attention.{name}.weight" for name in "qkv"]
    with open_weights(write_model(tmp_path, tensors)) as w:
        fused = w.fuse_weights(*names)
        wanted = b"".join(part.tobytes() for parts in zip(*rows, strict=True) for part in parts)
        assert fused.tobytes() == wanted


def write_pair(folder, parts, settings=None):
    """Writes two weights with the same parts."""
    tensors = dict(parts)
    tensors |= {part.replace("q_proj", "k_proj"): stored for part, stored in parts.items()}
    return write_model(folder, tensors, settings)


# Parts without rows, of weights with as many rows as the part has numbers on its first axis.
NOT_ROWS = {
    "weight_g_idx": (64, {"weight_g_idx": np.repeat(np.arange(2, dtype=np.int32), 32)}),
    "weight_zero_point": (1, {"weight_zero_point": np.zeros((1, 2), np.int32)}),
    "weight_shape": (2, {"weight_shape": np.array([2, 64])}),
}


@pytest.mark.parametrize("role", NOT_ROWS)
def test_parts_without_rows_are_not_fused(role, tmp_path):
    n, more = NOT_ROWS[role]
    parts = {"weight_packed": np.zeros((n, 8), np.int32), "weight_scale": np.ones((n, 2), "f4")}
    settings = config(ints(4, group_size=32, symmetric=role != "weight_zero_point"))
    path = write_pair(tmp_path, {M + part: v for part, v in (parts | more).items()}, settings)
    with open_weights(path) as w:
        assert w.scheme == "ct_int"
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(NAME, NAME.replace("q", "k"))
        assert caught.value.code == "mixed_types"


def test_global_scales_of_single_rows_are_not_fused(tmp_path):
    parts = nvfp4_parts(FP4_CODES[:1], FP4_SCALES[:1], ONE)
    with open_weights(write_pair(tmp_path, parts)) as w:
        assert w.scheme == "nvfp4"
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(NAME, NAME.replace("q", "k"))
        assert caught.value.code == "mixed_types"


def test_weights_of_no_rows_with_one_scale_are_not_fused(tmp_path):
    parts = {M + "weight_packed": np.zeros((0, 16), np.int32), M + "weight_scale": ONE}
    with open_weights(write_pair(tmp_path, parts, config(ints(4, "tensor")))) as w:
        assert w[NAME].shape == (0, 128)
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(NAME, NAME.replace("q", "k"))
        assert caught.value.code == "mixed_types"


def test_global_scales_are_not_fused(tmp_path):
    tensors = {}
    for name in "qk":
        prefix = f"model.layers.3.self_attn.{name}_proj."
        parts = nvfp4_parts(FP4_CODES, FP4_SCALES, ONE)
        tensors |= {prefix + part.removeprefix(M): data for part, data in parts.items()}
    names = [f"layers.3.attention.{name}.weight" for name in "qk"]
    with open_weights(write_model(tmp_path, tensors)) as w:
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(*names)
        assert caught.value.code == "mixed_types"


SPARSE = {
    "sparse-bitmask": ("compressed", "bitmask", "row_offsets", "shape"),
    "sparse-24-bitmask": ("compressed", "bitmask", "shape"),
    "marlin-24": ("weight_packed", "meta", "scale_packed"),
}


@pytest.mark.parametrize("scheme", SPARSE)
def test_sparse_formats_are_refused_by_name(scheme, tmp_path):
    parts = {M + role: np.arange(8, dtype=np.int32).reshape(2, 4) for role in SPARSE[scheme]}
    settings = config(ints(4), format=scheme)
    with open_weights(write_model(tmp_path, parts, settings)) as w:
        assert sorted(w.unmapped) == sorted(parts)
        for name, stored in parts.items():
            np.testing.assert_array_equal(w[name].numpy(), stored)
            with pytest.raises(WeightsError) as caught:
                w[name].numpy("float32")
            assert caught.value.code == "unsupported"
            assert f'scheme "{scheme}" ({M[:-1]})' in str(caught.value)
