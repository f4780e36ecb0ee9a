"""The public names of safetensors.weights."""

import pickle

from safetensors import weights
from support.weights_data import DATA


def test_public_names_show_the_public_module():
    for name in weights.__all__:
        assert getattr(weights, name).__module__ == "safetensors.weights"


def test_pickles_contain_no_private_module():
    with weights.open_weights(DATA / "mlx" / "llama_mxfp4") as w:
        values = (w.config, w.config.quantization, weights.open_weights)
    pickled = pickle.dumps(values)
    assert b"safetensors.weights._" not in pickled
    assert pickle.loads(pickled) == values
