"""Tells which paths the weight layer opens by default, and opens them as their files are.

One rule for the command line, `summary` and reports. It reads no tensor and no header.
"""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, Any

from . import _json
from ._errors import failure
from ._extra import _describes_quantised, _parse_model_file_name
from ._model_folder import BY_RULE, Choice
from ._paths import is_url, open_at_once
from ._saving.companions import QUANTISATION, tables_of

if TYPE_CHECKING:
    from ._typing import Path
    from .weights import Weights


def is_weight_model(path: Path, choice: Choice = BY_RULE) -> bool:
    """Returns whether a local path is a GGUF file or part of one, a folder with a GGUF model, or a
    safetensors model whose configuration says that it is quantised.

    A shard alone is none, neither are patches and other files, nor what does not exist. In a build
    without the weight layer, nothing is one.

    Raises:
        SafetensorError: the configuration cannot be read.
    """
    if is_url(path) or not os.path.exists(path):
        return False
    return is_gguf(path, choice) or (_is_quantised(os.fsdecode(path)) and _layer() is not None)


def is_gguf(path: Path, choice: Choice) -> bool:
    """Returns whether open_weights() opens a local path as GGUF."""
    layer = _layer() if choice == BY_RULE else None  # only safetensors models are chosen
    if layer is None:
        return False
    try:
        return bool(layer.detect_format(path) == "gguf")
    except (layer.WeightsError, OSError, ValueError):
        return False


def gguf_models(folder: str) -> list[str]:
    """Returns the GGUF models of a folder, of one in several files the first.

    Requires: is_gguf(folder).
    """
    layer = _layer()
    assert layer is not None
    found: list[str] = layer._gguf_models(folder)
    return found


def open_as_stored(
    path: Path, choice: Choice = BY_RULE, *, layout: str = "native", cache_bytes: int | None = None
) -> Weights:
    """Opens a model with the types and bytes of its files, not those of a kernel.

    Raises:
        WeightsError: the weight layer refuses it.
        ImportError: this build has no weight layer.
    """
    from .weights import open_weights

    return open_weights(
        path,
        layout=layout,
        bf16="keep",
        scales="keep",
        cache_bytes=cache_bytes,
        **choice._asdict(),
    )


def _layer() -> Any:
    """Returns the compiled weight layer; None in a build without it."""
    try:
        from . import _weights  # all of .weights takes longer to import
    except ImportError:
        return None
    return _weights


def _is_quantised(path: str) -> bool:
    folder = path
    if not os.path.isdir(path):
        folder, file = os.path.split(path)
        parsed = _parse_model_file_name(file)
        if parsed is None or parsed[0] not in ("single", "index"):
            return False
    if any(map(_describes_quantised, os.listdir(folder or "."))):
        return True
    config = _read_config(os.path.join(folder, "config.json"))
    return any(table.get(key) for table in tables_of(config) for key in QUANTISATION)


def _read_config(path: str) -> dict[str, Any]:
    """Returns a configuration; an empty one without a file. Raises SafetensorError if it cannot be
    read: it may say that the model is quantised."""
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, "rb", opener=open_at_once) as file:
            data = file.read(_json.MAX_NBYTES + 1)
        if data.startswith(codecs.BOM_UTF8):  # as Hugging Face's libraries
            raise ValueError("it begins with a byte order mark")
        config = _json.loads(data, path, error=ValueError)
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, found {type(config).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise failure(
            "invalid_argument",
            f"{path} does not say whether the model is quantised: {error}",
            path=path,
        ) from None
    return config
