"""Uses an installed wheel: `python tests/consumer/wheel.py` prints one line if all works.

It needs NumPy, and no test runner, so that it runs on a bare system.
"""

import json
import platform
import tempfile
from pathlib import Path

import numpy as np

from safetensors import IntegrityError, SafetensorError, _core, safe_open
from safetensors.numpy import load_file, save_file
from safetensors.weights import WeightsError, open_weights

TENSORS = {
    "model.embed_tokens.weight": np.arange(64 * 16, dtype=np.float16).reshape(64, 16),
    "model.norm.weight": np.linspace(0, 1, 16, dtype=np.float32),
}
CONFIG = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 0, "vocab_size": 64}


def error_of(kind, call, *arguments, **options):
    """Returns the message of the error of this class that the call raises."""
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main(folder):
    """Saves, loads, slices, checks digests, decodes weights, and gets errors of both modules."""
    file = folder / "model.safetensors"
    save_file(TENSORS, file, metadata={"format": "np"}, sums=True)
    loaded = load_file(file, verify=True)
    assert set(loaded) == set(TENSORS)
    for name, value in TENSORS.items():
        assert loaded[name].dtype == value.dtype, name
        assert np.array_equal(loaded[name], value), name
    embedding = TENSORS["model.embed_tokens.weight"]
    with safe_open(file, framework="np") as opened:
        assert opened.metadata() == {"format": "np"}
        part = opened.get_slice("model.embed_tokens.weight")[10:20, ::3]
    assert np.array_equal(part, embedding[10:20, ::3])

    (folder / "config.json").write_text(json.dumps(CONFIG))
    with open_weights(folder) as weights:
        assert (weights.config.dim, weights.format) == (16, "hf_safetensors")
        rows = weights["token_embedding.weight"].numpy(rows=slice(3, 5))
    assert np.array_equal(rows, embedding[3:5].astype(np.float32))

    del loaded
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "embed_tokens" in error_of(IntegrityError, load_file, file, verify=True)
    file.write_bytes(data[:-1])
    assert file.name in error_of(SafetensorError, load_file, file)
    assert "absent" in error_of(WeightsError, open_weights, folder / "absent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
    python = f"Python {platform.python_version()}, {'-'.join(platform.libc_ver()) or 'no glibc'}"
    print(f"wheel: {platform.machine()}, {python}, NumPy {np.__version__}: {_core.__build__}")
