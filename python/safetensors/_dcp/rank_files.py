"""Files of single ranks, as HuggingFaceStorageWriter(save_distributed=True) names them."""

from __future__ import annotations

import json
import os
from typing import Dict, Mapping, Sequence

from .._core import SafetensorError

SHARDING_INFO = "DCP_SHARDING_INFO"
OFFSETS = "saved_offsets"


def file_name(name: str, rank: int) -> str:
    """Returns the name of the file of a rank, from 1 on."""
    return f"shard-{rank:05}-{name}-00001-of-00001.safetensors"


def metadata(offsets: Mapping[str, Sequence[int]]) -> Dict[str, str]:
    """Returns the metadata of a file, from where its parts begin in their tensors."""
    info = {name: {OFFSETS: list(each)} for name, each in offsets.items()}
    return {SHARDING_INFO: json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}


def refuse_others(folder: str, name: str, ranks: int) -> None:
    """Raises if the folder has a file that readers would take for one of these ranks' files."""
    ours = {file_name(name, rank) for rank in range(1, ranks + 1)}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors") and file not in ours:
            raise SafetensorError(
                f"{os.path.join(folder, file)} is in the way: each rank writes a file of its own, "
                "and readers take all files of the folder for one checkpoint"
            )
