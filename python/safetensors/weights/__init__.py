"""Opens models of several formats as named weights.

MLX and Hugging Face directories of safetensors files, single `.safetensors` files, and GGUF files
(also split ones) have one interface: canonical tensor names, one configuration table, packed
buffers in the layout that kernels expect, and decoded arrays.

    from safetensors.weights import open_weights

    with open_weights("model_dir_or_file") as w:
        w.config.dim, w.format
        t = w["layers.0.attention.q.weight"]       # reads no tensor data
        t.shape, t.type_name, t.quant
        t.numpy(rows=slice(0, 8))                  # eight rows, decoded to float32
        t.packed()                                 # the bytes for a kernel
"""

from typing import Any

from safetensors import _errors, _weights
from safetensors._weights import UnknownTensorError, WeightsError, detect_format

from ._config import ModelConfig, QuantParams, RopeScaling, SchemeParams
from ._convert import convert
from ._model import Metadata, Weights, open_weights
from ._tensor import WeightTensor

__all__ = [
    "Metadata",
    "ModelConfig",
    "QuantParams",
    "RopeScaling",
    "SchemeParams",
    "UnknownTensorError",
    "WeightTensor",
    "Weights",
    "WeightsError",
    "convert",
    "detect_format",
    "open_weights",
]

# Tracebacks, pickles and help() name the public module, not the private one of the definition.
for _name in __all__:
    globals()[_name].__module__ = __name__


def __getattr__(name: str) -> Any:
    found = None
    if name.startswith("Weights"):
        found = _errors.class_named(name, "Weights", _weights._error_class)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
