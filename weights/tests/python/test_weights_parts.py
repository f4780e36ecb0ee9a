"""A module with a tensor that no scheme uses is refused: its values may depend on it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from safetensors.weights import WeightsError, convert, open_weights
from weights_support.scheme_models import write_file, write_model

FOLDERS = Path(__file__).parents[1] / "data" / "schemes"
RNG = np.random.default_rng(11)
M = "model.layers.0.mlp.up_proj."
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1"}
KINDS = {"U8": "u1", "U32": "<u4"} | PLAIN


def codes(*shape, dtype=np.uint8):
    return RNG.integers(1, 100, shape, np.uint8).astype(dtype)


def ones(*shape):
    return np.ones(shape, np.float32)


def read(path):
    """Returns the tensors of a file, and its metadata."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    metadata = header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, stop = (end + offset for offset in entry["data_offsets"])
        kind = entry["dtype"]
        wide = {"BF16": "<u2"}.get(kind, "u1")
        array = np.frombuffer(data[begin:stop], KINDS.get(kind, wide)).reshape(entry["shape"])
        tensors[name] = array if kind in KINDS else (kind, array)
    return tensors, metadata


def with_tensor(folder, target, beside, stored):
    """Copies a model, with another tensor."""
    shutil.copytree(folder, target)
    tensors, metadata = read(target / "model.safetensors")
    assert beside not in tensors
    write_file(target / "model.safetensors", tensors | {beside: stored}, metadata)
    return target


def codes_of(folder):
    """Yields each quantised weight with the name of its codes, and how those of its parts begin."""
    with open_weights(folder) as w:
        for name in [*w, *w.unmapped]:
            if w[name].storage != "scheme":
                continue
            for _, source, *_rest in w._model.parts(name):
                for role in ("qdata", "blocks"):
                    if source.endswith(role):
                        yield name, source, source[: -len(role)]
                for role in ("weight", "weight_packed", "qweight"):
                    if source.endswith("." + role):
                        yield name, source, source[: -len(role)]
                for role in ("weight._data", "weight._data._data"):
                    if source.endswith("." + role):
                        yield name, source, source[: -len(role)]
                if source.endswith("_proj"):
                    yield name, source, source + "_"


MODULES = [
    (folder.name, name, source, stem)
    for folder in sorted(FOLDERS.iterdir())
    if folder.is_dir()
    for name, source, stem in codes_of(folder)
]


def test_every_scheme_has_a_module_here():
    assert len({folder for folder, *_ in MODULES}) == sum(f.is_dir() for f in FOLDERS.iterdir())


@pytest.mark.parametrize(("folder", "name", "source", "stem"), MODULES)
def test_a_tensor_that_no_scheme_uses(folder, name, source, stem, tmp_path):
    with open_weights(FOLDERS / folder) as w:
        others = {other: w[other].numpy() for other in w if other != name and w[other].is_decoded}
    model = with_tensor(FOLDERS / folder, tmp_path / "m", stem + "my_scale", ones(1))
    with open_weights(model) as w:
        (codes_name,) = [n for n in [*w, *w.unmapped] if w[n].source == source]
        t = w[codes_name]
        assert not t.is_decoded
        assert any("`my_scale` beside it is no part of that scheme" in line for line in w.warnings)
        with pytest.raises(WeightsError, match="`my_scale` beside it is no part") as caught:
            t.torch()
        assert (caught.value.code, caught.value.subject) == ("unsupported", source)
        with pytest.raises(WeightsError, match="`my_scale` beside it is no part"):
            w.fuse_weights(codes_name, codes_name)
        # The file's tensors are readable, and so are the other modules.
        stored = read(model / "model.safetensors")[0][source]
        stored = stored[1] if isinstance(stored, tuple) else stored
        np.testing.assert_array_equal(t.packed(), np.frombuffer(stored.tobytes(), np.uint8))
        np.testing.assert_array_equal(w[stem + "my_scale"].numpy(), ones(1))
        for other, values in others.items():
            if other in w and w[other].is_decoded:
                np.testing.assert_array_equal(w[other].numpy(), values)
    with pytest.raises(WeightsError, match="`my_scale` beside it is no part") as caught:
        convert(model, tmp_path / "out", dtype="f32")
    assert caught.value.code == "unsupported"
    assert not (tmp_path / "out").exists()


EXTRAS = """activation_scale activation_scale_ub input_global_scale input_scale input_scale_ub
input_zero_point k_scale k_zero_point output_scale output_zero_point q_scale q_zero_point
qscale_act scale_input v_scale v_zero_point bias k_bias e_score_correction_bias running_mean
running_var num_batches_tracked"""


@pytest.mark.parametrize("extra", EXTRAS.split())
def test_a_tensor_on_which_no_weight_depends(extra, tmp_path):
    for folder in ("fp8_rows", "ct_int", "awq", "bitsandbytes"):
        _, name, _, stem = next(module for module in MODULES if module[0] == folder)
        model = with_tensor(FOLDERS / folder, tmp_path / folder, stem + extra, ones(1))
        with open_weights(FOLDERS / folder) as w:
            wanted = w[name].numpy()
        with open_weights(model) as w:
            assert w.warnings == []
            np.testing.assert_array_equal(w[name].numpy(), wanted)


@pytest.mark.parametrize("extra", ["input_scale", "k_scale", "output_scale", "v_zero_point"])
@pytest.mark.parametrize("shape", [(32,), (32, 1, 1), (2, 2)])
def test_parameters_that_have_the_names_of_scales(extra, shape, tmp_path):
    """The names of scales of activations do not tell: learned vectors have them, too."""
    stem = "blocks.0.attn."
    learned = RNG.normal(size=shape).astype(np.float32)
    quantised = {stem + "to_q.weight": F8, stem + "to_q.weight_scale": ones(1)}
    write_model(tmp_path / "above", quantised | {stem + extra: learned, stem + "q_scale": ones(1)})
    with open_weights(tmp_path / "above") as w:
        assert (w.warnings, w.extras) == ([], [stem + "q_scale"])
        np.testing.assert_array_equal(w[stem + extra].numpy(), learned)
    convert(tmp_path / "above", tmp_path / "out")
    with open_weights(tmp_path / "out") as w:
        assert {*w, *w.unmapped} == {stem + extra, stem + "to_q.weight"}
        np.testing.assert_array_equal(w[stem + extra].numpy(), learned)
    # Beside codes, values may depend on it.
    model = write_model(tmp_path / "beside", quantised | {stem + "to_q." + extra: learned})
    with pytest.raises(WeightsError, match=f"`{extra}` beside it is no part of that scheme"):
        convert(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    # Far from quantised weights, they are no scales even if they are single numbers.
    model = write_model(tmp_path / "far", quantised | {"head." + extra: ones(1)})
    with open_weights(model) as w:
        assert w.extras == []


def test_scales_of_stacks_and_heads(tmp_path):
    experts, attention = "model.layers.0.mlp.experts.", "model.layers.0.self_attn."
    tensors = {
        experts + "weight": ("F8_E4M3", codes(3, 32, 64)),
        experts + "weight_scale": ones(3, 1, 1),
        experts + "input_scale": ones(3),
        attention + "k_scale": ones(4, 1, 1),
        attention + "v_scale": ones(4),
    }
    config = {"quantization_config": {"quant_method": "compressed-tensors"}}
    with open_weights(write_model(tmp_path / "ct", tensors, config)) as w:
        assert w.warnings == []
        assert w.extras == [experts + "input_scale", attention + "k_scale"]
    with open_weights(write_model(tmp_path / "none", tensors)) as w:
        assert w.extras == [experts + "input_scale"]


F8 = ("F8_E4M3", codes(32, 64))
UNKNOWN = {
    "unknown scale": {"weight": F8, "my_scale": ones()},
    "nunchaku": {
        "qweight": codes(32, 32, dtype=np.int8),
        "wscales": ones(1, 32),
        "smooth_factor": ones(64),
        "proj_up": ones(32, 4),
        "proj_down": ones(64, 4),
    },
    "unknown parts of bytes": {"weight": codes(32, 32), "weight_lut": ones(32, 4)},
    "unknown parts of words": {"weight": codes(32, 8, dtype=np.int32), "lut": ones(16)},
    "nvfp4 with a low-rank part": {
        "weight": codes(32, 32),
        "weight_scale": ("F8_E4M3", codes(32, 4)),
        "weight_scale_2": ones(),
        "svdquant_lora_a": ones(4, 64),
        "svdquant_lora_b": ones(32, 4),
    },
    "an order of columns": {
        "weight": codes(32, 64, dtype=np.int8),
        "weight_scale": ones(32, 2),
        "weight_g_idx": codes(64, dtype=np.int32),
    },
    "a pack with more": {
        "weight": codes(32, 8, dtype=np.uint32),
        "scales": ones(32, 1).astype(np.float16),
        "biases": ones(32, 1).astype(np.float16),
        "rotation": ones(64, 64),
    },
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("method", [None, "compressed-tensors"])
def test_modules_of_no_scheme(kind, method, tmp_path):
    parts = UNKNOWN[kind]
    config = {"quantization_config": {"quant_method": method}} if method else {}
    if kind == "a pack with more":
        config = {"quantization": {"bits": 4, "group_size": 64}}
    tensors = {M + role: stored for role, stored in parts.items()}
    tensors["model.norm.weight"] = ones(4)
    with open_weights(write_model(tmp_path / "m", tensors, config)) as w:
        by_source = {w[name].source: w[name] for name in [*w, *w.unmapped]}
        for role, stored in parts.items():
            kind_of = stored[0] if isinstance(stored, tuple) else ""
            is_code = (
                kind_of.startswith("F8") or getattr(stored, "dtype", ones().dtype).kind in "iu"
            )
            assert by_source[M + role].is_decoded != is_code
        (first, *_) = parts
        with pytest.raises(WeightsError) as caught:
            by_source[M + first].numpy("float32")
        assert caught.value.code == "unsupported"
        assert len(w.warnings) == 1 or method
        assert by_source["model.norm.weight"].numpy().tolist() == [1] * 4
    with pytest.raises(WeightsError):
        convert(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_tensors_of_an_unknown_scheme_are_named(tmp_path):
    tensors = {M + "weight": F8, M + "my_scale": ones()}
    with open_weights(write_model(tmp_path, tensors)) as w:
        with pytest.raises(
            WeightsError, match="F8_E4M3 codes with `my_scale` beside them"
        ) as caught:
            w["layers.0.ffn.up.weight"].numpy()
        assert caught.value.subject == M + "weight"
        assert "no scheme has these parts" in w.warnings[0]


def test_many_modules_of_a_kind_have_one_warning(tmp_path):
    tensors = {}
    for layer in range(30):
        for name in ("up", "down"):
            module = f"model.layers.{layer}.mlp.{name}_proj."
            tensors |= {
                module + "weight": F8,
                module + "weight_scale": ones(),
                module + "mine": ones(),
            }
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert [line.split(":")[0] for line in w.warnings] == [
            "model.layers.N.mlp.down_proj (30 tensors)",
            "model.layers.N.mlp.up_proj (30 tensors)",
        ]


def test_stacked_experts_without_a_module(tmp_path):
    """Parts of the tensor X are the tensors X_PART."""
    experts = "model.layers.0.mlp.experts."
    tensors = {
        experts + "down_proj": ("F8_E4M3", codes(2, 8, 8)),
        experts + "down_proj_scale_inv": ones(2, 1, 1),
        experts + "down_proj_bias": ones(2, 8),
        experts + "gate_up_proj": codes(2, 8, 8),
        experts + "gate_up_proj_weight_scale": ones(2, 8, 1),
        experts + "gate_up_proj_input_scale": ones(2),
    }
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w["layers.0.ffn.experts.down"].scheme == "fp8"
        (name,) = [n for n in [*w, *w.unmapped] if w[n].source == experts + "gate_up_proj"]
        with pytest.raises(WeightsError, match="U8 codes with `weight_scale` beside them"):
            w[name].numpy("float32")


FLOATS = """
blk.gamma blk.lambda_1 layer_scale1.lambda1 layer_scalar logit_scale router.scale
router.per_expert_scale norm.query_norm.scale norm.scale upscale_conv1.weight downscale.weight
scale_shift_table head.scale pos_embed.scale attn.logit_scale attn.relative_position_bias
g.weight_g g.weight_v log_scale spk.log_scale stds.scale_factor softmax_scale embed_scale
parametrizations.weight.original0 parametrizations.weight.original1
"""


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_plain_models_have_names_with_scale_too(kind, tmp_path):
    tensors = {f"model.layers.0.{name}": np.ones((4, 4), kind) for name in FLOATS.split()}
    # One of them in each module that has quantised weights, above and beside it.
    tensors |= {"model.layers.0.router.proj.weight": F8, "model.layers.0.blk.proj.weight": F8}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w.warnings == [
            "2 tensors of F8 have no scales beside them: they are decoded as plain numbers"
        ]
        for name in [*w, *w.unmapped]:
            assert w[name].is_decoded
            w[name].numpy("float32")


@pytest.mark.parametrize(
    ("kind", "dtype"), [("I8", "i1"), ("U8", "u1"), ("I32", "<i4"), ("U32", "<u4")]
)
def test_codes_by_themselves_are_plain_numbers_with_a_warning(kind, dtype, tmp_path):
    stored = codes(4, 4, dtype=dtype)
    tensors = {"a.weight": stored, "b.weight": codes(4, dtype=dtype), "c.table": stored}
    with open_weights(write_model(tmp_path, tensors)) as w:
        assert w.warnings == [
            f"1 tensor of {kind} has no scales beside it: it is decoded as plain numbers"
        ]
        np.testing.assert_array_equal(w["a.weight"].numpy("float32"), stored)
