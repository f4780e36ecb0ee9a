"""Splits a model into shards and names its files, as huggingface_hub does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .. import _extra

MAX_NAME_NBYTES: int = _extra._MAX_MODEL_NAME
"""The most bytes of a model's name."""
MAX_SHARDS: int = _extra._MAX_SHARDS
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:([KMGT])(I?))?B?")
_MAX = (1 << 64) - 1


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
    most = min(parse_size(max_shard_size), _MAX)
    names = list(sizes)
    try:
        shards = _extra._plan_shards(list(sizes.values()), most)
    except ValueError as error:  # in the terms of the caller
        text = str(error).replace(f"max_shard_nbytes={most}", f"max_shard_size={max_shard_size!r}")
        raise ValueError(text) from None
    return Split([[names[i] for i in shard] for shard in shards], sum(sizes.values()))


def file_names(name: str, count: int) -> list[str]:
    """Returns the names of a model's files, without the index."""
    return _extra._shard_file_names(name, count)


def index_name(name: str) -> str:
    """Returns the name of the index, which a model of several files has."""
    return _extra._index_file_name(name)
