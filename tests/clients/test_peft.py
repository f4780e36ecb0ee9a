"""peft: adapters saved, loaded, switched and merged."""

from __future__ import annotations

from pathlib import Path

import peft.peft_model as saver
import peft.utils.save_and_load as loader
import pytest
import torch
import transformers
from conftest import Spy
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
)
from tiny import (
    assert_files_hold,
    assert_same_outputs,
    assert_same_tensors,
    logits,
    raw_header,
    tiny_model,
)
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.peft import MIN_PEFT_VERSION, check_peft_version


def lora_config(kind: str, **options: object) -> LoraConfig:
    """Adapters on attention, of rank 4."""
    targets = ["c_attn"] if kind == "gpt2" else ["q_proj", "v_proj"]
    return LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=targets,
        fan_in_fan_out=kind == "gpt2",
        task_type="CAUSAL_LM",
        **options,
    )


def random_adapter(base: PreTrainedModel, config: LoraConfig) -> PeftModel:
    """Add an adapter whose weights all differ: a fresh one adds nothing."""
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(std=0.2)
    return model.eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_save_load_merge(kind: str, tmp_path: Path, spy: Spy) -> None:
    """Saved adapter, loaded on the same base: same logits; merged: same weights."""
    saved, loaded = spy(saver, "safe_save_file"), spy(loader, "safe_load_file")
    base = tiny_model(kind)
    base.save_pretrained(tmp_path / "base")
    plain = logits(base)
    model = random_adapter(base, lora_config(kind))
    expected = logits(model)
    assert not torch.equal(expected, plain)
    model.save_pretrained(tmp_path / "adapter")
    assert saved.count == 1
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    assert raw_header(file)["__metadata__"] == {"format": "pt"}
    assert_files_hold([file], get_peft_model_state_dict(model))

    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    again = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    assert loaded.count == 1
    assert_same_tensors(again.state_dict(), model.state_dict())
    assert_same_outputs(logits(again), expected)

    merged, merged_again = model.merge_and_unload(), again.merge_and_unload()
    assert_same_tensors(merged_again.state_dict(), merged.state_dict())
    merged.save_pretrained(tmp_path / "merged")
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", local_files_only=True)
    assert_same_outputs(logits(final.eval()), logits(merged))


def test_weights_alone(tmp_path: Path) -> None:
    """load_peft_weights gives the file's tensors."""
    model = random_adapter(tiny_model("llama"), lora_config("llama"))
    model.save_pretrained(tmp_path)
    assert_same_tensors(
        load_peft_weights(str(tmp_path), device="cpu"), get_peft_model_state_dict(model)
    )


def test_bfloat16_adapter(tmp_path: Path) -> None:
    """A bfloat16 adapter keeps its bytes."""
    model = random_adapter(tiny_model("llama"), lora_config("llama")).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert_files_hold([tmp_path / "adapter_model.safetensors"], get_peft_model_state_dict(model))
    again = PeftModel.from_pretrained(
        tiny_model("llama").to(torch.bfloat16), tmp_path, autocast_adapter_dtype=False
    )
    assert_same_tensors(get_peft_model_state_dict(again), get_peft_model_state_dict(model))


def test_modules_to_save(tmp_path: Path) -> None:
    """Whole modules travel in the adapter file."""
    base = tiny_model("llama", tie_word_embeddings=False)
    base.save_pretrained(tmp_path / "base")
    model = random_adapter(base, lora_config("llama", modules_to_save=["lm_head"]))
    expected = logits(model)
    model.save_pretrained(tmp_path / "adapter")
    assert any("lm_head" in n for n in raw_header(tmp_path / "adapter/adapter_model.safetensors"))
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    again = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    assert_same_outputs(logits(again), expected)


def test_two_adapters(tmp_path: Path) -> None:
    """Adapters in folders of their own, loaded side by side and switched."""
    base = tiny_model("llama")
    base.save_pretrained(tmp_path / "base")
    model = get_peft_model(base, lora_config("llama"), adapter_name="one")
    model.add_adapter("two", lora_config("llama"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    model.eval()
    expected = {}
    for adapter in ("one", "two"):
        model.set_adapter(adapter)
        expected[adapter] = logits(model)
    assert not torch.equal(expected["one"], expected["two"])
    model.save_pretrained(tmp_path / "adapters")

    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    again = PeftModel.from_pretrained(fresh, tmp_path / "adapters/one", adapter_name="one")
    again.load_adapter(tmp_path / "adapters/two", adapter_name="two")
    again.eval()
    for adapter in ("two", "one"):
        again.set_adapter(adapter)
        assert_same_outputs(logits(again), expected[adapter])


def test_adapter_through_transformers(tmp_path: Path) -> None:
    """transformers' own adapter methods read and write the same file."""
    try:
        check_peft_version(MIN_PEFT_VERSION)
    except ValueError as error:  # transformers 5.24 wants a peft that is not released
        pytest.skip(f"transformers {transformers.__version__}: {error}")
    base = tiny_model("llama")
    base.save_pretrained(tmp_path / "base")
    model = random_adapter(base, lora_config("llama"))
    expected = logits(model)
    model.save_pretrained(tmp_path / "adapter")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    loaded.load_adapter(str(tmp_path / "adapter"))
    assert_same_outputs(logits(loaded.eval()), expected)
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/adapter_model.safetensors").read_bytes() == (
        tmp_path / "adapter/adapter_model.safetensors"
    ).read_bytes()


def test_adapter_on_a_base_left_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spy: Spy
) -> None:
    """peft rewrites the offloaded layers, under its own names, with the adapter's weights."""
    # peft writes below the working directory, and beside a part of the path that holds "--".
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models--tiny"
    base = tiny_model("llama")
    base.save_pretrained(folder)
    model = random_adapter(base, lora_config("llama"))
    expected = logits(model)
    model.save_pretrained(tmp_path / "adapter")

    opened, saved = spy(saver, "safe_open"), spy(saver, "safe_save_file")
    places = {
        "model.embed_tokens": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
        "model.norm": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.layers.2": "disk",
    }
    offloaded = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, device_map=places, offload_folder=tmp_path / "offload"
    )
    assert any(p.is_meta for p in offloaded.parameters())
    again = PeftModel.from_pretrained(
        offloaded,
        tmp_path / "adapter",
        device_map={f"base_model.model.{name}": place for name, place in places.items()},
        offload_folder=str(tmp_path / "offload-adapter"),
    ).eval()
    assert opened.count >= 1
    assert saved.count >= 1
    assert any(p.is_meta for p in again.parameters())
    assert_same_outputs(logits(again), expected)
