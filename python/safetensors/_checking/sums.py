"""Reads and writes the digests of a model's tensors, `STEM.sums.json`.

docs/verify.md describes the file. What is read here may come from anyone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from .. import _extra, _json
from .._core import SafetensorError
from .._errors import failure
from .._paths import open_at_once

XXH3, SHA256 = "xxh3-128", "sha256"
BLOCK_SIZE: int = _extra._DIGEST_BLOCK_SIZE
SUFFIX = ".sums.json"
OF_FOLDER = "model" + SUFFIX
"""The name of the sums of all files of a folder."""

Digests = dict[str, str]
"""Hexadecimal digests by algorithm."""


class FileSums(NamedTuple):
    """What the sums say about a file."""

    nbytes: int
    header: Digests
    """The digest of the header and the 8 bytes before it."""
    sha256: str | None = None
    """The SHA-256 of the whole file."""


class TensorSums(NamedTuple):
    """What the sums say about a tensor."""

    file: str
    digests: Digests
    blocks: bytes | None = None
    """XXH3-64 of each block, 8 little-endian bytes each."""


class Sums(NamedTuple):
    """The digests of a model."""

    files: dict[str, FileSums]
    """By path, relative to the model's folder."""
    tensors: dict[str, TensorSums]
    block_size: int = BLOCK_SIZE

    def whole(self) -> Digests:
        """Returns the digests of the model, by the algorithms that all its tensors have."""
        found = {algorithm: self._whole_of(algorithm) for algorithm in (XXH3, SHA256)}
        return {algorithm: digest for algorithm, digest in found.items() if digest is not None}

    def _whole_of(self, algorithm: str) -> str | None:
        """Returns the digest of the model by this algorithm, or None if a tensor lacks it."""
        if not all(algorithm in each.digests for each in self.tensors.values()):
            return None
        digests = {name: each.digests[algorithm] for name, each in self.tensors.items()}
        return whole_digest(digests, algorithm)

    def to_bytes(self) -> bytes:
        """Returns the file. The same sums give the same bytes."""
        files = [(path, each.nbytes, each.header, each.sha256) for path, each in self.files.items()]
        tensors = [
            (name, each.file, each.digests, each.blocks)
            for name, each in sorted(self.tensors.items())
        ]
        for path in self.files:
            if not path.isprintable() and path != path.encode("utf-8", "replace").decode():
                text = f"sums name files in UTF-8, which {os.fsencode(path)!r} is not"
                raise failure("invalid_argument", text, path=path)
        return _extra._sums_json(files, tensors, self._whole_of(SHA256))


def path_of(path: str) -> str:
    """Returns where the sums of a file, or of the model of an index, are."""
    return _extra._sums_path(path)


def name_of_model(name: str, variant: str) -> str:
    """Returns the name of the sums of a model in several files of a folder."""
    return _extra._sums_name(name, variant)


def whole_digest(digests: Mapping[str, str], algorithm: str = SHA256) -> str:
    """Returns the digest of a model whose tensors have these digests, by name."""
    pairs = sorted(digests.items())
    if algorithm != SHA256:
        pieces: list[bytes] = []
        _extra._whole_text(pairs, algorithm, pieces.append)
        return _extra._xxh3_128(b"".join(pieces)).partition(":")[2]
    hasher = hashlib.sha256()
    _extra._whole_text(pairs, algorithm, hasher.update)
    return hasher.hexdigest()


def read(path: str) -> Sums:
    """Reads the sums of a model. Raises SafetensorError if the file is not valid."""
    if not os.path.isfile(path):
        raise absent(path)
    with open(path, "rb", opener=open_at_once) as file:
        return parse(file.read(_json.MAX_NBYTES + 1), path)


def absent(path: str) -> SafetensorError:
    """Returns the error for a file of sums that does not exist."""
    return failure("io", f"No sums of the model: {path}", path=path, also=FileNotFoundError)


def parse(data: bytes, path: str) -> Sums:
    """Returns the sums in a file's bytes. Errors name the file as `path`."""
    try:
        files, tensors, sha256 = _extra._parse_sums(data)
    except SafetensorError as error:
        raise failure("invalid_header_json", str(error), path=path) from None
    sums = Sums(
        {each[0]: FileSums(*each[1:]) for each in files},
        {each[0]: TensorSums(*each[1:]) for each in tensors},
    )
    # XXH3 is compared by the compiled module, which has no SHA-256.
    if sha256 is not None and sha256 != sums._whole_of(SHA256):
        raise failure(
            "damaged",
            "Invalid sums: `whole` is not the digest of the tensors' digests: the sums are damaged",
            path=path,
        )
    return sums
