"""Converted GGUF files have the names and values of the checkpoints that they were made from."""

import hashlib
import importlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from safetensors.numpy import load_file, save_file
from safetensors.weights import WeightsError, _convert_plan, convert, open_weights
from safetensors.weights._convert_units import units_of
from safetensors.weights._hf_tables import TABLES
from weights_support import llama_cpp, scheme_models
from weights_support.data import DATA, expected, write_gguf
from weights_support.tiny_models import MODELS

STORED = DATA / "gguf_hf"
EXPECTED = expected(STORED / "expected.json")
needs_sources = pytest.mark.skipif(
    llama_cpp.SOURCES is None, reason="needs the sources of llama.cpp"
)


def sha_of(values):
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def converted(source, target, **options):
    """Returns the tensors, by name, and the notes."""
    notes = convert(source, target, verify=True, **options)
    return load_file(target), notes


@pytest.mark.parametrize("name", EXPECTED)
def test_stored_models(tmp_path, name):
    """Those of llama.cpp's converter, bit for bit but for a logarithm."""
    found, notes = converted(STORED / f"{name}.gguf", tmp_path / "m.safetensors", dtype="f32")
    assert found.keys() == EXPECTED[name].keys()
    for key, wanted in EXPECTED[name].items():
        assert list(found[key].shape) == wanted["shape"], key
        if "values" in wanted:
            np.testing.assert_allclose(found[key], wanted["values"], rtol=1e-6, atol=1e-7)
        else:
            assert sha_of(found[key]) == wanted["sha256_f32"], key
    why = "left out, because checkpoints have them in config.json"
    assert notes == ([f"{LEFT_OUT[name]}: {why}"] if name in LEFT_OUT else [])


LEFT_OUT = {
    "apertus": "`rope_freqs.weight`",
    "gemma4-moe": "`rope_freqs.weight`",
    "muse-glimmer": "`layers.0.attention.k_norm.weight` and 3 more",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_units_do_not_change_the_bytes(tmp_path, name, monkeypatch):
    """Rows, heads and experts are made alone, and with several threads."""
    source = STORED / f"{name}.gguf"
    convert(source, tmp_path / "whole.safetensors", dtype="f32")
    monkeypatch.setattr(_convert_plan, "UNIT_VALUES", 64)
    with _convert_plan.Plan(source, "f32") as plan:
        units = [unit for each in plan.outputs for unit in units_of(each)]
        assert len(units) > 3 * len(plan.outputs)
    convert(source, tmp_path / "parts.safetensors", dtype="f32", threads=3, verify=True)
    whole = (tmp_path / "whole.safetensors").read_bytes()
    assert (tmp_path / "parts.safetensors").read_bytes() == whole


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_other_types_are_rounded_once(tmp_path, name, kind):
    source = STORED / f"{name}.gguf"
    exact, _ = converted(source, tmp_path / "f32.safetensors", dtype="f32")
    convert(source, tmp_path / "m.safetensors", dtype=kind, verify=True)
    with open_weights(tmp_path / "m.safetensors", bf16="keep") as w:
        for each in [*w, *w.unmapped]:
            values, wanted = w[each].numpy("float32"), exact[w[each].source]
            if kind == "f16":
                wanted = wanted.astype(np.float16).astype(np.float32)
            else:
                wanted = scheme_models.bf16_values(scheme_models.bf16_bits(wanted))
            np.testing.assert_array_equal(values.reshape(wanted.shape), wanted)


@pytest.fixture(scope="module")
def script():
    scripts = str(Path(__file__).parents[2] / "scripts")
    sys.path.insert(0, scripts)
    yield importlib.import_module("gen_hf_names")
    sys.path.remove(scripts)


def test_the_file_of_the_tables_is_what_the_script_writes(script):
    assert script.TARGET.read_text() == script.text_of(TABLES)


def test_the_tables_have_the_names_of_classes_of_transformers(script):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not transformers.__version__.startswith("5.23."):
        pytest.skip("the tables were written with another version of transformers")
    assert script.tables() == TABLES


@needs_sources
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_way_back(tmp_path, name):
    """llama.cpp's converter, then ours: the state dict and the logits are those of the model."""
    torch = pytest.importorskip("torch")
    folder, back = tmp_path / "hf", tmp_path / "back"
    tiny = MODELS[name]
    model = llama_cpp.make(tiny, folder)
    llama_cpp.to_gguf(folder, tmp_path / "m.gguf", tiny)
    convert(tmp_path / "m.gguf", f"{back}/", dtype="f32", verify=True)
    found, saved = (load_file(each / "model.safetensors") for each in (back, folder))
    lost = {key: values for key, values in saved.items() if re.match(tiny.lost, key)}
    assert found.keys() == saved.keys() - lost.keys()
    for key, values in found.items():
        assert saved[key].shape == values.shape, key
        if key.endswith("A_log"):
            np.testing.assert_allclose(values, saved[key], rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(values, saved[key], err_msg=key)
    save_file({**found, **lost}, back / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", back)
    again, info = type(model).from_pretrained(back, output_loading_info=True)
    assert not any(info.values()), info
    results = [outputs_of(torch, each.eval()) for each in (model, again)]
    # Products depend on how tensors lie in memory.
    exact = not any(key.endswith("A_log") for key in found)
    assert torch.allclose(*results, rtol=0, atol=1e-6 if exact else 1e-5)


def outputs_of(torch, model):
    """Returns logits, or the last hidden state of a model without them."""
    ids = torch.tensor([[1, 5, 20, 3, 3, 12, 8]])
    options = {"decoder_input_ids": ids} if hasattr(model, "decoder") else {}
    with torch.no_grad():
        return model(ids, **options)[0]


UNSTATED = [
    "bert",
    "chatglm",
    "distilbert",
    "granite",
    "granitemoe",
    "granitemoe-shared",
    "mimo2",
    "phi2",
]
"""Tiny models whose files do not state the heads that they have, so that llama.cpp would not load
them."""


@needs_sources
@pytest.mark.parametrize("name", MODELS)
def test_tensors_that_the_converter_joins(tmp_path, name):
    """Its options --fuse-qkv and --fuse-gate-up-exps."""
    pytest.importorskip("torch")
    tiny, found = MODELS[name], []
    llama_cpp.make(tiny, tmp_path)
    for fuses in (False, True):
        source = llama_cpp.to_gguf(tmp_path, tmp_path / "m.gguf", tiny, fuses)
        if fuses and name in UNSTATED:
            with pytest.raises(WeightsError, match=r"qkv.weight` does not fit|rows are not those"):
                convert(source, tmp_path / "m.safetensors", dtype="f32")
            return
        found.append(converted(source, tmp_path / "m.safetensors", dtype="f32"))
        with open_weights(source) as w:
            assert name != "llama" or fuses == ("layers.0.attention.qkv.weight" in w)
    (split, notes), (joined, more) = found
    assert joined.keys() == split.keys()
    for key, values in split.items():
        np.testing.assert_array_equal(joined[key], values, err_msg=key)
    # How many tensors have which names: a joined one counts as those that it becomes.
    about = [[note for note in each if " tensors, " in note] for each in (notes, more)]
    assert about[0] == about[1]


# Files that lie, and those that are not whole


def changed(tmp_path, name, change):
    """Writes a stored model with other tensors or metadata."""
    with open_weights(STORED / f"{name}.gguf") as w:
        metadata = {
            key: w.metadata[key]
            for key in w.metadata
            if isinstance(w.metadata[key], (str, int, float)) and "tokenizer" not in key
        }
        tensors = {w[each].source: w[each].numpy() for each in [*w, *w.unmapped]}
    change(metadata, tensors)
    return write_gguf(tmp_path / "m.gguf", metadata, tensors)


HOSTILE = {
    "no heads of keys": lambda m, t: m.pop("qwen35.ssm.group_count"),
    "no whole heads": lambda m, t: m.update({"qwen35.ssm.group_count": 4}),
    "heads of keys are 0": lambda m, t: m.update({"qwen35.ssm.group_count": 0}),
    "heads are text": lambda m, t: m.update({"qwen35.ssm.group_count": "two"}),
    "another gate": lambda m, t: t.update({"blk.0.attn_gate.weight": np.ones((60, 32))}),
    "another output": lambda m, t: t.update({"blk.0.ssm_out.weight": np.ones((32, 60))}),
    "no output": lambda m, t: t.pop("blk.0.ssm_out.weight"),
    "another convolution": lambda m, t: t.update({"blk.0.ssm_conv1d.weight": np.ones((9, 4))}),
    "a bias of two axes": lambda m, t: t.update({"blk.0.ssm_dt.bias": np.ones((6, 6))}),
    "no values": lambda m, t: t.update({"blk.0.ssm_a": np.ones(0)}),
    "A is positive": lambda m, t: t.update({"blk.0.ssm_a": np.ones(6)}),
    "A has two axes": lambda m, t: t.update({"blk.0.ssm_a": -np.ones((1, 6))}),
    "a vector for qkv": lambda m, t: t.update({"blk.0.attn_qkv.weight": np.ones(104)}),
    "a norm of two axes": lambda m, t: t.update({"blk.0.attn_norm.weight": np.ones((2, 16))}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_heads_that_do_not_fit(tmp_path, what):
    source = changed(tmp_path, "qwen35", HOSTILE[what])
    with pytest.raises(WeightsError) as caught:
        convert(source, tmp_path / "m.safetensors")
    assert caught.value.code in ("bad_shape", "unknown_tensor")
    assert "m.gguf" in str(caught.value)
    assert not (tmp_path / "m.safetensors").exists()


def test_a_layer_that_predicts_further_tokens_keeps_its_names(tmp_path):
    """transformers has no place for it in these models."""

    def add(_, tensors):
        tensors["blk.2.nextn.eh_proj.weight"] = np.ones((32, 64))
        tensors["blk.2.attn_norm.weight"] = np.ones(32)

    source = changed(tmp_path, "qwen35", add)
    found, notes = converted(source, tmp_path / "m.safetensors", dtype="f32")
    assert "layers.2.attention_norm.weight" in found
    assert not [key for key in found if key.startswith("model.layers.2.")]
    (said,) = [note for note in notes if "tensors, " in note]
    assert said.endswith("have Hugging Face's names, 2 have canonical names")


def test_gates_of_another_length(tmp_path):
    def change(_, tensors):
        tensors["blk.0.attn_gate.weight"] = np.ones((72, 31))

    source = changed(tmp_path, "qwen3next", change)
    with pytest.raises(WeightsError, match="does not fit rows of 32 values"):
        convert(source, tmp_path / "m.safetensors")


def test_parts_that_are_missing_are_not_joined(tmp_path):
    def remove(_, tensors):
        tensors.pop("blk.0.ffn_up_exps.weight")
        tensors.pop("blk.0.ffn_up_exps.bias")

    source = changed(tmp_path, "gpt-oss", remove)
    found, _ = converted(source, tmp_path / "m.safetensors", dtype="f32")
    assert "layers.0.ffn.experts.gate.weight" in found
    assert "model.layers.1.mlp.experts.gate_up_proj" in found


@pytest.mark.parametrize("name", ["gpt-oss", "granitemoe"])
@pytest.mark.parametrize("shape", [(5, 24), (5, 24, 31), (5, 23, 32), (120, 32)])
def test_experts_that_do_not_fit(tmp_path, name, shape):
    def change(_, tensors):
        tensors["blk.1.ffn_up_exps.weight"] = np.ones(shape)

    source = changed(tmp_path, name, change)
    with pytest.raises(WeightsError, match="does not fit 3 axes, and the shape of") as caught:
        convert(source, tmp_path / "m.safetensors")
    assert caught.value.code == "bad_shape"


LIES = {
    "apertus": lambda m, t: None,  # `changed` keeps no lists, such as xielu.beta
    "bloom": lambda m, t: m.update({"bloom.attention.head_count": 5}),
    "gpt2": lambda m, t: t.update({"blk.0.ffn_up.weight": np.ones(128)}),
    "granitehybrid": lambda m, t: t.update({"blk.0.ssm_a": np.ones((8, 1))}),
    "kimi-linear": lambda m, t: t.update({"blk.0.ssm_conv1d_k.weight": np.ones((2, 24, 3))}),
    "muse-glimmer": lambda m, t: m.update({"muse-glimmer.attention.head_count_kv": 3}),
}


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie(tmp_path, name):
    source = changed(tmp_path, name, LIES[name])
    with pytest.raises(WeightsError, match="does not fit") as caught:
        convert(source, tmp_path / "m.safetensors")
    assert caught.value.code == "bad_shape"


def with_heads(folder, queries, keys):
    """Returns a model whose 96 rows of queries, keys and values are of so many heads."""
    names = {"head_count": queries, "head_count_kv": keys}
    return changed(
        folder,
        "bloom",
        lambda m, t: m.update({f"bloom.attention.{k}": v for k, v in names.items()}),
    )


@pytest.mark.parametrize("heads", [(6, 9), (24, 24), (4, 0), (0, 4)])
def test_heads_that_do_not_divide_the_rows(tmp_path, heads):
    with pytest.raises(WeightsError) as caught:
        convert(with_heads(tmp_path, *heads), tmp_path / "m.safetensors")
    assert caught.value.code == "bad_shape"


def test_heads_of_queries_that_share_one_of_keys_keep_their_order(tmp_path):
    source = with_heads(tmp_path, 4, 1)
    found, _ = converted(source, tmp_path / "m.safetensors", dtype="f32")
    with open_weights(source) as weights:
        rows = weights["layers.1.attention.qkv.weight"].numpy()
    assert np.array_equal(found["transformer.h.1.self_attention.query_key_value.weight"], rows)


def test_layers_that_the_converter_took_for_state_spaces(tmp_path):
    """Rows of q and k are then not where those of other files are."""
    key = "granitehybrid.attention.head_count_kv"
    source = changed(tmp_path, "granitehybrid", lambda m, t: m.update({key: [0, 0]}))
    with pytest.raises(WeightsError, match="attention.k.weight` does not fit 0 heads") as caught:
        convert(source, tmp_path / "m.safetensors")
    assert caught.value.code == "bad_shape"


def test_rows_that_the_converter_added_are_left_out(tmp_path):
    rows = np.arange(262_146, dtype=np.float32).reshape(-1, 1)
    metadata = {"general.architecture": "gemma3n"}
    source = write_gguf(tmp_path / "m.gguf", metadata, {"per_layer_token_embd.weight": rows})
    found, notes = converted(source, tmp_path / "m.safetensors")
    assert notes == []
    np.testing.assert_array_equal(found["model.embed_tokens_per_layer.weight"], rows[:262_144])


@pytest.mark.parametrize("tokenizer", ["bert", "gpt2"])
def test_positions_that_are_cut_off_have_no_name_of_a_checkpoint(tmp_path, tokenizer):
    metadata = {"general.architecture": "bert", "tokenizer.ggml.model": tokenizer}
    names = ("token_embd", "token_types", "position_embd")
    tensors = {f"{name}.weight": np.ones((4, 8), np.float32) for name in names}
    found, _ = converted(
        write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.safetensors"
    )
    is_whole = tokenizer == "bert"
    assert ("embeddings.position_embeddings.weight" in found) == is_whole
    assert ("position_embedding.weight" in found) != is_whole


# What the notes say about names


def test_all_names_are_known(tmp_path):
    """No note."""
    tensors = {"token_embd.weight": np.ones((4, 8), np.float32)}
    source = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    assert converted(source, tmp_path / "m.safetensors")[1] == []


def test_some_names_are_known(tmp_path):
    tensors = {
        "token_embd.weight": np.ones((4, 8), np.float32),
        "blk.0.attn_rel_b.weight": np.ones((4, 8), np.float32),
        "blk.0.ssm_in.weight": np.ones((4, 8), np.float32),
        "own": np.ones(3, np.float32),
    }
    source = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    found, notes = converted(source, tmp_path / "m.safetensors")
    assert set(found) == {
        "model.embed_tokens.weight",
        "blk.0.attn_rel_b.weight",
        "layers.0.ssm.in.weight",
        "own",
    }
    assert notes == [
        "of 4 tensors, 1 has Hugging Face's name, 1 has a canonical name, "
        "2 have their names in the file"
    ]


@pytest.mark.parametrize("architecture", ["flux", "wan"])
def test_image_models_keep_their_names(tmp_path, architecture):
    """The names are those of the file."""
    tensors = {"img_in.weight": np.ones((4, 8), np.float32), "x.norm.scale": np.ones(3, np.float32)}
    source = write_gguf(tmp_path / "m.gguf", {"general.architecture": architecture}, tensors)
    found, notes = converted(source, tmp_path / "m.safetensors")
    assert set(found) == set(tensors)
    assert not [note for note in notes if "under canonical names" in note]
    (said,) = [note for note in notes if note.startswith("of ")]
    assert said == (
        "of 2 tensors, 2 have their names in the file: Hugging Face's are not known for "
        f"`{architecture}`"
    )
