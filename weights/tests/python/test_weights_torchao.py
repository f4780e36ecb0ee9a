"""Weights of torchao, which describes them in the metadata of the file."""

import json
import sys
import time

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from support import memory
from weights_support.comfy import tiled
from weights_support.scheme_models import (
    E2M1,
    E4M3,
    E8M0,
    TABLES,
    as_stored,
    check_values,
    write_model,
)

RNG = np.random.default_rng(24)
DOWN = "model.layers.3.mlp.down_proj."
NAME = "layers.3.ffn.down.weight"
CONFIG = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
N, K = 96, 320


def codes(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def floats(kind, *shape):
    """Returns scales as stored, and their values."""
    values = np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-9, 3, shape)).astype(np.float32)
    return as_stored(kind, values)


def torch_type(name):
    return {"_type": "torch.dtype", "_data": name}


def spread(scale, shape):
    """Repeats each scale over its block."""
    for axis, (size, scales) in enumerate(zip(shape, scale.shape, strict=True)):
        scale = np.repeat(scale, size // scales, axis)
    return scale


def describe(kind, parts, **data):
    return {"_type": kind, "_data": data, "_tensor_data_names": parts}


def model(folder, parts, description, *, older=False, shards=1):
    """Writes a model of one weight."""
    prefix = DOWN + ("weight:" if older else "_weight_")
    text = description if isinstance(description, str) else json.dumps(description)
    metadata = {
        "format": "pt",
        "tensor_names": json.dumps([DOWN + "weight"]),
        DOWN + "weight": text,
    }
    tensors = {prefix + part: stored for part, stored in parts.items()}
    return write_model(folder, tensors, CONFIG, metadata=metadata, shards=shards)


def check(w, type_name, params, wanted, parts):
    assert (w.scheme, list(w), w.unmapped, w.warnings) == ("torchao", [NAME], [], [])
    t = w[NAME]
    assert (t.storage, t.scheme, t.type_name, t.code) == ("scheme", "torchao", type_name, 131)
    assert t.scheme_params == params
    assert t.source == DOWN + "weight"
    check_values(t, wanted)
    assert list(t.parts()) == parts


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("kind", ["F32", "BF16"])
@pytest.mark.parametrize("scales", [(N, 1), (1, 1), (3, 5), (N, 10)])
def test_float8(scales, kind, older, tmp_path):
    q = codes(N, K)
    stored, s = floats(kind, *scales)
    block = [N // scales[0], K // scales[1]]
    description = describe("Float8Tensor", ["qdata", "scale"], block_size=block, mm_config=None)
    model(tmp_path, {"qdata": ("F8_E4M3", q), "scale": stored}, description, older=older, shards=2)
    for mmap in (True, False):
        with open_weights(tmp_path, mmap=mmap) as w:
            params = SchemeParams(8, *block, True)
            check(w, "torchao_fp8", params, E4M3[q] * spread(s, q.shape), ["qdata", "scale"])


@pytest.mark.parametrize("scales", [(3, 1, 1), (3, 40, 1), (3, 5, 6), (1, 1, 1), ()])
def test_float8_of_experts(scales, tmp_path):
    q = codes(3, 40, 96)
    stored, s = floats("F32", *scales)
    description = describe("Float8Tensor", ["qdata", "scale"])
    model(tmp_path, {"qdata": ("F8_E5M2", q), "scale": stored}, description)
    with open_weights(tmp_path) as w:
        wide = spread(s.reshape(scales or (1, 1, 1)), q.shape)
        check_values(w[NAME], TABLES["F8_E5M2"][q] * wide)


@pytest.mark.parametrize("zero", [None, "int8", "int32"])
@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("scales", [(N, 1), (1, 1), (N, 10), (N, 20)])
def test_integers(scales, kind, zero, tmp_path):
    q = codes(N, K).view(np.int8)
    stored, s = floats(kind, *scales)
    z = np.zeros(scales, np.int8) if zero is None else RNG.integers(-9, 9, scales).astype(zero)
    parts = {"qdata": q, "scale": stored} | ({} if zero is None else {"zero_point": z})
    block = [N // scales[0], K // scales[1]]
    for i, type_name in enumerate(["Int8Tensor", "IntxUnpackedToInt8Tensor"]):
        description = describe(
            type_name, list(parts), block_size=block, dtype=torch_type("bfloat16")
        )
        model(tmp_path / str(i), parts, description, shards=len(parts))
        difference = q.astype(np.float32) - spread(z, q.shape).astype(np.float32)
        with open_weights(tmp_path / str(i)) as w:
            params = SchemeParams(8, *block, zero is None)
            wanted = difference * spread(s, q.shape)
            check(w, "torchao_int8", params, wanted, list(parts))


def test_scales_of_activations_stay_with_the_weight(tmp_path):
    q = codes(N, K).view(np.int8)
    stored, s = floats("F32", N, 1)
    parts = {"qdata": q, "scale": stored, "act_quant_scale": np.ones((1, 1), np.float32)}
    description = describe("Int8Tensor", list(parts), block_size=[1, K])
    with open_weights(model(tmp_path, parts, description)) as w:
        params = SchemeParams(8, 1, K, True)
        check(w, "torchao_int8", params, q.astype(np.float32) * s, list(parts))


@pytest.mark.parametrize("shape", [(K,), (1, K)])
def test_a_scale_of_the_inputs_multiplies_the_columns(shape, tmp_path):
    """torchao multiplies the inputs by act_pre_scale."""
    q = codes(N, K).view(np.int8)
    stored, s = floats("BF16", N, 1)
    pre = RNG.uniform(0.1, 4, shape).astype(np.float32)
    parts = {"qdata": q, "scale": stored, "act_pre_scale": pre}
    description = describe("Int8Tensor", list(parts), block_size=[1, K])
    with open_weights(model(tmp_path, parts, description)) as w:
        params = SchemeParams(8, 1, K, True)
        check(w, "torchao_int8", params, q.astype(np.float32) * s * pre.reshape(-1), list(parts))


def test_scales_of_activations_that_a_type_has(tmp_path):
    """A weight takes those of its type, and is refused with others."""
    packed, s = codes(N, K // 2), codes(N, K // 16)
    act = np.ones((1, 1), np.float32)
    of_int8, of_fp4 = ["act_quant_scale", "act_quant_zero_point"], ["act_per_tensor_scale"]
    fp4 = {"qdata": packed, "scale": ("F8_E4M3", s)}
    int8 = {"qdata": BYTES, "scale": ONES, "zero_point": np.zeros((N, 1), np.int8)}
    cases = [("NVFP4Tensor", fp4, of_fp4, of_int8), ("Int8Tensor", int8, of_int8, of_fp4)]
    for type_name, parts, own, others in cases:
        mine = parts | dict.fromkeys(own, act)
        with open_weights(model(tmp_path / type_name, mine, describe(type_name, []))) as w:
            assert list(w[NAME].parts()) == [*parts, *own]
        for other in others:
            wrong = model(tmp_path / other, parts | {other: act}, describe(type_name, []))
            with open_weights(wrong) as w, pytest.raises(WeightsError, match=f"`{other}` beside"):
                w[DOWN + "_weight_qdata"].numpy("float32")


@pytest.mark.parametrize("scale_type", ["F8_E8M0", "U8"])
@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2"])
def test_mxfp8(element, scale_type, tmp_path):
    type_name = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[element]
    q, s = codes(N, K), RNG.integers(110, 140, (N, K // 32), np.uint8)
    description = describe(
        "MXTensor",
        ["qdata", "scale"],
        elem_dtype=torch_type(element),
        block_size=32,
        is_swizzled_scales=False,
    )
    parts = {"qdata": (type_name, q), "scale": (scale_type, s)}
    with open_weights(model(tmp_path, parts, description, shards=2)) as w:
        wanted = TABLES[type_name][q] * spread(E8M0[s], q.shape)
        check(w, "torchao_mxfp8", SchemeParams(8, 1, 32, True), wanted, ["qdata", "scale"])


def nibbles(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize("dtype", ["U8", "F4"])
@pytest.mark.parametrize("shape", [(N, K), (3, 40, 96), (1, 32)])
def test_mxfp4(shape, dtype, tmp_path):
    packed = codes(*shape[:-1], shape[-1] // 2)
    s = RNG.integers(110, 140, (*shape[:-1], shape[-1] // 32), np.uint8)
    s.flat[-1] = 255
    description = describe(
        "MXTensor",
        ["qdata", "scale"],
        elem_dtype=torch_type("float4_e2m1fn_x2"),
        block_size=32,
        is_swizzled_scales=False,
    )
    parts = {"qdata": (dtype, packed), "scale": ("F8_E8M0", s)}
    with open_weights(model(tmp_path, parts, description)) as w:
        wanted = E2M1[nibbles(packed)] * spread(E8M0[s], shape)
        check(w, "torchao_mxfp4", SchemeParams(4, 1, 32, True), wanted, ["qdata", "scale"])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("shape", [(N, K), (3, 40, 96)])
def test_nvfp4(shape, whole, tmp_path):
    packed = codes(*shape[:-1], shape[-1] // 2)
    s = RNG.integers(1, 0x7F, (*shape[:-1], shape[-1] // 16), np.uint8)
    parts = {"qdata": packed, "scale": ("F8_E4M3", s)}
    factor = np.float32(0.0131)
    if whole:
        parts["per_tensor_scale"] = factor.reshape(())
    description = describe("NVFP4Tensor", list(parts), block_size=16, is_swizzled_scales=False)
    with open_weights(model(tmp_path, parts, description)) as w:
        scales = E4M3[s] * factor if whole else E4M3[s]
        wanted = E2M1[nibbles(packed)] * spread(scales, shape)
        check(w, "torchao_nvfp4", SchemeParams(4, 1, 16, True), wanted, list(parts))


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("shape", [(N, K), (1, 32), (130, 96), (300, 1056)])
def test_scales_in_tiles(shape, kind, tmp_path):
    group = 16 if kind == "nvfp4" else 32
    packed = codes(shape[0], shape[1] // (1 if kind == "mxfp8" else 2))
    s = RNG.integers(110, 126, (shape[0], shape[1] // group), np.uint8)
    tiles = tiled(s)
    tiles = tiles.reshape(tiles.shape[0] // 4, -1)  # as torchao writes it
    data = {"block_size": group, "is_swizzled_scales": True}
    parts = {"qdata": packed, "scale": ("F8_E8M0", tiles)}
    values = E2M1[nibbles(packed)] if kind != "mxfp8" else E4M3[packed]
    scales = E8M0[s]
    if kind == "nvfp4":
        parts |= {"scale": ("F8_E4M3", tiles), "per_tensor_scale": np.float32(0.0131).reshape(())}
        scales = E4M3[s] * np.float32(0.0131)
    elif kind == "mxfp8":
        parts["qdata"] = ("F8_E4M3", packed)
        data["elem_dtype"] = torch_type("float8_e4m3fn")
    else:
        data["elem_dtype"] = torch_type("float4_e2m1fn_x2")
    type_name = "NVFP4Tensor" if kind == "nvfp4" else "MXTensor"
    description = describe(type_name, list(parts), **data)
    with open_weights(model(tmp_path, parts, description, shards=2)) as w:
        params = SchemeParams(8 if kind == "mxfp8" else 4, 1, group, True)
        check(w, f"torchao_{kind}", params, values * spread(scales, shape), list(parts))


def test_fusing(tmp_path):
    """Scales of rows and blocks are fused; those of the whole weight are no rows."""
    vector = np.ones((1, 1), np.float32)
    q, s = ("F8_E4M3", codes(N, K)), np.ones((N, 1), np.float32)
    fp4, s4 = codes(N, K // 2), ("F8_E4M3", codes(N, K // 16))
    up = "model.layers.3.mlp.up_proj."
    for i, (kind, parts, is_fused) in enumerate(
        [
            ("Float8Tensor", {"qdata": q, "scale": s}, True),
            ("Float8Tensor", {"qdata": q, "scale": vector}, False),
            ("Float8Tensor", {"qdata": q, "scale": s, "act_quant_scale": s}, False),
            ("NVFP4Tensor", {"qdata": fp4, "scale": s4}, True),
            # One row, so that the shapes alone could be those of a scale for each row.
            (
                "NVFP4Tensor",
                {
                    "qdata": fp4[:1],
                    "scale": ("F8_E4M3", s4[1][:1]),
                    "per_tensor_scale": vector[0],
                },
                False,
            ),
        ]
    ):
        text = json.dumps(describe(kind, list(parts)))
        tensors = {p + "_weight_" + n: stored for p in (DOWN, up) for n, stored in parts.items()}
        metadata = {"tensor_names": "[]", DOWN + "weight": text, up + "weight": text}
        folder = write_model(tmp_path / str(i), tensors, CONFIG, metadata=metadata)
        with open_weights(folder) as w:
            names = (NAME, NAME.replace("down", "up"))
            if is_fused:
                assert len(bytes(w.fuse_weights(*names))) == 2 * len(bytes(w[NAME].packed()))
                continue
            with pytest.raises(WeightsError) as caught:
                w.fuse_weights(*names)
            assert caught.value.code == "mixed_types"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc counts the bytes read")
@pytest.mark.parametrize("kind", ["Float8Tensor", "Int8Tensor", "NVFP4Tensor"])
def test_a_row_reads_only_its_scales(kind, tmp_path):
    rows, groups = 512, 512
    parts = {
        "Float8Tensor": {"qdata": ("F8_E4M3", codes(rows, groups))},
        "Int8Tensor": {
            "qdata": codes(rows, groups).view(np.int8),
            "zero_point": np.zeros((rows, groups), np.int8),
        },
        "NVFP4Tensor": {"qdata": codes(rows, groups * 8)},
    }[kind]
    scale = np.ones((rows, groups), np.float32)
    parts["scale"] = ("F8_E4M3", codes(rows, groups)) if kind == "NVFP4Tensor" else scale
    model(tmp_path, parts, describe(kind, list(parts)))

    with open_weights(tmp_path, mmap=False) as w:
        before = memory.bytes_read()
        w[NAME].numpy(rows=400)
        assert memory.bytes_read() - before < 64 << 10


REFUSED = {
    "torchao Int4Tensor": describe("Int4Tensor", ["qdata", "scale"]),
    "torchao Int4TilePackedTo4dTensor": describe("Int4TilePackedTo4dTensor", ["qdata"]),
    "torchao Int4PlainInt32Tensor": describe("Int4PlainInt32Tensor", ["qdata"]),
    r"torchao os\.system": describe("os.system", ["qdata"]),
    r"torchao MXTensor \(fp6_e3m2\)": describe(
        "MXTensor", ["qdata"], elem_dtype=torch_type("fp6_e3m2"), block_size=32
    ),
    r"torchao MXTensor \(blocks of 1 x 40\)": describe(
        "MXTensor", ["qdata"], elem_dtype=torch_type("float4_e2m1fn_x2"), block_size=40
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_are_refused_by_name(name, tmp_path):
    packed = codes(N, K // 2)
    parts = {"qdata": packed, "scale": ("F8_E8M0", codes(N, K // 40))}
    with open_weights(model(tmp_path, parts, REFUSED[name])) as w:
        t = w[DOWN + "_weight_qdata"]
        np.testing.assert_array_equal(t.numpy(), packed)
        with pytest.raises(WeightsError, match=f'scheme "{name}" is not decoded') as caught:
            t.numpy("float32")
        assert caught.value.code == "unsupported"


@pytest.mark.parametrize("kind", ["MXTensor", "NVFP4Tensor"])
def test_stacks_with_scales_in_tiles_are_refused_by_name(kind, tmp_path):
    data = {"elem_dtype": torch_type("float4_e2m1fn_x2"), "is_swizzled_scales": True}
    parts = {"qdata": codes(2, 4, 16), "scale": ("F8_E4M3", codes(2, 32, 16))}
    text = rf'scheme "torchao {kind} \(swizzled scales of a stack\)" is not decoded'
    with open_weights(model(tmp_path, parts, describe(kind, [], **data))) as w:
        with pytest.raises(WeightsError, match=text) as caught:
            w[DOWN + "_weight_qdata"].numpy("float32")
        assert caught.value.code == "unsupported"


def test_without_a_description(tmp_path):
    parts = {DOWN + "_weight_qdata": codes(4, 8).view(np.int8)}
    parts[DOWN + "_weight_scale"] = np.ones((4, 1), np.float32)
    with open_weights(write_model(tmp_path, parts)) as w:
        assert w.unmapped == sorted(parts)


@pytest.mark.timed
def test_the_metadata_is_searched_once(tmp_path):
    """The time to open is no product of the keys of the metadata and the tensors."""
    tensors = {f"model.layers.{i:05}.x._weight_qdata": np.zeros(1, np.int8) for i in range(5000)}

    def seconds(folder, keys):
        metadata = {f"model.layers.{i:07}.weight": "" for i in range(keys)}
        write_model(folder, tensors, metadata=metadata)
        start = time.perf_counter()
        with open_weights(folder) as w:
            assert len(w.unmapped) == 5000
        return time.perf_counter() - start

    few = seconds(tmp_path / "few", 10)
    many = seconds(tmp_path / "many", 100_000)
    assert many < few + 1


FLOAT8 = describe("Float8Tensor", ["qdata", "scale"], block_size=[1, K])
INT8 = describe("Int8Tensor", ["qdata", "scale"], block_size=[1, K])
E4M3_ELEMENTS = {"elem_dtype": torch_type("float8_e4m3fn")}
F8 = ("F8_E4M3", np.zeros((N, K), np.uint8))
BYTES = np.zeros((N, K), np.int8)
ONES = np.ones((N, 1), np.float32)
BAD = {  # the parts, the description, the code, and what the error names
    "not JSON": ({"qdata": F8}, "{", "json", "description in JSON"),
    "duplicate": ({"qdata": F8}, '{"_type": 1, "_type": 2}', "duplicate", "_type"),
    "deep": ({"qdata": F8}, "[" * 17 + "]" * 17, "limit", "description"),
    "long": ({"qdata": F8}, '"' + "x" * 65536 + '"', "limit", "65538 bytes"),
    "a list": ({"qdata": F8}, "[]", "quant_mismatch", "no _type"),
    "type": ({"qdata": F8}, '{"_type": 7}', "quant_mismatch", "no _type"),
    "no scale": ({"qdata": F8}, FLOAT8, "quant_mismatch", "scale is missing: qdata F8_E4M3"),
    "codes": ({"qdata": BYTES, "scale": ONES}, FLOAT8, "quant_mismatch", "types of torchao Float8"),
    "F8": ({"qdata": F8, "scale": ONES}, INT8, "quant_mismatch", "types of torchao Int8Tensor"),
    "F8 scales": ({"qdata": F8, "scale": F8}, FLOAT8, "quant_mismatch", "types of torchao Float8"),
    "no dtype": (
        {"qdata": F8, "scale": ONES},
        describe("MXTensor", [], elem_dtype="float8_e5m2"),
        "quant_mismatch",
        "elem_dtype is no type",
    ),
    "vector": (
        {"qdata": np.zeros(K, np.int8), "scale": ONES[:1, 0]},
        INT8,
        "quant_mismatch",
        "must be a matrix",
    ),
    "scalar": (
        {"qdata": np.uint8(0).reshape(()), "scale": ("F8_E4M3", np.uint8(0).reshape(()))},
        describe("NVFP4Tensor", ["qdata", "scale"]),
        "quant_mismatch",
        "must be a matrix",
    ),
    "axes": ({"qdata": BYTES, "scale": ONES[:, 0]}, INT8, "quant_mismatch", "axes of qdata"),
    "uneven": ({"qdata": BYTES, "scale": ONES[:95]}, INT8, "quant_mismatch", "divide qdata evenly"),
    "no scales": ({"qdata": BYTES, "scale": ONES[:0]}, INT8, "quant_mismatch", "divide qdata"),
    "other blocks": (
        {"qdata": BYTES, "scale": np.ones((N, 10), np.float32)},
        INT8,
        "quant_mismatch",
        r"blocks \[1, 32\], and block_size says \[1, 320\]",
    ),
    "block 0": (
        {"qdata": BYTES, "scale": ONES},
        describe("Int8Tensor", [], block_size=[0, K]),
        "quant_mismatch",
        "block_size has no positive",
    ),
    "block true": (
        {"qdata": BYTES, "scale": ONES},
        describe("Int8Tensor", [], block_size=True),
        "quant_mismatch",
        "block_size is no positive",
    ),
    "zero_point": (
        {"qdata": BYTES, "scale": ONES, "zero_point": np.zeros((N, 2), np.int8)},
        INT8,
        "quant_mismatch",
        "zero_point must have",
    ),
    "float zero_point": (
        {"qdata": BYTES, "scale": ONES, "zero_point": ONES},
        INT8,
        "quant_mismatch",
        "types of torchao Int8Tensor",
    ),
    "swizzled": (
        {"qdata": F8, "scale": ONES},
        describe("MXTensor", [], is_swizzled_scales=1),
        "quant_mismatch",
        "is_swizzled_scales is no boolean",
    ),
    "tiles of another shape": (
        {"qdata": F8, "scale": ("F8_E8M0", np.ones((32, 16), np.uint8))},
        describe("MXTensor", [], block_size=32, is_swizzled_scales=True, **E4M3_ELEMENTS),
        "quant_mismatch",
        "not those of tiles of 128 x 4: 1536 bytes",
    ),
    "tiles of blocks of no length": (
        {"qdata": F8, "scale": ("F8_E8M0", np.ones((32, 48), np.uint8))},
        describe("MXTensor", [], block_size=0, is_swizzled_scales=True, **E4M3_ELEMENTS),
        "quant_mismatch",
        "block_size is no positive integer",
    ),
    "tiles of floats": (
        {"qdata": F8, "scale": np.ones((96, 4), np.float32)},
        describe("Float8Tensor", [], block_size=32, is_swizzled_scales=True),
        "quant_mismatch",
        "block_size says",
    ),
    "experts share": (
        {"qdata": np.zeros((4, 8, 16), np.int8), "scale": np.ones((2, 1, 1), np.float32)},
        describe("Int8Tensor", []),
        "quant_mismatch",
        "own scales",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_contradictions(case, tmp_path):
    parts, description, code, text = BAD[case]
    model(tmp_path, parts, description)
    with pytest.raises(WeightsError, match=text) as caught:
        open_weights(tmp_path)
    assert (caught.value.code, caught.value.subject) == (code, DOWN + "_weight_qdata")


def test_both_spellings_at_once(tmp_path):
    parts = {"_weight_qdata": BYTES, "_weight_scale": ONES}
    parts |= {name.replace("_weight_", "weight:"): values for name, values in parts.items()}
    metadata = {"tensor_names": "[]", DOWN + "weight": json.dumps(INT8)}
    tensors = {DOWN + name: values for name, values in parts.items()}
    write_model(tmp_path, tensors, CONFIG, metadata=metadata)
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "duplicate"
