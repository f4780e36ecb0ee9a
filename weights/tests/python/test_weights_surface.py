"""The public names of safetensors.weights."""

import dataclasses
import pickle

import pytest

from safetensors import weights
from weights_support.data import DATA


def test_public_names_show_the_public_module():
    for name in weights.__all__:
        assert getattr(weights, name).__module__ == "safetensors.weights"


@pytest.mark.parametrize("name", ["ModelConfig", "QuantParams", "RopeScaling"])
def test_configurations_cannot_be_changed(name):
    kind = getattr(weights, name)
    names = [field.name for field in dataclasses.fields(kind)]
    value = kind(**dict.fromkeys(names))
    for field in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, 1)


def test_pickles_contain_no_private_module():
    with weights.open_weights(DATA / "mlx" / "llama_mxfp4") as w:
        values = (w.config, w.config.quantization, weights.open_weights)
    pickled = pickle.dumps(values)
    assert b"safetensors.weights._" not in pickled
    assert pickle.loads(pickled) == values
