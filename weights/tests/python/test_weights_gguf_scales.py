"""Scales of weights in GGUF files: `M.scale` and `M.input_scale` beside `M.weight`."""

import numpy as np
import pytest

from safetensors.numpy import load_file
from safetensors.weights import WeightsError, convert, open_weights
from weights_support.data import Stored, write_gguf

QWEN = {"general.architecture": "qwen3"}
QWEN_MOE = {"general.architecture": "qwen3moe"}
#: Types that have a scale in the tests: number, values of a block, bytes of a block.
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "BF16": (30, 1, 2),
    "TQ2_0": (35, 256, 66),
    "NVFP4": (40, 64, 36),
}
#: Four scales of 16 values, then codes: low nibbles are values 0 to 7 of a group.
NVFP4_BLOCK = bytes.fromhex("3840017f" + 32 * "21")
NVFP4_VALUES = np.repeat(np.float32([0.5, 1, 1, 2, 0.0009765625, 0.001953125, 0, 0]), 8)


def stored(kind, shape, seed=0):
    """Returns a tensor of random finite values."""
    number, values, nbytes = TYPES[kind]
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape)) // values
    data = rng.integers(0, 256, (count, nbytes), dtype=np.uint8)
    halves = {"F16": [0], "BF16": [0], "Q8_0": [0], "Q4_K": [0, 2], "TQ2_0": [64], "F32": [2]}
    for at in halves.get(kind, []):  # small numbers as F16, BF16 or the end of F32
        data[:, at + 1] = data[:, at + 1] % 8 + 0x28
    if kind == "NVFP4":
        data[:, :4] = data[:, :4] % 0x70
    return Stored(number, shape, data.tobytes())


def values_of(path, name, **options):
    with open_weights(path, **options) as w:
        return w[name].numpy()


def test_the_values_of_a_block(tmp_path):
    """A scale of the file, then one of the tensor, in F32."""
    tensors = {
        "blk.0.ffn_gate.weight": Stored(40, (1, 64), NVFP4_BLOCK),
        "blk.0.ffn_gate.scale": np.float32([0.3]),
    }
    path = write_gguf(tmp_path / "m.gguf", QWEN, tensors)
    found = values_of(path, "layers.0.ffn.gate.weight")
    np.testing.assert_array_equal(found, NVFP4_VALUES[None] * np.float32(0.3))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mmap", [True, False])
def test_every_type(tmp_path, kind, mmap):
    """The values are those without a scale, multiplied in F32 and then rounded."""
    shape = (6, 512)
    weight = stored(kind, shape)
    plain = write_gguf(tmp_path / "p.gguf", QWEN, {"blk.0.ffn_up.weight": weight})
    scale = np.float32(0.0123)
    tensors = {
        "blk.0.ffn_up.weight": weight,
        "blk.0.ffn_up.scale": np.float32([scale]),
        "blk.0.ffn_up.input_scale": np.float32([3]),
    }
    path = write_gguf(tmp_path / "m.gguf", QWEN, tensors)
    name = "layers.0.ffn.up.weight"
    wanted = values_of(plain, name) * scale
    assert np.isfinite(wanted).all()
    assert len(np.unique(wanted)) > 2
    with open_weights(path, mmap=mmap) as w:
        assert list(w) == [name]
        assert w.unmapped == []
        assert w.extras == ["blk.0.ffn_up.input_scale"]
        assert w.warnings == []
        t = w[name]
        np.testing.assert_array_equal(t.numpy(), wanted)
        np.testing.assert_array_equal(t.numpy("float16"), wanted.astype(np.float16))
        np.testing.assert_array_equal(t.numpy(rows=slice(2, 5)), wanted[2:5])
        np.testing.assert_array_equal(t.numpy(rows=5), wanted[5])
        parts = t.parts()
        assert list(parts) == ["weight", "scale"]
        assert parts["weight"].tobytes() == weight.data
        np.testing.assert_array_equal(parts["scale"], [scale])
        assert bytes(w._model.get_stored("blk.0.ffn_up.scale")) == scale.tobytes()
        if t.storage == "raw":  # its bytes are its values
            assert t.type_name == "F32"
            np.testing.assert_array_equal(t.packed().view(np.float32), wanted.reshape(-1))
        else:
            assert t.type_name == kind
            assert t.packed().tobytes() == weight.data
    convert(path, tmp_path / "o.safetensors", dtype="f32", verify=True)
    found = load_file(tmp_path / "o.safetensors")
    assert list(found) == ["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_array_equal(found["model.layers.0.mlp.up_proj.weight"], wanted)


def test_torch(tmp_path):
    """BF16 is rounded once, after the product."""
    torch = pytest.importorskip("torch")
    tensors = {
        "blk.0.ffn_up.weight": stored("NVFP4", (4, 256)),
        "blk.0.ffn_up.scale": np.float32([0.0123]),
    }
    with open_weights(write_gguf(tmp_path / "m.gguf", QWEN, tensors)) as w:
        t = w["layers.0.ffn.up.weight"]
        assert torch.equal(t.torch(torch.bfloat16), torch.from_numpy(t.numpy()).bfloat16())
        assert torch.equal(t.torch("bfloat16"), t.torch(torch.bfloat16))


@pytest.mark.parametrize("kind", ["NVFP4", "F16"])
@pytest.mark.parametrize("rows", [5, 700])
def test_experts(tmp_path, kind, rows):
    """Each matrix of a stack has its scale, however it is divided among threads."""
    shape = (3, rows, 256)
    weight, scales = stored(kind, shape), np.float32([0.5, 0.3, 7])
    plain = write_gguf(tmp_path / "p.gguf", QWEN_MOE, {"blk.0.ffn_up_exps.weight": weight})
    tensors = {
        "blk.0.ffn_up_exps.weight": weight,
        "blk.0.ffn_up_exps.scale": scales,
        "blk.0.ffn_up_exps.input_scale": scales,
    }
    path = write_gguf(tmp_path / "m.gguf", QWEN_MOE, tensors)
    name = "layers.0.ffn.experts.up.weight"
    wanted = values_of(plain, name) * scales[:, None, None]
    flat = wanted.reshape(-1, 256)
    with open_weights(path) as w:
        np.testing.assert_array_equal(w[name].numpy(), wanted)
        np.testing.assert_array_equal(w[name].numpy("float16"), wanted.astype(np.float16))
        middle = slice(rows - 2, 2 * rows + 1)
        np.testing.assert_array_equal(w[name].numpy(rows=middle), flat[middle])
    convert(path, tmp_path / "o.safetensors", dtype="f32")
    found = load_file(tmp_path / "o.safetensors")
    assert len(found) == 3
    for i, values in enumerate(wanted):
        expert = found[f"model.layers.0.mlp.experts.{i}.up_proj.weight"]
        np.testing.assert_array_equal(expert, values)


def test_reordered_rows(tmp_path):
    """A scale of rows that layout="hf" moves."""
    metadata = {
        "general.architecture": "llama",
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 2,
    }
    tensors = {"blk.0.attn_q.weight": stored("NVFP4", (16, 64))}
    plain = write_gguf(tmp_path / "p.gguf", metadata, tensors)
    path = write_gguf(
        tmp_path / "m.gguf", metadata, {**tensors, "blk.0.attn_q.scale": np.float32([0.7])}
    )
    name = "layers.0.attention.q.weight"
    wanted = values_of(plain, name, layout="hf") * np.float32(0.7)
    np.testing.assert_array_equal(values_of(path, name, layout="hf"), wanted)


def test_fusing(tmp_path):
    """Blocks whose scales lie beside them are not fused; values are."""
    for kind in ("NVFP4", "F16"):
        tensors = {f"blk.0.attn_{part}.weight": stored(kind, (2, 64)) for part in "qkv"}
        tensors["blk.0.attn_k.scale"] = np.float32([0.7])
        tensors["blk.0.attn_v.scale"] = np.float32([0.9])
        path = write_gguf(tmp_path / "m.gguf", QWEN, tensors)
        q, k, v = (f"layers.0.attention.{part}.weight" for part in "qkv")
        with open_weights(path) as w:
            with pytest.raises(WeightsError, match="cannot be fused") as caught:
                w.fuse_weights(q, k)
            assert caught.value.code == "mixed_types"
            if kind == "NVFP4":
                text = str(caught.value)
                assert "it is NVFP4 [2, 64] with a scale beside it and cannot" in text
                assert "which is NVFP4 [2, 64] with" not in text
                with pytest.raises(WeightsError, match="with a scale"):
                    w.fuse_weights(k, v)
                continue
            fused = w.fuse_weights(k, v).view(np.float32).reshape(4, 64)
            np.testing.assert_array_equal(fused, np.concatenate([w[k].numpy(), w[v].numpy()]))


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (np.ones(2, np.float32), "F32 [2]"),
        (np.ones(64, np.float32), "F32 [64]"),
        (np.ones((1, 1), np.float32), "F32 [1, 1]"),
        (np.ones(0, np.float32), "F32 [0]"),
        (Stored(1, (1,), b"\0\x3c"), "F16 [1]"),
    ],
)
def test_scales_that_do_not_fit(tmp_path, scale, said):
    """The weight is not decoded; the rest of the model is."""
    tensors = {
        "blk.0.ffn_up.weight": stored("NVFP4", (4, 64)),
        "blk.0.ffn_up.scale": scale,
        "output_norm.weight": np.ones(4, np.float32),
    }
    path = write_gguf(tmp_path / "m.gguf", QWEN, tensors)
    with open_weights(path) as w:
        (warning,) = w.warnings
        assert "ffn.up (1 tensor): `blk.0.ffn_up.scale` is " in warning
        t = w["layers.0.ffn.up.weight"]
        assert not t.is_decoded
        assert t.packed().tobytes() == tensors["blk.0.ffn_up.weight"].data
        assert "layers.0.ffn.up.scale" in w
        np.testing.assert_array_equal(w["output_norm.weight"].numpy(), np.ones(4))
        with pytest.raises(WeightsError, match="wrong values") as caught:
            t.numpy()
        assert said in str(caught.value)
        assert (caught.value.code, caught.value.subject) == ("unsupported", "blk.0.ffn_up.weight")
    with pytest.raises(WeightsError, match="wrong values"):
        convert(path, tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()


def test_parameters_of_gemma_4(tmp_path):
    """They are names of the checkpoint: the router's scale, and that of its choices."""
    tensors = {
        "blk.0.ffn_gate_inp.weight": np.ones((3, 64), np.float32),
        "blk.0.ffn_gate_inp.scale": np.full(64, 2, np.float32),
        "blk.0.ffn_down_exps.weight": stored("NVFP4", (3, 2, 64)),
        "blk.0.ffn_down_exps.scale": np.float32([1, 2, 3]),
        "blk.0.ffn_gate_up_exps.weight": stored("NVFP4", (3, 2, 64)),
        "blk.0.ffn_gate_up_exps.scale": np.float32([1, 2, 3]),
        "blk.0.ffn_gate_exps.weight": stored("NVFP4", (3, 2, 64)),
        "blk.0.ffn_gate_exps.scale": np.float32([1, 2, 3]),
    }
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "gemma4"}, tensors)
    with open_weights(path) as w:
        own = [name for name in w if name.endswith(".scale")]
        assert own == ["layers.0.ffn.experts.down.scale", "layers.0.ffn.router.scale"]
        for part in ("gate_up", "gate"):
            assert [*w[f"layers.0.ffn.experts.{part}.weight"].parts()] == ["weight", "scale"]
        assert list(w["layers.0.ffn.experts.down.weight"].parts()) == ["weight"]


def test_a_scale_without_a_weight_is_a_tensor(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", QWEN, {"x.norm.scale": np.ones(5, np.float32)})
    with open_weights(path) as w:
        assert w.unmapped == ["x.norm.scale"]
