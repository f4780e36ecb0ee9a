"""Canonical names of all architectures of gguf-py, and the tables that scripts write from it."""

import importlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from safetensors.weights import open_weights
from weights_support.data import write_gguf, write_hf

pytest.importorskip("gguf")
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from gguf.tensor_mapping import TensorNameMap

SCRIPTS = Path(__file__).parents[2] / "scripts"
LLAMA_CPP = os.environ.get("SAFETENSORS_LLAMA_CPP")  # its sources, with gguf-py in PYTHONPATH
ONE = np.zeros(1, np.float32)
LAYER = 3


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("gen_weight_tables")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def rules(script):
    return script.rules


def rule_of(rules, pattern, number=LAYER):
    """Returns the canonical module of a name of gguf-py; "" if it is left out."""
    ours = rules.canonical_of_gguf(re.sub(r"(^|\.)\{[bx]id\}", r"\1#", pattern)) or ""
    return ours.replace("#", str(number))


def has_rule(rules, pattern):
    try:
        rule_of(rules, pattern)
    except KeyError:
        return False
    return True


def mapped(path):
    """Returns the canonical name of each tensor, by its name in the file, without parameters."""
    with open_weights(path) as w:
        names = {w[name].source: name for name in w}
        return {
            source.removesuffix(".weight"): name.removesuffix(".weight")
            for source, name in names.items()
        }


def test_everything_of_the_installed_gguf_is_known(tmp_path, rules):
    unknown = [name for name in TENSOR_NAMES.values() if not has_rule(rules, name)]
    for arch in MODEL_ARCH_NAMES.values():
        path = write_gguf(tmp_path / "m.gguf", {"general.architecture": arch})
        with open_weights(path) as w:
            is_known = w.config.rope_style is not None
        if not is_known and arch not in rules.ROPE:
            unknown.append(arch)
    if unknown:  # by a newer gguf: their tensors are unmapped
        pytest.xfail(f"no rules for {', '.join(unknown)}")


def test_names_of_every_architecture(tmp_path, rules):
    checked = 0
    for arch, name in MODEL_ARCH_NAMES.items():
        # gguf-py lists some tensors without a name.
        patterns = {TENSOR_NAMES[each] for each in MODEL_TENSORS[arch] if each in TENSOR_NAMES}
        wanted = {
            pattern.format(bid=LAYER, xid=LAYER): rule_of(rules, pattern)
            for pattern in patterns
            if has_rule(rules, pattern)
        }

        # Meanings that depend on the other tensors of the layer
        def blk(leaf):
            return f"blk.{LAYER}.{leaf}"

        after = blk("post_attention_norm")
        if after in wanted and not {blk("ffn_norm"), blk("post_ffw_norm")} & wanted.keys():
            wanted[after] = f"layers.{LAYER}.ffn_norm"
        if name in rules.FUSED_UP.split() and blk("ffn_gate") not in wanted:
            wanted[blk("ffn_up")] = f"layers.{LAYER}.ffn.gate_up"
        tensors = {f"{source}.weight": ONE for source in wanted}
        path = write_gguf(tmp_path / "m.gguf", {"general.architecture": name}, tensors)
        found = mapped(path)  # raises if two have one name
        assert found == {source: ours for source, ours in wanted.items() if ours}, name
        checked += len(found)
    assert checked > 2000


#: Names of Hugging Face that are not mapped as gguf-py does, and why.
EXCEPTIONS = {
    "layers.#.post_attention_layernorm": "depends on the layer",
    "layers.#.self_attn.q_proj": "of rwkv6qwen2 it is time_mix_receptance",
    "layers.#.self_attn.k_proj": "of rwkv6qwen2 it is time_mix_key",
    "layers.#.self_attn.v_proj": "of rwkv6qwen2 it is time_mix_value",
    "layers.#.self_attn.o_proj": "of rwkv6qwen2 it is time_mix_output",
    "layers.#.attention.k_proj": "of RWKV 7 it is time_mix_key",
    "layers.#.attention.v_proj": "of RWKV 7 it is time_mix_value",
    "layers.#.attention.o_proj": "of RWKV 7 it is time_mix_output",
    "layers.#.ln2": "Yi's ffn_norm, RWKV 7's attention_norm_2",
    "layers.#.feed_forward.up_proj": "a second row gives it the name of a norm",
    "layers.#.feed_forward.down_proj": "a second row gives it the name of a shared expert",
    "layers.#.mlp.gate_up_proj": "GGUF has one name for up, and for gate and up",
    "layers.layers.#.mlp.gate_up_proj": "GGUF has one name for up, and for gate and up",
    "vision.linear_proj.norm1": "has two meanings",
    "layers.#.mlp.expert_bias": "is the parameter itself",
    "layers.#.mlp.gate.expert_bias": "is the parameter itself",
    "layers.#.feed_forward.expert_bias": "is the parameter itself",
    "layers.#.moe.router_bias": "is the parameter itself",
    "layers.#.self_attn.rotary_emb.inv_freq": "left out",
    "layers.layers.#.self_attn.rotary_emb.inv_freq": "left out",
}


def test_names_of_checkpoints_agree_with_those_of_gguf(tmp_path, rules, script, monkeypatch):
    pairs = set()
    blocks = dict(TensorNameMap.block_mappings_cfg)
    for arch in MODEL_ARCH_NAMES:
        monkeypatch.setattr(TensorNameMap, "block_mappings_cfg", dict(blocks))  # it changes
        for name, (tensor, gguf) in TensorNameMap(arch, 3).mapping.items():
            if name.startswith("model.") and has_rule(rules, TENSOR_NAMES[tensor]):
                pairs.add((script.hf_pattern(name), TENSOR_NAMES[tensor], gguf))
    wanted = {}
    for name, pattern, gguf in pairs:
        if re.sub(r"(?<=\.)\d+(?=\.|$)", "#", name) in EXCEPTIONS:
            continue
        numbers = re.fullmatch(re.escape(pattern).replace(r"\{bid\}", r"(\d+)"), gguf).groups()
        wanted[name] = rule_of(rules, pattern, *numbers)
    assert len(wanted) > 500
    # Different spellings of one module cannot be in one file.
    files: list[dict[str, str]] = []
    for name, ours in sorted(wanted.items()):
        free = next((file for file in files if ours not in file.values()), None)
        if free is None:
            files.append(free := {})
        free[name] = ours
    for file in files:
        tensors = {f"model.{name}.weight": ONE for name in file}
        found = mapped(write_hf(tmp_path / "m", {}, tensors))
        assert found == {f"model.{name}": ours for name, ours in file.items()}


@pytest.mark.skipif(LLAMA_CPP is None, reason="needs the sources of llama.cpp")
def test_the_tables_are_what_the_script_writes(script):
    assert script.tables(Path(LLAMA_CPP)) == script.TABLES.read_text()


def test_the_documents_list_every_architecture(script, rules):
    """Those of the tables, and those of the installed gguf."""
    known = set(re.findall(r'"([\w.-]+)"  // GGUF: ', script.TABLES.read_text()))
    known |= {arch for arch, rope in rules.ROPE.items() if rope is None}
    text = (Path(__file__).parents[3] / "docs" / "names.md").read_text()
    section = text[text.index("### Architectures") : text.index("## Configuration")]
    rows = [row.split("|")[2] for row in section.splitlines() if row.startswith("| names")]
    evidence, full, names = ([name.strip() for name in row.split(",")] for row in rows)
    assert evidence == rules.EVIDENCE.split()
    assert names == rules.NAMES_ONLY.split()
    assert sorted(evidence + full + names) == sorted(known)
    assert not {*MODEL_ARCH_NAMES.values()} - known


def test_rwkv_7_is_told_by_its_receptance(tmp_path):
    """bailingmoe3 has attention under the same names."""
    parts = {"k_proj": "key", "v_proj": "value", "o_proj": "output"}
    attention = {f"model.layers.0.attention.{part}.weight": ONE for part in parts}
    found = mapped(write_hf(tmp_path / "a", {}, attention))
    assert set(found.values()) == {f"layers.0.attention.{part}" for part in ("k", "v", "output")}
    rwkv = {**attention, "model.layers.0.attention.r_proj.weight": ONE}
    found = mapped(write_hf(tmp_path / "b", {}, rwkv))
    wanted = {f"layers.0.rwkv.time_mix_{ours}" for ours in ("receptance", *parts.values())}
    assert set(found.values()) == wanted
