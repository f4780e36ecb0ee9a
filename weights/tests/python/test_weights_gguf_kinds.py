"""GGUF files that hold no model: LoRA adapters, importance matrices, files of other programs."""

import re

import numpy as np
import pytest

from safetensors.numpy import load_file
from safetensors.weights import WeightsError, convert, open_weights
from weights_support.data import Stored, write_gguf, write_hf

RANK, HIDDEN, HEADS, KV_HEADS, HEAD = 3, 12, 2, 1, 8


def adapter(architecture, **keys):
    return {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 16.0,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }


def matrices(module, rows, seed):
    rng = np.random.default_rng(seed)
    return {
        f"{module}.weight.lora_a": rng.normal(size=(RANK, HIDDEN)).astype(np.float32),
        f"{module}.weight.lora_b": rng.normal(size=(rows, RANK)).astype(np.float32),
    }


def lora():
    """Returns an adapter of the three matrices of attention, as GGUF names it."""
    tensors = matrices("blk.0.attn_q", HEADS * HEAD, 0)
    tensors |= matrices("blk.0.attn_k", KV_HEADS * HEAD, 1)
    return tensors | matrices("blk.0.attn_v", KV_HEADS * HEAD, 2)


def alternating(values, heads):
    """Reorders rows as the conversion to GGUF does."""
    rows = values.reshape(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(rows.reshape(values.shape))


def test_an_adapter_gets_the_names_of_peft(tmp_path):
    tensors = lora()
    path = write_gguf(tmp_path / "m.gguf", adapter("qwen3"), tensors)
    with open_weights(path) as w:
        assert w.unmapped == []
        assert "layers.0.attention.q.weight.lora_b" in w
    notes = convert(path, tmp_path / "o.safetensors", verify=True)
    assert not [note for note in notes if note.startswith("of ")]
    found = load_file(tmp_path / "o.safetensors")
    start = "base_model.model.model.layers.0.self_attn"
    wanted = {f"{start}.{part}_proj.lora_{side}.weight" for part in "qkv" for side in "AB"}
    assert found.keys() == wanted
    for part in "qkv":
        for side in "ab":
            given = tensors[f"blk.0.attn_{part}.weight.lora_{side}"]
            values = found[f"{start}.{part}_proj.lora_{side.upper()}.weight"]
            np.testing.assert_array_equal(values, given)


def test_rows_of_an_adapter(tmp_path):
    """The second matrices of q and k have the rows of the weight, in the file's order."""
    keys = {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    original, stored = lora(), lora()
    for part, heads in (("q", HEADS), ("k", KV_HEADS)):
        name = f"blk.0.attn_{part}.weight.lora_b"
        stored[name] = alternating(original[name], heads)
        assert (stored[name] != original[name]).any()
    path = write_gguf(tmp_path / "m.gguf", adapter("llama", **keys), stored)
    with open_weights(path, layout="hf") as w:
        for name in w:
            np.testing.assert_array_equal(w[name].numpy(), original[w[name].source])
    convert(path, tmp_path / "o.safetensors", verify=True)
    found = load_file(tmp_path / "o.safetensors")
    q = found["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    np.testing.assert_array_equal(q, original["blk.0.attn_q.weight.lora_b"])


def test_an_adapter_without_a_number_of_heads(tmp_path):
    """Its rows cannot be put back, and the note says so."""
    path = write_gguf(tmp_path / "m.gguf", adapter("llama"), lora())
    with pytest.raises(WeightsError, match="rows of q and k were reordered by heads") as caught:
        open_weights(path, layout="hf")
    assert caught.value.code == "unsupported"
    notes = convert(path, tmp_path / "o.safetensors")
    assert [note for note in notes if "rows of q and k were reordered by heads" in note]
    assert "layers.0.attention.q.weight.lora_b" in load_file(tmp_path / "o.safetensors")


def test_an_adapter_of_a_rearranged_model_keeps_its_names(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", adapter("deepseek2"), lora())
    notes = convert(path, tmp_path / "o.safetensors")
    assert [note for note in notes if note.startswith("values are as the GGUF file stores them")]
    assert "layers.0.attention.q.weight.lora_a" in load_file(tmp_path / "o.safetensors")


def test_an_embedding_of_an_adapter_keeps_its_name(tmp_path):
    """PEFT has other names for it, and the transposed matrix."""
    tensors = matrices("token_embd", 20, 0)
    path = write_gguf(tmp_path / "m.gguf", adapter("qwen3"), tensors)
    convert(path, tmp_path / "o.safetensors")
    assert set(load_file(tmp_path / "o.safetensors")) == {
        f"token_embedding.weight.lora_{side}" for side in "ab"
    }


def test_an_importance_matrix(tmp_path):
    metadata = {"general.type": "imatrix", "imatrix.chunk_count": 3}
    tensors = {
        "blk.0.attn_q.weight.in_sum2": np.ones((1, 8), np.float32),
        "blk.0.attn_q.weight.counts": np.ones((1, 1), np.float32),
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with open_weights(path) as w:
        (said,) = [text for text in w.warnings if "imatrix" in text]
        assert "not the model's weights" in said
        assert sorted(w.unmapped) == sorted(tensors)
    assert said in convert(path, tmp_path / "o.safetensors")


@pytest.mark.parametrize(("kind", "name"), [(36, "I2_S"), (37, "I8_S"), (38, "TL1")])
def test_types_of_bitnet_cpp(tmp_path, kind, name):
    path = write_gguf(tmp_path / "m.gguf", {}, {"x": Stored(kind, (4, 128), bytes(160))})
    with pytest.raises(WeightsError, match=f"is {name} in files of bitnet.cpp") as caught:
        open_weights(path)
    assert caught.value.code == "bad_type"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<!DOCTYPE html><html></html>", "an HTML page: the download brought an error"),
        (b"version https://git-lfs.github.com/spec/v1\noid x\n", "git lfs pull"),
        (b"\xef\xbb\xbf{}", "byte order mark: save it as UTF-8 without one"),
        ("\ufeff{}".encode("utf-16-le"), "byte order mark: save it as UTF-8 without one"),
        (b"\x1f\x8b\x08\x00", "gzip-compressed: decompress it first"),
    ],
)
def test_a_configuration_that_is_something_else(tmp_path, data, said):
    folder = write_hf(tmp_path / "m", {})
    (folder / "config.json").write_bytes(data)
    with pytest.raises(WeightsError, match=re.escape(said)) as caught:
        open_weights(folder)
    assert caught.value.code == "json"
    assert str(caught.value).endswith("config.json)")


def test_a_configuration_that_is_cut(tmp_path):
    """It is JSON, and no other format."""
    folder = write_hf(tmp_path / "m", {})
    (folder / "config.json").write_bytes(b'{"a": ')
    with pytest.raises(WeightsError, match="not JSON") as caught:
        open_weights(folder)
    assert "This is" not in str(caught.value)
