"""Weights of bitsandbytes: NF4, FP4 and INT8."""

import json

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from weights_support.scheme_models import check_values, write_model

RNG = np.random.default_rng(23)
Q = "model.layers.3.self_attn.q_proj."
NAME = "layers.3.attention.q.weight"
CONFIG = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453]
NF4 += [-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0]
NF4 += [0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224]
NF4 += [0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
NF4 = np.array(NF4, np.float32)
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([FP4, -FP4])
TABLES = {"nf4": NF4, "fp4": FP4}


def text_of(state):
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


def positive(*shape):
    return np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-9, 3, shape)).astype(np.float32)


def four_bits(shape, kind="nf4", block=64, *, nested=False):
    """Returns the tensors of a weight, the state that they have as text, and the values."""
    count = int(np.prod(shape))
    codes = RNG.integers(0, 16, count + count % 2)
    blocks = -(-count // block)
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": shape}
    tensors = {
        Q + "weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8).reshape(-1, 1),
        Q + "weight.quant_map": TABLES[kind],
    }
    if nested:
        inner = RNG.integers(0, 256, blocks).astype(np.uint8)
        table = np.sort(RNG.uniform(-1, 1, 256)).astype(np.float32)
        outer = positive(-(-blocks // 256))
        offset = np.float32(0.1234567)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32"}
        state["nested_offset"] = float(offset)
        scales = table[inner] * np.repeat(outer, 256)[:blocks] + offset
        tensors |= {
            Q + "weight.absmax": inner,
            Q + "weight.nested_absmax": outer,
            Q + "weight.nested_quant_map": table,
        }
    else:
        scales = tensors[Q + "weight.absmax"] = positive(blocks)
    tensors[f"{Q}weight.quant_state.bitsandbytes__{kind}"] = text_of(state)
    values = TABLES[kind][codes[:count]] * np.repeat(scales, block)[:count]
    return tensors, state, values.reshape(shape)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize(
    ("shape", "block"),
    [((1, 32), 64), ((96, 100), 64), ((63, 101), 32), ((576, 512), 128), ((3, 40, 72), 4096)],
)
def test_four_bits(shape, block, kind, nested, mmap, tmp_path):
    tensors, _, wanted = four_bits(shape, kind, block, nested=nested)
    with open_weights(write_model(tmp_path, tensors, CONFIG, shards=3), mmap=mmap) as w:
        assert (w.scheme, list(w), w.unmapped, w.warnings) == ("bnb_" + kind, [NAME], [], [])
        t = w[NAME]
        assert (t.storage, t.type_name) == ("scheme", "bnb_" + kind)
        assert t.code == {"nf4": 128, "fp4": 129}[kind]
        assert t.scheme_params == SchemeParams(4, 1, block, True)
        check_values(t, wanted)
        names = ["weight", "absmax", "quant_map"]
        names += ["nested_absmax", "nested_quant_map"] * nested
        assert list(t.parts()) == [*names, "quant_state"]
        np.testing.assert_array_equal(t.parts()["absmax"], tensors[Q + "weight.absmax"])


def test_rows_that_start_anywhere(tmp_path):
    """Rows of an odd length: they start within bytes and blocks."""
    tensors, _, wanted = four_bits((40, 99), nested=True)
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        for row in range(40):
            found = w[NAME].numpy(rows=row).ravel()
            np.testing.assert_array_equal(found, wanted[row])


def test_codes_may_be_stored_as_another_type(tmp_path):
    """As for FSDP, which needs one type for all tensors."""
    tensors, _, wanted = four_bits((16, 64))
    bits = tensors[Q + "weight"].reshape(-1).view(np.uint16).reshape(-1, 1)
    tensors[Q + "weight"] = ("BF16", bits)
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        check_values(w[NAME], wanted)


def test_four_bits_without_a_configuration(tmp_path):
    tensors, _, wanted = four_bits((16, 64), "fp4")
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w.warnings == []
        check_values(w[NAME], wanted)


def int8(n, k):
    codes = RNG.integers(-127, 128, (n, k)).astype(np.int8)
    codes[0, 0] = -128
    scb = positive(n)
    values = codes.astype(np.float32) * scb[:, None] * np.float32(7.874015718698502e-3)
    return {Q + "weight": codes, Q + "SCB": scb}, values


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("shape", [(1, 33), (96, 100), (40, 4100)])
@pytest.mark.parametrize("weight_format", [False, True])
def test_int8(shape, weight_format, mmap, tmp_path):
    tensors, wanted = int8(*shape)
    if weight_format:
        tensors[Q + "weight_format"] = np.zeros((), np.uint8)
    with open_weights(write_model(tmp_path, tensors, CONFIG, shards=2), mmap=mmap) as w:
        assert (w.scheme, list(w), w.unmapped, w.warnings) == ("bnb_int8", [NAME], [], [])
        t = w[NAME]
        assert (t.type_name, t.code) == ("bnb_int8", 130)
        assert t.scheme_params == SchemeParams(8, 1, shape[1], True)
        check_values(t, wanted)
        assert list(t.parts()) == ["weight", "SCB"] + ["weight_format"] * weight_format


def test_other_formats_of_int8_are_refused(tmp_path):
    tensors, _ = int8(4, 64)
    tensors[Q + "weight_format"] = np.full((), 2, np.uint8)
    with open_weights(write_model(tmp_path, tensors, CONFIG)) as w:
        with pytest.raises(WeightsError, match=r"format 0 \(rows\) only, not 2") as caught:
            w[NAME].numpy()
        assert (caught.value.code, caught.value.subject) == ("unsupported", Q + "weight_format")


def test_fusing(tmp_path):
    """Rows of INT8 are stored as such; blocks of four bits may cross rows."""
    key = {n.replace("q_proj", "k_proj"): v for n, v in int8(3, 64)[0].items()}
    query, _ = int8(4, 64)
    with open_weights(write_model(tmp_path / "int8", query | key, CONFIG)) as w:
        fused = w.fuse_weights(NAME, NAME.replace("q", "k"))
        parts = [query[Q + "weight"], key[Q.replace("q_", "k_") + "weight"]]
        scales = [query[Q + "SCB"], key[Q.replace("q_", "k_") + "SCB"]]
        assert bytes(fused) == b"".join(part.tobytes() for part in parts + scales)
    tensors, _, _ = four_bits((16, 64))
    tensors |= {n.replace("q_proj", "k_proj"): v for n, v in tensors.items()}
    with open_weights(write_model(tmp_path / "nf4", tensors, CONFIG)) as w:
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(NAME, NAME.replace("q", "k"))
        assert caught.value.code == "mixed_types"


STATE = "weight.quant_state.bitsandbytes__nf4"
BAD_STATES = {  # a change of the state, and what the error names
    "type": ({"quant_type": "fp4"}, "quant_type"),
    "no type": ({"quant_type": None}, "quant_type"),
    "block 0": ({"blocksize": 0}, "blocksize"),
    "block 16": ({"blocksize": 16}, "blocksize"),
    "block 8192": ({"blocksize": 8192}, "blocksize"),
    "block 96": ({"blocksize": 96}, "blocksize"),
    "block true": ({"blocksize": True}, "blocksize"),
    "block 64.0": ({"blocksize": 64.0}, "blocksize"),
    "other block": ({"blocksize": 128}, "each block of 128 values: weight U8"),
    "no shape": ({"shape": None}, "shape is not a list"),
    "scalar": ({"shape": []}, "shape is not a list"),
    "fraction": ({"shape": [16, 64.5]}, "positive integers"),
    "negative": ({"shape": [-16, -64]}, "positive integers"),
    "zero": ({"shape": [0, 64]}, "positive integers"),
    "flag": ({"shape": [True, 1024]}, "positive integers"),
    "axes": ({"shape": [1] * 7 + [16, 64]}, "shape is not a list"),
    "larger": ({"shape": [16, 1 << 40]}, "17,592,186,044,416 values, the weight 512 bytes"),
    "overflow": ({"shape": [1 << 62, 64]}, "does not fit in 64 bits"),
    "nested": ({"nested_blocksize": 256, "nested_offset": 0.5}, "disagree about nested scales"),
    "nested block": ({"nested_blocksize": 0}, "nested_blocksize"),
    "no offset": ({"nested_blocksize": 256}, "nested_offset"),
    "offset": ({"nested_blocksize": 256, "nested_offset": float("inf")}, "nested_offset"),
    "huge offset": ({"nested_blocksize": 256, "nested_offset": 1e39}, "nested_offset"),
    "beyond F32": ({"nested_blocksize": 256, "nested_offset": -1e300}, "nested_offset .* in F32"),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_states_that_contradict(case, tmp_path):
    change, text = BAD_STATES[case]
    tensors, state, _ = four_bits((16, 64))
    tensors[Q + STATE] = text_of(state | change)
    write_model(tmp_path, tensors, CONFIG)
    with pytest.raises(WeightsError, match=text) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "quant_mismatch"
    assert caught.value.subject in (Q + STATE, Q + "weight")


BAD_TEXTS = {
    "empty": (b"", "json"),
    "no json": (b'{"quant_type": nf4}', "json"),
    "not UTF-8": (b'{"quant_type": "\xff"}', "json"),
    "twice": (b'{"blocksize": 64, "blocksize": 32}', "duplicate"),
    "deep": (b"[" * 17 + b"]" * 17, "limit"),
    "deepest": (b"[" * 60000, "limit"),
    "a list": (b"[]", "quant_mismatch"),
    "long": (b'{"x": "' + b"y" * 65536 + b'"}', "quant_mismatch"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_texts_that_are_no_state(case, tmp_path):
    text, code = BAD_TEXTS[case]
    tensors, _, _ = four_bits((16, 64))
    tensors[Q + STATE] = np.frombuffer(text, np.uint8)
    write_model(tmp_path, tensors, CONFIG)
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert caught.value.code == code
    assert caught.value.subject in (Q + STATE, Q + "weight")


BAD_TENSORS = {  # a tensor, what replaces it, whether scales are nested, and what the error names
    "no absmax": ("absmax", None, False, "missing"),
    "no quant_map": ("quant_map", None, False, "missing"),
    "no weight": ("", None, False, "missing"),
    "short absmax": ("absmax", np.ones(15, np.float32), False, "absmax must have"),
    "absmax of bytes": ("absmax", np.ones(64, np.uint8), False, "absmax must have"),
    "short weight": ("", np.ones((511, 1), np.uint8), False, "the weight 511 bytes"),
    "short map": ("quant_map", NF4[:15], False, "quant_map must be"),
    "half a map": ("quant_map", NF4.astype(np.float16), False, "quant_map must be"),
    "no nested_absmax": ("nested_absmax", None, True, "disagree about nested"),
    "no nested map": ("nested_quant_map", None, True, "disagree about nested"),
    "nested_absmax": ("nested_absmax", np.ones(2, np.float32), True, "nested_absmax must"),
    "nested map": ("nested_quant_map", np.ones(255, np.float32), True, "nested_quant_map must"),
    "state": ("quant_state.bitsandbytes__nf4", np.ones(9, np.int8), False, "must be U8"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_that_contradict(case, tmp_path):
    part, array, nested, text = BAD_TENSORS[case]
    tensors, _, _ = four_bits((16, 64), nested=nested)
    name = (Q + "weight." + part).rstrip(".")
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    write_model(tmp_path, tensors, CONFIG)
    with pytest.raises(WeightsError, match=text) as caught:
        open_weights(tmp_path)
    assert caught.value.code == "quant_mismatch"


def test_tables_are_compared_when_decoding(tmp_path):
    tensors, _, _ = four_bits((16, 64), nested=True)
    other = NF4.copy()
    other[3] = np.nan
    infinite = tensors[Q + "weight.nested_quant_map"].copy()
    infinite[200] = -np.inf
    for i, (part, array, text) in enumerate(
        [
            ("quant_map", FP4, "value 0 is 0.0.* that of nf4 is -1.0"),
            ("quant_map", other, "value 3 is nan"),
            ("nested_quant_map", infinite, "value 200 is not finite"),
        ]
    ):
        folder = write_model(tmp_path / str(i), tensors | {Q + "weight." + part: array}, CONFIG)
        with open_weights(folder) as w:
            with pytest.raises(WeightsError, match=text) as caught:
                w[NAME].numpy(rows=3)
            assert caught.value.code == "quant_mismatch"
            assert caught.value.subject == Q + "weight." + part


def test_int8_that_contradicts(tmp_path):
    tensors, _ = int8(4, 64)
    for i, change in enumerate(
        [
            {Q + "SCB": np.ones(5, np.float32)},
            {Q + "SCB": np.ones(4, np.float16)},
            {Q + "weight": np.ones(256, np.int8)},
            {Q + "weight": np.ones((4, 64), np.uint8)},
            # Four bytes for each of these rows are 4, modulo 2^64.
            {Q + "weight": np.ones(((1 << 62) + 1, 0), np.int8), Q + "SCB": np.ones(1, np.float32)},
        ]
    ):
        write_model(tmp_path / str(i), tensors | change, CONFIG)
        with pytest.raises(WeightsError, match="matrix of I8, and SCB") as caught:
            open_weights(tmp_path / str(i))
        assert (caught.value.code, caught.value.subject) == ("quant_mismatch", Q + "weight")


@pytest.mark.parametrize("array", [np.zeros(2, np.uint8), np.zeros(0, np.uint8), np.int8([0])])
def test_formats_that_are_no_byte(array, tmp_path):
    write_model(tmp_path, int8(4, 64)[0] | {Q + "weight_format": array}, CONFIG)
    with pytest.raises(WeightsError, match="weight_format must be one U8: weight I8") as caught:
        open_weights(tmp_path)
    assert (caught.value.code, caught.value.subject) == ("quant_mismatch", Q + "weight")


@pytest.mark.parametrize("make", [lambda: four_bits((16, 64))[0], lambda: int8(4, 64)[0]])
def test_a_configuration_of_another_scheme(make, tmp_path):
    config = {"quantization_config": {"quant_method": "awq"}}
    write_model(tmp_path, make(), config)
    with pytest.raises(
        WeightsError, match="quant_method is `awq`, but its tensors are those of bnb_"
    ):
        open_weights(tmp_path)
