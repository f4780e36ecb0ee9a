"""The sums of files that are being saved: the argument `sums` of functions that save."""

from __future__ import annotations

import os
from typing import Callable, List, Mapping, Optional, Tuple

from . import _digests, _sums
from ._sums import SHA256, XXH3, Sums, TensorSums
from ._typing import Path, SumsOption

Known = Mapping[str, Optional[Tuple[str, bytes]]]
"""XXH3-128 and the blocks of tensors that were hashed while they were written; None for others."""
Make = Tuple[Optional[str], Callable[[str, Known], Optional[bytes]]]
"""The argument of the compiled module: the path of the sums, and a function that returns their
content. It is called with the path of the complete file before the file gets its name."""


def algorithms_of(sums: SumsOption) -> List[str]:
    """Returns the algorithms of the sums to write, always with XXH3; none for no sums."""
    if sums is None or sums is False:
        return []
    wanted = [XXH3] if sums is True else [sums] if isinstance(sums, str) else list(sums)
    for each in wanted:
        if each not in (XXH3, SHA256):
            raise ValueError(f"sums is True, {XXH3!r}, {SHA256!r} or a list of these, not {each!r}")
    return [XXH3, SHA256] if SHA256 in wanted else [XXH3] if wanted else []


def of_one(sums: SumsOption, filename: Path) -> Optional[Make]:
    """Returns what makes the sums of a file that is not a shard; None for no sums."""
    algorithms = algorithms_of(sums)
    if not algorithms:
        return None
    path = os.fsdecode(filename)
    if not path.endswith(".safetensors"):
        raise ValueError(f"sums need a file whose name ends with .safetensors, not {path}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"sums are of files, and {path} is none")
    name = os.path.basename(path)

    def make(temporary: str, known: Known) -> bytes:
        found = _digests.of_file(temporary, algorithms, known)
        tensors = {
            each: TensorSums(name, tensor.digests, tensor.blocks)
            for each, tensor in found.tensors.items()
        }
        return Sums({name: found.file}, tensors).to_bytes()

    return path.removesuffix(".safetensors") + _sums.SUFFIX, make
