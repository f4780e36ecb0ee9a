"""The sums of files that are being saved: the argument `sums` of functions that save."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from .. import _extra
from .._typing import Path, SumsOption
from . import digests
from . import sums as _sums
from .digests import FileDigests, Known
from .sums import SHA256, XXH3, Sums, TensorSums

Make = tuple[str | None, Callable[[str, Known | None], bytes | None]]
"""The argument of the compiled module: the path of the sums, and a function that returns their
content. It is called with the path of the complete file before the file gets its name."""


class Collect:
    """Collects the digests of a model's files as they are saved."""

    def __init__(self, sums: SumsOption) -> None:
        self._algorithms = algorithms_of(sums)
        self.files: list[FileDigests] = []

    def _make(self, temporary: str, known: Known | None) -> None:
        self.files.append(digests.of_file(temporary, self._algorithms, known))

    @property
    def make(self) -> Make:
        """For the options of a file."""
        return None, self._make


def algorithms_of(sums: SumsOption) -> list[str]:
    """Returns the algorithms of the sums to write, always with XXH3; none for no sums."""
    if sums is None or sums is False:
        return []
    wanted = [XXH3] if sums is True else [sums] if isinstance(sums, str) else list(sums)
    for each in wanted:
        if each not in (XXH3, SHA256):
            raise ValueError(f"sums is True, {XXH3!r}, {SHA256!r} or a list of these, not {each!r}")
    return [XXH3, SHA256] if SHA256 in wanted else [XXH3] if wanted else []


def of_one(sums: SumsOption, filename: Path) -> Make:
    """Returns what makes the sums of a file."""
    algorithms = algorithms_of(sums)
    path = _extra._path_to_save(filename)
    if not path.endswith(".safetensors"):
        raise ValueError(f"sums need a file whose name ends with .safetensors, not {path}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"sums are of files, and {path} is none")
    name = os.path.basename(path)

    def make(temporary: str, known: Known | None) -> bytes:
        return sums_of({name: digests.of_file(temporary, algorithms, known)}).to_bytes()

    return _sums.path_of(path), make


def sums_of(files: Mapping[str, FileDigests]) -> Sums:
    """Returns the sums of files with these names."""
    tensors: dict[str, TensorSums] = {}
    for name, found in files.items():
        for tensor, each in found.tensors.items():
            tensors[tensor] = TensorSums(name, each.digests, each.blocks)
    return Sums({name: found.file for name, found in files.items()}, tensors)
