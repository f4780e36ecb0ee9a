"""GGUF files in which llama.cpp's converter joined tensors: --fuse-qkv and --fuse-gate-up-exps."""

import numpy as np
import pytest

from safetensors.numpy import load_file
from safetensors.weights import WeightsError, convert, open_weights
from weights_support.data import DATA, write_gguf

STORED = DATA / "gguf_hf"
HALVES = ("ffn_gate_exps", "ffn_up_exps")


def check_refused(path, said):
    """Checks that a conversion fails for a tensor's shape, names the file, and writes nothing."""
    target = path.with_name("refused.safetensors")
    with pytest.raises(WeightsError, match=said) as caught:
        convert(path, target)
    assert caught.value.code == "bad_shape"
    assert path.name in str(caught.value)
    assert not target.exists()


def joined(tensors):
    """Joins what the converter joins, in all layers that have it."""
    result = dict(tensors)
    for name in tensors:
        start, _, end = name.rpartition("attn_q.")
        parts = [f"{start}attn_{part}.{end}" for part in "qkv"]
        if start.startswith("blk.") and all(part in result for part in parts):
            result[f"{start}attn_qkv.{end}"] = np.concatenate([result.pop(p) for p in parts])
        start, _, end = name.rpartition(f"{HALVES[0]}.")
        parts = [f"{start}{part}.{end}" for part in HALVES]
        if start and all(part in result for part in parts):
            both = [result.pop(part) for part in parts]
            result[f"{start}ffn_gate_up_exps.{end}"] = np.concatenate(both, 1)
    return result


def tensors_of(source):
    with open_weights(source) as w:
        return {w[name].source: w[name].numpy() for name in [*w, *w.unmapped]}


def metadata_of(source):
    with open_weights(source) as w:
        return {key: w.metadata[key] for key in w.metadata if not key.startswith("tokenizer.")}


def both_converted(folder, metadata, tensors):
    """Returns the tensors of the file, and of that with joined tensors."""
    found = []
    for name, each in (("split", tensors), ("joined", joined(tensors))):
        path = write_gguf(folder / f"{name}.gguf", metadata, each)
        convert(path, folder / f"{name}.safetensors", dtype="f32", verify=True)
        found.append(load_file(folder / f"{name}.safetensors"))
    return found


def check_same(split, fused):
    assert fused.keys() == split.keys()
    for name, values in split.items():
        np.testing.assert_array_equal(fused[name], values, err_msg=name)


MODELS = (
    "apertus",
    "deepseek2",
    "ernie4_5-moe",
    "gemma4-moe",  # heads of two lengths
    "gpt-oss",  # biases; gate and up alternate in columns
    "granitehybrid",  # rows that alternate, which only `convert` puts back
    "granitemoe",  # rows that alternate
    "kimi-linear",  # in layers with convolutions
    "lfm2",
    "muse-glimmer",
    "qwen35",  # the gate of attention; attn_qkv has another meaning in other layers
    "qwen3next",
    "stablelm",
)


@pytest.mark.parametrize("name", MODELS)
def test_stored_models(tmp_path, name):
    source = STORED / f"{name}.gguf"
    metadata, tensors = metadata_of(source), tensors_of(source)
    if name == "granitemoe":  # its heads have more rows than llama.cpp would take them to have
        metadata["granitemoe.attention.key_length"] = 16
    assert len(joined(tensors)) < len(tensors)
    check_same(*both_converted(tmp_path, metadata, tensors))


def experts(arch, **more):
    """Returns metadata and a layer of 3 experts."""
    rng = np.random.default_rng(2)
    shapes = {"gate_exps": (3, 6, 4), "up_exps": (3, 6, 4), "down_exps": (3, 4, 6)}
    tensors = {
        f"blk.0.ffn_{part}.weight": rng.standard_normal(shape).astype(np.float32)
        for part, shape in shapes.items()
    }
    return {"general.architecture": arch, **more}, tensors


@pytest.mark.parametrize("arch", ["gpt-oss", "llama4", "qwen3vlmoe"])
def test_transposed_experts(tmp_path, arch):
    metadata, tensors = experts(arch)
    split, fused = both_converted(tmp_path, metadata, tensors)
    check_same(split, fused)
    gate, up, down = tensors.values()
    columns = [gate.swapaxes(1, 2), up.swapaxes(1, 2)]
    both = (
        np.stack(columns, 3).reshape(3, 4, 12) if arch == "gpt-oss" else np.concatenate(columns, 2)
    )
    (name,) = (name for name in fused if "gate_up_proj" in name)
    np.testing.assert_array_equal(fused[name], both)
    np.testing.assert_array_equal(fused[name.replace("gate_up", "down")], down.swapaxes(1, 2))


@pytest.mark.parametrize("arch", ["gpt-oss", "llama4", "qwen3moe"])
def test_gate_and_up_of_an_odd_number_of_rows(tmp_path, arch):
    metadata, tensors = experts(arch)
    tensors = {"blk.0.ffn_gate_up_exps.weight": np.ones((3, 7, 4), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    check_refused(path, r"gate_up.weight` does not fit .* 7 rows")


def test_more_experts_than_become_tensors(tmp_path):
    tensors = {"blk.0.ffn_gate_up_exps.weight": np.ones((65_537, 2, 1), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen3moe"}, tensors)
    with pytest.raises(WeightsError, match="does not fit up to 65,536 experts"):
        convert(path, tmp_path / "m.safetensors")


# Heads of queries, keys and values


def heads(arch, q=4, k=2, lengths=(6, 6), **more):
    """Returns metadata, and the matrices and biases of q, k and v as the checkpoint has them."""
    rng = np.random.default_rng(3)
    rows = {"q": q * lengths[0], "k": k * lengths[0], "v": k * lengths[1]}
    tensors = {
        f"blk.0.attn_{part}.{param}": rng.standard_normal(shape).astype(np.float32)
        for part, count in rows.items()
        for param, shape in (("weight", (count, 8)), ("bias", (count,)))
    }
    keys = {"head_count": q, "head_count_kv": k, "key_length": lengths[0]}
    keys |= {"value_length": lengths[1], **more}
    metadata = {f"{arch}.attention.{key}": value for key, value in keys.items()}
    return {"general.architecture": arch, **metadata}, tensors


def alternating(values, count):
    return values.reshape(count, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def stored(tensors, q=4, k=2):
    """The rows of q and k as the converter orders them in files of the llama family."""
    counts = {"q": q, "k": k}
    return {
        name: alternating(values, counts[part]) if (part := name[11]) in counts else values
        for name, values in tensors.items()
    }


FAMILY = ["llama", "granite", "mistral3", "smollm3", "arcee", "olmo", "deci"]


@pytest.mark.parametrize("arch", FAMILY)
@pytest.mark.parametrize("lengths", [(6, 6), (6, 5), (4, 7)])
@pytest.mark.parametrize("mmap", [True, False])
def test_layout_hf_puts_rows_back(tmp_path, arch, lengths, mmap):
    metadata, tensors = heads(arch, lengths=lengths)
    fused = joined(stored(tensors))
    path = write_gguf(tmp_path / "m.gguf", metadata, fused)
    with open_weights(path, mmap=mmap) as w:
        for param in ("weight", "bias"):
            values = w[f"layers.0.attention.qkv.{param}"].numpy()
            np.testing.assert_array_equal(values, fused[f"blk.0.attn_qkv.{param}"])
    with open_weights(path, layout="hf", mmap=mmap) as w:
        assert w.config.rope_style == "half"
        for param in ("weight", "bias"):
            t = w[f"layers.0.attention.qkv.{param}"]
            wanted = joined(tensors)[f"blk.0.attn_qkv.{param}"]
            np.testing.assert_array_equal(t.numpy(), wanted)
            np.testing.assert_array_equal(t.packed().view(np.float32), wanted.reshape(-1))
        t = w["layers.0.attention.qkv.weight"]
        wanted = tensors["blk.0.attn_q.weight"], *(tensors[f"blk.0.attn_{p}.weight"] for p in "kv")
        rows = np.concatenate(wanted)
        for first in range(len(rows)):
            for last in range(first + 1, len(rows) + 1):
                np.testing.assert_array_equal(t.numpy(rows=slice(first, last)), rows[first:last])


@pytest.mark.parametrize("arch", ["llama", "granite", "smollm3", "olmo", "qwen2", "seed_oss"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_convert_splits_them(tmp_path, arch, kind):
    metadata, tensors = heads(arch, lengths=(6, 5))
    is_reordered = arch in FAMILY
    path = write_gguf(
        tmp_path / "m.gguf", metadata, joined(stored(tensors) if is_reordered else tensors)
    )
    notes = convert(path, tmp_path / "m.safetensors", dtype=kind, verify=True)
    assert notes == []
    with open_weights(tmp_path / "m.safetensors", bf16="keep") as w:
        found = {w[name].source: w[name].numpy("float32") for name in [*w, *w.unmapped]}
    wanted = {
        f"model.layers.0.self_attn.{name[11]}_proj.{name[13:]}": values
        for name, values in tensors.items()
    }
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=0 if kind == "f32" else 2**-8)


OTHER_ROWS = {
    "no heads": {"head_count": 0},
    "no heads of keys": {"head_count_kv": 0},
    "other heads": {"head_count": 5},
    "heads of keys as of queries": {"head_count_kv": 4},
    "longer keys": {"key_length": 8},
    "shorter values": {"value_length": 4},
    "no length": {"key_length": 0},
}


@pytest.mark.parametrize("change", OTHER_ROWS)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "muse-glimmer"])
def test_rows_that_are_not_those_of_the_heads(tmp_path, arch, change):
    metadata, tensors = heads(arch, **OTHER_ROWS[change])
    tensors = joined(tensors)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    check_refused(path, r"qkv.* 48|48 rows")
    if arch == "llama":
        with pytest.raises(WeightsError, match="48 rows are not those of") as caught:
            open_weights(path, layout="hf")
        assert (caught.value.code, caught.value.subject) == ("bad_shape", "blk.0.attn_qkv.bias")
    with open_weights(path) as w:  # as stored
        values = w["layers.0.attention.qkv.weight"].numpy()
        np.testing.assert_array_equal(values, tensors["blk.0.attn_qkv.weight"])


def test_a_head_of_an_odd_number_of_rows(tmp_path):
    metadata, tensors = heads("llama", lengths=(5, 5))
    path = write_gguf(tmp_path / "m.gguf", metadata, joined(tensors))
    with pytest.raises(WeightsError, match="30 rows do not divide into 6 heads of an even number"):
        open_weights(path, layout="hf")


def test_two_lengths_that_both_fit(tmp_path):
    """4 * 6 + 2 * 6 + 2 * 6 rows are also 4 * 4 + 2 * 4 + 2 * 12."""
    swa = {"key_length_swa": 4, "value_length_swa": 12}
    metadata, tensors = heads("gemma4", lengths=(6, 6), **swa)
    path = write_gguf(tmp_path / "m.gguf", metadata, joined(tensors))
    with pytest.raises(WeightsError, match="with 4 and 12 or 6 and 6 rows of keys and values"):
        convert(path, tmp_path / "m.safetensors")


@pytest.mark.parametrize("param", ["weight", "bias"])
def test_axes(tmp_path, param):
    metadata, _ = heads("qwen2")
    shape = (48,) if param == "weight" else (48, 2)
    tensors = {f"blk.0.attn_qkv.{param}": np.ones(shape, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(WeightsError, match=f"qkv.{param}` does not fit [12] axes"):
        convert(path, tmp_path / "m.safetensors")


def test_both_in_one_file(tmp_path):
    metadata, tensors = heads("qwen2")
    path = write_gguf(tmp_path / "m.gguf", metadata, {**tensors, **joined(tensors)})
    with pytest.raises(WeightsError, match="two tensors would have this name") as caught:
        convert(path, tmp_path / "m.safetensors")
    assert caught.value.code == "duplicate"


def test_a_full_layer_of_linear_attention_has_no_name_of_it(tmp_path):
    """In Qwen 3.5, the joined tensor has the name of another one of linear attention."""
    metadata, tensors = heads("qwen35", q=8)
    metadata["qwen35.attention.head_count"] = 4  # each is followed by its gate
    path = write_gguf(tmp_path / "m.gguf", metadata, joined(tensors))
    convert(path, tmp_path / "m.safetensors", dtype="f32")
    found = load_file(tmp_path / "m.safetensors")
    assert not [name for name in found if "linear_attn" in name or "qkv" in name]
    q = found["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(q, tensors["blk.0.attn_q.weight"])


def test_channels_of_convolutions(tmp_path):
    """Kimi Linear: their numbers say where queries, keys and values end."""
    source = STORED / "kimi-linear.gguf"
    tensors = joined(tensors_of(source))
    (name,) = (name for name in tensors if "attn_qkv" in name)
    tensors[name] = tensors[name][:-1]
    path = write_gguf(tmp_path / "m.gguf", metadata_of(source), tensors)
    check_refused(path, r"does not fit convolutions of .* channels")


@pytest.mark.parametrize("given", [{}, {"head_count": 4, "head_count_kv": 2, "key_length": 6}])
def test_an_adapter(tmp_path, given):
    _, tensors = heads("llama")
    rows = joined(stored(tensors))["blk.0.attn_qkv.weight"]
    metadata = {"general.architecture": "llama", "general.type": "adapter"}
    metadata |= {f"llama.attention.{key}": value for key, value in given.items()}
    adapter = {
        "blk.0.attn_qkv.weight.lora_a": np.ones((8, 8)),
        "blk.0.attn_qkv.weight.lora_b": rows,
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, adapter)
    if not given:
        with pytest.raises(WeightsError, match="reordered by heads, whose number") as caught:
            open_weights(path, layout="hf")
        assert caught.value.code == "unsupported"
        return
    with open_weights(path, layout="hf") as w:
        found = w["layers.0.attention.qkv.weight.lora_b"].numpy()
        np.testing.assert_array_equal(found, joined(tensors)["blk.0.attn_qkv.weight"])
