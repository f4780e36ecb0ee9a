"""Files of single ranks, as HuggingFaceStorageWriter(save_distributed=True) names them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _json
from .._core import safe_open
from .._errors import failure
from .._saving import split

SHARDING_INFO = "DCP_SHARDING_INFO"
OFFSETS = "saved_offsets"


def model_name(name: str, rank: int) -> str:
    """Returns the name of the model of one file that a rank, from 1 on, saves."""
    return f"shard-{rank:05}-{name}-00001-of-00001"


MAX_NAME_NBYTES = split.MAX_NAME_NBYTES - len(model_name("", 1))
"""The most bytes of a name that each rank's model has a part of."""


def metadata(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Returns the metadata of a file, from where its parts begin in their tensors."""
    info = {name: {OFFSETS: list(each)} for name, each in offsets.items()}
    return {SHARDING_INFO: json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}


def file_names(name: str, ranks: int) -> list[str]:
    """Returns the names of the files of these models, of each rank from 1 on."""
    return [f"{model_name(name, rank)}.safetensors" for rank in range(1, ranks + 1)]


def offsets_of(path: str, handle: safe_open) -> dict[str, Any] | None:
    """Returns the parts' offsets as the file gives them; None for a file of whole tensors.

    Raises:
        SafetensorError: the file's metadata is damaged.
    """
    text = (handle.metadata() or {}).get(SHARDING_INFO)
    if text is None:
        return None
    try:
        found = _json.loads(text, f"{path}: {SHARDING_INFO} of the metadata")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise failure(
            "invalid_header_json",
            f"{path}: {SHARDING_INFO} of the metadata is not a JSON object",
            path=path,
            subject=SHARDING_INFO,
        )
    return found


def checked_offsets(path: str, name: str, info: Mapping[str, Any], dims: int) -> list[int]:
    """Returns where the part of a tensor begins, from the result of `offsets_of`.

    Raises:
        SafetensorError: the file does not say so.
    """
    found = info.get(name)
    offsets = found.get(OFFSETS) if isinstance(found, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != dims
        or not all(type(each) is int and 0 <= each < 1 << 63 for each in offsets)
    ):
        raise failure(
            "invalid_header_json",
            f"{path}: {SHARDING_INFO} has no valid offsets of tensor `{name}`: {str(found)[:100]}",
            path=path,
            subject=name,
        )
    return offsets
