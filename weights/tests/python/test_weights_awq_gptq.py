"""Weights that AWQ and GPTQ store transposed."""

import json
import sys
import time

import numpy as np
import pytest

from safetensors.weights import SchemeParams, WeightsError, open_weights
from support import memory
from weights_support.scheme_models import as_stored, check_values, write_model

RNG = np.random.default_rng(22)
UP = "model.layers.3.mlp.up_proj."
NAME = "layers.3.ffn.up.weight"
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def config(method, bits, group, **more):
    quant = {"quant_method": method, "bits": bits, "group_size": group, **more}
    return {"model_type": "llama", "quantization_config": quant}


def stream(codes, bits):
    """Packs codes along the last axis into words, without gaps, the lowest bits first."""
    shape = codes.shape[:-1]
    spread = codes[..., None] >> np.arange(bits) & 1
    packed = np.packbits(spread.reshape(*shape, -1).astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<i4")


def awq_words(codes):
    """Packs codes along the last axis: number n of eight is in nibble ORDER[n]."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    words = np.zeros(eights.shape[:-1], np.uint32)
    for n, nibble in enumerate(ORDER):
        words |= eights[..., n] << np.uint32(4 * nibble)
    return words.view(np.int32)


def scales_of(kind, *shape):
    """Returns scales as stored, and their values."""
    values = np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-9, 3, shape)).astype(np.float32)
    values *= RNG.choice([-1, 1], shape).astype(np.float32)
    return as_stored(kind, values)


def formula(codes, zeros, scales, group_of):
    """Returns the weight [N, K] of codes [K, N], and of zeros and scales [G, N]."""
    difference = codes.astype(np.float32) - zeros[group_of].astype(np.float32)
    return np.ascontiguousarray((difference * scales[group_of]).T)


def awq(n, k, group, kind="F16", zeros=True):
    size = k if group == -1 else group
    codes = RNG.integers(0, 16, (k, n))
    stored, s = scales_of(kind, -(-k // size), n)
    z = RNG.integers(0, 16, s.shape) if zeros else np.full(s.shape, 8)
    tensors = {UP + "qweight": awq_words(codes), UP + "scales": stored}
    if zeros:
        tensors[UP + "qzeros"] = awq_words(z)
    return tensors, formula(codes, z, s, np.arange(k) // size)


def gptq(n, k, bits, group, *, kind="F16", group_of=None, version=1):
    size = k if group == -1 else group
    codes = RNG.integers(0, 1 << bits, (k, n))
    stored, s = scales_of(kind, -(-k // size), n)
    fields = RNG.integers(0, 1 << bits, s.shape)
    fields.flat[0] = (1 << bits) - 1  # in version 1, the zero 0
    zeros = (fields + 1) % (1 << bits) if version == 1 else fields
    tensors = {
        UP + "qweight": np.ascontiguousarray(stream(codes.T, bits).T),
        UP + "qzeros": stream(fields, bits),
        UP + "scales": stored,
    }
    plain = np.arange(k) // size
    if group_of is not None:
        tensors[UP + "g_idx"] = group_of.astype(np.int32)
        plain = group_of
    return tensors, formula(codes, zeros, s, plain)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
@pytest.mark.parametrize(
    ("n", "k", "group"),
    [(8, 32, 32), (96, 576, 64), (104, 300, 100), (576, 4096, 128), (40, 96, -1)],
)
def test_awq(n, k, group, kind, mmap, tmp_path):
    tensors, wanted = awq(n, k, group, kind)
    settings = config("awq", 4, group, version="gemm", zero_point=True)
    with open_weights(write_model(tmp_path, tensors, settings, shards=2), mmap=mmap) as w:
        assert (w.scheme, list(w), w.unmapped, w.warnings) == ("awq", [NAME], [], [])
        t = w[NAME]
        assert (t.storage, t.scheme, t.type_name, t.code) == ("scheme", "awq", "awq_q4", 126)
        assert t.scheme_params == SchemeParams(4, 1, k if group == -1 else group, False)
        assert t.source == UP + "weight"
        check_values(t, wanted)
        parts = t.parts()
        assert list(parts) == ["qweight", "scales", "qzeros"]
        np.testing.assert_array_equal(parts["qweight"], tensors[UP + "qweight"])


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("n", "k", "group"), [(32, 64, 32), (96, 1120, 32), (128, 576, -1)])
def test_gptq(n, k, group, bits, mmap, tmp_path):
    for version, kind in ((1, "F16"), (2, "BF16")):
        tensors, wanted = gptq(n, k, bits, group, kind=kind, version=version)
        more = {} if version == 1 else {"checkpoint_format": "gptq_v2"}
        folder = tmp_path / str(version)
        settings = config("gptq", bits, group, sym=True, desc_act=False, **more)
        with open_weights(write_model(folder, tensors, settings, shards=3), mmap=mmap) as w:
            assert (w.scheme, list(w), w.unmapped, w.warnings) == ("gptq", [NAME], [], [])
            t = w[NAME]
            assert (t.type_name, t.code) == (f"gptq_q{bits}", 127)
            assert t.scheme_params == SchemeParams(bits, 1, k if group == -1 else group, False)
            check_values(t, wanted)
            assert list(t.parts()) == ["qweight", "scales", "qzeros"]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_with_the_group_of_each_column(bits, tmp_path):
    n, k, group = 64, 608, 32
    plain = np.arange(k) // group
    for i, group_of in enumerate((plain, RNG.permutation(plain), np.full(k, 18), plain[::-1])):
        tensors, wanted = gptq(n, k, bits, group, group_of=group_of)
        settings = config("gptq", bits, group, desc_act=True)
        with open_weights(write_model(tmp_path / str(i), tensors, settings)) as w:
            check_values(w[NAME], wanted)
            assert list(w[NAME].parts()) == ["qweight", "scales", "qzeros", "g_idx"]


def test_worked_examples(tmp_path):
    tensors = {
        UP + "qweight": np.array([[0x76543210]], np.int32),
        UP + "scales": np.ones((1, 8), np.float16),
        UP + "qzeros": np.zeros((1, 1), np.int32),
    }
    write_model(tmp_path / "awq", tensors, config("awq", 4, -1, version="GEMM"))
    with open_weights(tmp_path / "awq") as w:
        assert w[NAME].numpy().T.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    tensors[UP + "qweight"] = np.array([[0x76543210] * 8], np.int32)
    tensors[UP + "qzeros"] = np.array([[0x7654321F]], np.int32)  # fields 15, 1, 2, ... 7
    write_model(tmp_path / "gptq", tensors, config("gptq", 4, -1))
    with open_weights(tmp_path / "gptq") as w:
        values = w[NAME].numpy()
        assert values[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        assert values[1].tolist() == [-2, -1, 0, 1, 2, 3, 4, 5]


def test_awq_without_zeros_or_configuration(tmp_path):
    tensors, wanted = awq(16, 192, 64, zeros=False)
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w.warnings == []
        assert w[NAME].scheme_params == SchemeParams(4, 1, 64, True)
        check_values(w[NAME], wanted)


def test_gptq_without_a_configuration_stays_raw(tmp_path):
    tensors, _ = gptq(32, 64, 4, 32)
    with open_weights(write_model(tmp_path, tensors)) as w:
        (warning,) = w.warnings
        assert "what its zeros mean" in warning
        t = w[UP + "qweight"]
        np.testing.assert_array_equal(t.numpy(), tensors[UP + "qweight"])
        with pytest.raises(WeightsError, match='"gptq or awq" is not decoded') as caught:
            t.numpy("float32")
        assert caught.value.code == "unsupported"


OLDER = {  # the files of AutoGPTQ and AutoAWQ, and the variant that they state
    "gptq": ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False}),
    "gptq_v2": ("quantize_config.json", {"bits": 4, "checkpoint_format": "gptq_v2"}),
    "awq": ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "version": "GEMM"}),
}


@pytest.mark.parametrize("variant", OLDER)
def test_configurations_in_files_of_their_own(variant, tmp_path):
    name, settings = OLDER[variant]
    if variant == "awq":
        tensors, wanted = awq(32, 64, 32)
    else:
        tensors, wanted = gptq(32, 64, 4, 32, version=2 if variant == "gptq_v2" else 1)
    folder = write_model(tmp_path, tensors, {"model_type": "llama"})
    (folder / name).write_text(json.dumps(settings))
    with open_weights(folder) as w:
        assert (w.scheme, w.warnings) == (variant.removesuffix("_v2"), [])
        check_values(w[NAME], wanted)
    # hf_quant_config.json and config.json come first.
    (folder / "config.json").write_text(json.dumps(config("bitsandbytes", 4, 32)))
    with open_weights(folder) as w:
        assert not w[UP + "qweight"].is_decoded


def test_two_configurations_in_files_of_their_own(tmp_path):
    """Neither is preferred."""
    tensors, _ = gptq(32, 64, 4, 32)
    folder = write_model(tmp_path, tensors, {"model_type": "llama"})
    for name, settings in (OLDER["gptq"], OLDER["awq"]):
        (folder / name).write_text(json.dumps(settings))
    said = "quant_config.json is beside it, which states another method"
    with pytest.raises(WeightsError, match=said) as caught:
        open_weights(folder)
    assert (caught.value.code, caught.value.path) == (
        "config",
        str(folder / "quantize_config.json"),
    )


def test_files_of_older_configurations_in_other_models(tmp_path):
    folder = write_model(tmp_path, {UP + "weight": np.ones((2, 2), np.float32)})
    (folder / "quantize_config.json").write_text("{")
    with open_weights(folder) as w:
        assert w.warnings == []


@pytest.mark.parametrize(
    ("text", "code"), [("{", "json"), ("[]", "config"), ('{"bits": 9}', "config")]
)
def test_older_configurations_that_are_none(text, code, tmp_path):
    tensors, _ = gptq(32, 64, 4, 32)
    folder = write_model(tmp_path, tensors)
    (folder / "quantize_config.json").write_text(text)
    with pytest.raises(WeightsError) as caught:
        open_weights(folder)
    assert (caught.value.code, caught.value.path) == (code, str(folder / "quantize_config.json"))


def test_marlin_in_an_older_configuration(tmp_path):
    tensors, _ = gptq(32, 64, 4, 32)
    folder = write_model(tmp_path, tensors)
    (folder / "quantize_config.json").write_text('{"bits": 4, "is_marlin_format": true}')
    with open_weights(folder) as w, pytest.raises(WeightsError, match=r"gptq \(marlin\)"):
        w[UP + "qweight"].numpy("float32")


PACKINGS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    None: "gptq",
    "auto_round": "gptq_v2",
    "auto_round:exllamav2": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_awq": "awq",
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_packings_of_auto_round(packing, tmp_path):
    variant = PACKINGS[packing]
    if variant == "awq":
        tensors, wanted = awq(32, 64, 32)
    else:
        tensors, wanted = gptq(32, 64, 4, 32, version=2 if variant == "gptq_v2" else 1)
    more = {"sym": True, "data_type": "int", "act_bits": 16}
    more |= {} if packing is None else {"packing_format": packing}
    path = write_model(tmp_path, tensors, config("auto-round", 4, 32, **more))
    with open_weights(path) as w:
        assert (w.scheme, w.warnings) == (variant.removesuffix("_v2"), [])
        assert w.config.quantization_method == "auto-round"
        check_values(w[NAME], wanted)


@pytest.mark.parametrize(
    "more",
    [
        {"packing_format": "auto_round:llm_compressor"},
        {"packing_format": "auto_round:auto_gptq", "act_bits": 8},
        {"packing_format": "auto_round:auto_gptq", "data_type": "nv_fp"},
    ],
)
def test_packings_of_auto_round_that_are_not_decoded(more, tmp_path):
    tensors, _ = gptq(32, 64, 4, 32)
    path = write_model(tmp_path, tensors, config("auto-round", 4, 32, **more))
    with open_weights(path) as w:
        with pytest.raises(WeightsError, match='"auto-round" is not decoded') as caught:
            w[UP + "qweight"].numpy("float32")
        assert caught.value.code == "unsupported"


@pytest.mark.parametrize(("backend", "version"), [("auto_round:exllamav2", 2), ("auto", 1)])
def test_the_older_name_of_the_packing(backend, version, tmp_path):
    tensors, wanted = gptq(32, 64, 4, 32, version=version)
    path = write_model(tmp_path, tensors, config("intel/auto-round", 4, 32, backend=backend))
    with open_weights(path) as w:
        check_values(w[NAME], wanted)


def test_layers_of_auto_round_with_bits_of_their_own(tmp_path):
    tensors, wanted = gptq(32, 192, 8, 64)
    more = {"packing_format": "auto_round:auto_gptq", "extra_config": {UP[:-1]: {"bits": 8}}}
    with open_weights(write_model(tmp_path, tensors, config("auto-round", 4, 128, **more))) as w:
        check_values(w[NAME], wanted)


def test_rules_for_single_modules(tmp_path):
    """With GPTQModel's `dynamic`, the shapes of a module decide."""
    tensors, wanted = gptq(32, 192, 8, 64)
    settings = config("gptq", 4, 128, dynamic={r"+:.*\.up_proj": {"bits": 8, "group_size": 64}})
    with open_weights(write_model(tmp_path, tensors, settings)) as w:
        assert w[NAME].scheme_params == SchemeParams(8, 1, 64, False)
        check_values(w[NAME], wanted)


@pytest.mark.parametrize("variant", ["gemv", "gemv_fast", "marlin", "exllama", "ipex", "Llm-Awq"])
def test_other_variants_of_awq_are_refused(variant, tmp_path):
    tensors, _ = awq(16, 64, 32)
    check_refused(tmp_path, tensors, config("awq", 4, 32, version=variant), variant.lower())


@pytest.mark.parametrize("variant", ["marlin", "bitblas", "gptq_p"])
def test_other_variants_of_gptq_are_refused(variant, tmp_path):
    tensors, _ = gptq(32, 64, 4, 32)
    check_refused(tmp_path, tensors, config("gptq", 4, 32, checkpoint_format=variant), variant)


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_other_widths_of_gptq_are_refused(bits, tmp_path):
    tensors, _ = gptq(32, 32 * bits, bits, 32)
    check_refused(tmp_path, tensors, config("gptq", bits, 32), f"{bits} bits")


@pytest.mark.timed
def test_the_configuration_is_searched_once(tmp_path):
    """The processor time to open is no product of the keys of the configuration and the modules."""
    one, _ = awq(8, 32, 32)
    tensors = {
        name.replace("layers.3", f"layers.{i}"): array
        for i in range(3000)
        for name, array in one.items()
    }

    def seconds(folder, keys):
        settings = config("awq", 4, 32)
        settings["quantization_config"] |= {f"{i:040}": i for i in range(keys)}
        write_model(folder, tensors, settings)
        start = time.process_time()
        with open_weights(folder) as w:
            assert len(w) == 3000
        return time.process_time() - start

    few = seconds(tmp_path / "few", 10)
    many = seconds(tmp_path / "many", 150_000)
    assert many < few + 1


def check_refused(folder, tensors, settings, what):
    with open_weights(write_model(folder, tensors, settings)) as w:
        t = w[UP + "qweight"]
        assert not t.is_decoded
        np.testing.assert_array_equal(t.numpy(), tensors[UP + "qweight"])
        method = settings["quantization_config"]["quant_method"]
        with pytest.raises(WeightsError, match=rf'scheme "{method} \({what}\)" is not') as caught:
            t.numpy("float32")
        assert (caught.value.code, caught.value.subject) == ("unsupported", UP + "qweight")


def drop(part):
    return lambda tensors, _: tensors.pop(UP + part)


def replaced(part, array):
    def change(tensors, _):
        tensors[UP + part] = array(tensors[UP + part])

    return change


def configured(**fields):
    return lambda _, settings: settings["quantization_config"].update(fields)


BAD = {  # from a weight [64, 96] in groups of 32: a change, and what the error names
    "awq config, gptq shapes": (
        "gptq",
        configured(quant_method="awq"),
        r"shapes are those of gptq, and the configuration says awq: "
        r"qweight I32 \[12, 64\], scales F16 \[3, 64\], qzeros I32 \[3, 8\]",
    ),
    "gptq config, awq shapes": (
        "awq",
        configured(quant_method="gptq", version=None),
        r"shapes are those of awq, and the configuration says gptq: qweight I32 \[96, 8\]",
    ),
    "other bits": ("gptq", configured(bits=8), "4 bits, and the configuration says 8"),
    "other group": ("gptq", configured(group_size=48), "groups of 48.* do not have 3 groups"),
    "no equal groups": ("awq", replaced("scales", lambda a: np.repeat(a, 3, 0)[:7]), "differ in"),
    "no zeros": ("gptq", drop("qzeros"), "qzeros are missing"),
    "half the zeros": ("gptq", replaced("qzeros", lambda a: a[:, :5]), "fit no number of bits"),
    "no zeros of a group": ("awq", replaced("qzeros", lambda a: a[:2]), "differ in their rows"),
    "columns": ("gptq", replaced("qweight", lambda a: a[:, :63]), "neither"),
    "too many columns": ("gptq", replaced("qweight", lambda a: np.tile(a, 2)), "differ in"),
    "empty scales": ("awq", replaced("scales", lambda a: a[:, :0]), "needs scales"),
    "no columns": ("awq", replaced("qweight", lambda a: a[:0]), "has no columns"),
    "type": ("gptq", replaced("qweight", lambda a: a.astype(np.int64)), "matrices of I32"),
    "integer scales": ("awq", replaced("scales", lambda a: a.view(np.int16)), "one of floats"),
    "vector": ("awq", replaced("qzeros", np.ravel), "matrices of I32"),
    "g_idx of awq": (
        "awq",
        lambda tensors, _: tensors.update({UP + "g_idx": np.zeros(1, np.int32)}),
        "awq has no g_idx",
    ),
    "short g_idx": (
        "gptq",
        lambda tensors, _: tensors.update({UP + "g_idx": np.zeros(95, np.int32)}),
        "one group for each column",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_contradictions(case, tmp_path):
    layout, change, text = BAD[case]
    tensors, _ = awq(64, 96, 32) if layout == "awq" else gptq(64, 96, 4, 32)
    settings = config(layout, 4, 32)
    change(tensors, settings)
    write_model(tmp_path, {k: np.ascontiguousarray(v) for k, v in tensors.items()}, settings)
    with pytest.raises(WeightsError, match=text) as caught:
        open_weights(tmp_path)
    assert (caught.value.code, caught.value.subject) == ("quant_mismatch", UP + "qweight")


@pytest.mark.parametrize("field", ["bits", "group_size"])
@pytest.mark.parametrize("value", [True, 4.5, "4", 0, 1 << 40, -2])
def test_parameters_of_the_configuration(field, value, tmp_path):
    tensors, _ = awq(64, 96, 32)
    settings = config("awq", 4, 32)
    settings["quantization_config"][field] = value
    write_model(tmp_path, tensors, settings)
    with pytest.raises(WeightsError) as caught:
        open_weights(tmp_path)
    assert (caught.value.code, caught.value.subject) == ("config", field)


@pytest.mark.parametrize("bad", [3, -1, -(1 << 31), (1 << 31) - 1])
def test_a_group_outside_is_found_when_decoding(bad, tmp_path):
    groups = np.arange(96) // 32
    groups[77] = bad
    tensors, _ = gptq(64, 96, 4, 32, group_of=np.arange(96) // 32)
    tensors[UP + "g_idx"] = groups.astype(np.int32)
    with open_weights(write_model(tmp_path, tensors, config("gptq", 4, 32))) as w:
        with pytest.raises(WeightsError, match=f"column 77 is in group {bad} of 3") as caught:
            w[NAME].numpy(rows=0)
        assert (caught.value.code, caught.value.subject) == ("quant_mismatch", UP + "g_idx")


def test_columns_are_not_fused(tmp_path):
    one, _ = awq(16, 64, 32)
    other = {name.replace("up_proj", "gate_proj"): values for name, values in one.items()}
    with open_weights(write_model(tmp_path, one | other, config("awq", 4, 32))) as w:
        with pytest.raises(WeightsError) as caught:
            w.fuse_weights(NAME, NAME.replace("up", "gate"))
        assert caught.value.code == "mixed_types"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc counts the bytes read")
@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_a_few_rows_read_only_their_columns(layout, tmp_path):
    # A row of words is longer than the gap that reads join.
    n, k = 1 << 20, 32
    words = (k, n // 8) if layout == "awq" else (k // 8, n)
    tensors = {
        UP + "qweight": np.zeros(words, np.int32),
        UP + "scales": np.ones((1, n), np.float16),
        UP + "qzeros": np.zeros((1, n // 8), np.int32),
    }
    write_model(tmp_path, tensors, config(layout, 4, -1))

    with open_weights(tmp_path, mmap=False) as w:
        before = memory.bytes_read()
        w[NAME].numpy(rows=slice(777, 785))
        assert memory.bytes_read() - before < 64 << 10
