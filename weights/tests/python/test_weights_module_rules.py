"""Entries of a configuration that match no module. test_module_rules.cpp has the rule itself."""

import json

import numpy as np
import pytest

from safetensors.weights import open_weights
from weights_support.scheme_models import write_model

TENSORS = {
    f"model.layers.{layer}.mlp.{part}_proj.weight": np.zeros((4, 8), np.float16)
    for layer in range(2)
    for part in ("up", "down")
}
HEAD = "`quant_method"
"""How the warning begins that nothing is quantised."""


def warnings_of(path):
    with open_weights(path) as weights:
        return [text for text in weights.warnings if not text.startswith(HEAD)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"modules_to_not_convert": ["lm_head", "model.layers.1.mlp.up_proj", "visual"]}, []),
        (
            {"modules_to_not_convert": ["lm_head", "model.layers.7.mlp.gate"]},
            ["`modules_to_not_convert` has 1 entry that matches no module: "],
        ),
        (
            {"ignore": ["model.layers.7"], "quantized_layers": {"model.layers.0.attn": {}}},
            ["`ignore` has 1 entry", "`quantized_layers` has 1 entry"],
        ),
    ],
)
def test_entries_of_other_models_are_warned_of(tmp_path, settings, said):
    config = {"quantization_config": {"quant_method": "modelopt", **settings}}
    write_model(tmp_path, TENSORS, {"model_type": "llama", **config})
    found = [text for text in warnings_of(tmp_path) if "module" in text]
    assert len(found) == len(said)
    assert all(map(str.startswith, found, said))


def test_a_file_of_modelopt(tmp_path):
    write_model(tmp_path, TENSORS, {"model_type": "llama"})
    quantisation = {"quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.9*"]}
    text = json.dumps({"quantization": quantisation})
    (tmp_path / "hf_quant_config.json").write_text(text)
    assert "`exclude_modules` has 1 entry that matches no module: `model.layers.9*`" in warnings_of(
        tmp_path
    )


def test_a_shard_alone_and_layers_that_may_be_absent(tmp_path):
    """The configuration is about all shards; a layer after the model's may not be stored."""
    method = {"quant_method": "fp8", "modules_to_not_convert": ["layers.0.mlp", "layers.1.mlp"]}
    config = {"model_type": "llama", "quantization_config": method, "num_hidden_layers": 2}
    write_model(tmp_path, TENSORS, config, shards=2)
    for path in [tmp_path, *tmp_path.glob("*.safetensors")]:
        assert not [text for text in warnings_of(path) if "module" in text]
    method["modules_to_not_convert"].append("layers.2.mlp")
    for key, count in (("rope_theta", 1), ("num_nextn_predict_layers", 0)):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: 1}))
        assert sum("matches no module" in text for text in warnings_of(tmp_path)) == count
