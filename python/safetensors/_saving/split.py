"""Splits a model into shards and names its files, as huggingface_hub does.

Pure functions of names and sizes: nothing here reads or writes files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from .. import _core

SUMS = ".sums.json"
_INDEX = ".index.json"
_COMPANIONS = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
_LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_OF_OTHER_FILES = (_INDEX, SUMS)
_OF_QUANTISED = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
MAX_NAME_NBYTES = 228
"""File names may have 255 bytes, of which the end of a shard has 27."""
MAX_SHARDS = 99_999
_PLAIN = re.compile(r"[^./\\\0][^/\\\0]*")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:([KMGT])(I?))?B?")


class Split(NamedTuple):
    """The tensors of each file of a model."""

    shards: list[list[str]]
    """The names of the tensors, by file. There is at least one file, possibly without tensors."""
    total_size: int
    """The bytes of all tensors."""


def parse_size(size: int | str) -> int:
    """Returns the bytes of a size such as 1000, "5GB" (decimal) or "2GiB" (binary).

    Raises:
        ValueError: it is not a size, or less than one byte.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip().upper())
        if match is None:
            raise ValueError(f"not a size: {size[:100]!r} (examples: 5GB, 500MB, 2GiB)")
        number, prefix, binary = match.groups()
        unit = (1024 if binary else 1000) ** (" KMGT".index(prefix) if prefix else 0)
        nbytes = int(float(number) * unit)
    else:
        nbytes = size
    if nbytes < 1:
        raise ValueError(f"a shard size of {size} is too small")
    return nbytes


def split(sizes: Mapping[str, int], max_shard_size: int | str) -> Split:
    """Assigns tensors to shards, in the order of the mapping.

    A tensor larger than the limit is a shard of its own, and does not close the current shard: of
    the sizes 2, 9, 2 and a limit of 5, the shards are 9 and 2 + 2.

    Args:
        sizes: the bytes of each tensor.
        max_shard_size: the limit of the tensors of a shard; see `parse_size`.

    Raises:
        ValueError: the limit is not a size, or the model has more than 99,999 shards.
    """
    most = parse_size(max_shard_size)
    shards: list[list[str]] = []
    current: list[str] = []
    room = most
    for name, nbytes in sizes.items():
        if nbytes > most:
            shards.append([name])
            continue
        if nbytes > room:
            shards.append(current)
            current, room = [], most
        current.append(name)
        room -= nbytes
    if current or not shards:
        shards.append(current)
    if len(shards) > MAX_SHARDS:
        raise ValueError(
            f"max_shard_size={max_shard_size!r} makes {len(shards):,} shards; a model may have "
            f"{MAX_SHARDS:,}"
        )
    return Split(shards, sum(sizes.values()))


def check_name(name: str, most: int = MAX_NAME_NBYTES) -> None:
    """Raises ValueError unless files may be named after this model name of at most `most` bytes."""
    if _PLAIN.fullmatch(name) is None:
        raise ValueError(
            f"not a name for a model's files: {name!r} (it may not be empty, begin with a dot, or "
            "contain a slash, a backslash or NUL)"
        )
    if len(os.fsencode(name)) > most:
        raise ValueError(f"a model's name has at most {most} bytes: {name!r}")


def file_names(name: str, count: int) -> list[str]:
    """Returns the names of a model's files, without the index."""
    if count == 1:
        return [f"{name}.safetensors"]
    return [_shard_name(name, i, count) for i in range(1, count + 1)]


def index_name(name: str) -> str:
    """Returns the name of the index, which a model of several files has."""
    return f"{name}.safetensors{_INDEX}"


def sums_name(name: str) -> str:
    """Returns the name of the sums of a model."""
    return name + SUMS


def is_shard_name(name: str, file: str) -> bool:
    """Returns whether a file name is that of a shard of a model that was saved with this name."""
    parsed = _core._parse_model_file_name(file)
    if parsed is None or parsed[0] not in ("shard", "rank"):
        return False
    number, total = parsed[3:]
    return total <= MAX_SHARDS and file == _shard_name(name, number, total)


def _shard_name(name: str, number: int, total: int) -> str:
    return f"{name}-{number:05}-of-{total:05}.safetensors"


def model_name(file: str) -> str:
    """Returns the name of the model that has a file of this name: an index, a shard, or the only
    file."""
    stem = file.removesuffix(_INDEX).removesuffix(".safetensors")
    shard = re.fullmatch(r"(.*)-[0-9]{5}-of-[0-9]{5}", stem, re.DOTALL)
    return stem if shard is None else shard[1]


def is_companion_name(file: str) -> bool:
    """Returns whether a file of this name is one that a conversion copies with a model:
    configuration, tokenizer, licence. Not what describes files or tensors that are replaced."""
    if _PLAIN.fullmatch(file) is None or file in _OF_QUANTISED:
        return False
    if file.endswith(_OF_OTHER_FILES):
        return False
    return file.endswith(_COMPANIONS) or file.startswith(_LICENCES)


def index_text(name: str, split: Split) -> str:
    """Returns the text of the index."""
    import json

    files = file_names(name, len(split.shards))
    weight_map = {
        tensor: file
        for file, tensors in zip(files, split.shards, strict=True)
        for tensor in tensors
    }
    return json.dumps(
        {"metadata": {"total_size": split.total_size}, "weight_map": weight_map}, indent=2
    )
