"""Models on disk as named weights, whichever way they came.

An MLX or Hugging Face safetensors directory, a single `.safetensors` file, and GGUF (split files
too) have one interface: canonical names, one configuration table, packed buffers as compute kernels
take them, and decoded arrays.

    from safetensors.weights import open_weights

    with open_weights("model_dir_or_file") as w:
        w.config.dim, w.format
        t = w["layers.0.attention.q.weight"]       # nothing is read yet
        t.shape, t.type_name, t.quant
        t.numpy(rows=slice(0, 8))                  # decoded
        t.packed()                                 # the bytes for a kernel
"""

from typing import Any

from safetensors import _errors, _weights
from safetensors._weights import UnknownTensorError, WeightsError, detect_format

from ._config import ModelConfig, QuantParams, RopeScaling
from ._model import Metadata, Weights, open_weights
from ._tensor import WeightTensor

__all__ = [
    "Metadata",
    "ModelConfig",
    "QuantParams",
    "RopeScaling",
    "UnknownTensorError",
    "WeightTensor",
    "Weights",
    "WeightsError",
    "detect_format",
    "open_weights",
]


def __getattr__(name: str) -> Any:
    found = None
    if name.startswith("Weights"):
        found = _errors.class_named(name, "Weights", _weights._error_class)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
