"""Finds the digests that files are compared with while they are read: the argument `verify`.

The compiled module imports it to raise IntegrityError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core, _extra
from .._core import SafetensorError
from .._errors import failure, failure_of
from .._paths import is_url, without_secrets
from . import sums as _sums
from .sums import SHA256, XXH3, FileSums, Sums, TensorSums

if TYPE_CHECKING:
    from .._typing import Digests, FileOfLoad, Verify


class Damage(NamedTuple):
    """A range of a file that differs from its digest."""

    tensor: str
    """Empty for a whole file."""
    file: str
    begin: int
    """The first byte, in the file."""
    end: int
    expected: str
    """The digest that the range should have; of a range of several blocks, that of the first."""
    found: str


class IntegrityError(SafetensorError, ValueError):
    """The bytes of a file differ from the digests that they should have."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.damaged: list[Damage] = []
        """The first 20 ranges that differ. Empty if the size or the header of the file differs, or
        a tensor is missing."""
        self.count = 0
        """The number of all of them."""


def missing(source: str, what: str, why: str, subject: str | None = None) -> IntegrityError:
    """Returns the error for a file or tensor that should be there.

    Args:
        source: the folder or the index that should lead to it.
        what: the file or tensor.
        why: which digests name it.
        subject: the name of the tensor.
    """
    return failure_of(
        IntegrityError,
        "damaged",
        f"{source}: {what} is missing: {why}",
        path=source,
        subject=subject,
    )


class Absent(NamedTuple):
    """Tensors that sums name, and no file of the load has."""

    source: str
    """The folder or the index that should lead to them."""
    names: list[str]
    sums: str
    """The sums that have their digests."""


def digests_for(
    filename: Any, verify: Verify, expected_hashes: Mapping[str, str] | None
) -> Digests | None:
    """Returns the digests of a file that is opened by itself, for the compiled module."""
    verifier = verifier_of(verify, expected_hashes)
    if verifier is None:
        return None
    if isinstance(filename, (str, bytes, os.PathLike)):
        path = os.fsdecode(filename)
        if is_url(path):
            from .._remote.open import find_cached

            cached = find_cached(path)
            path = path if cached is None else cached.path
        return verifier.digests(path, is_local=not is_url(path))
    return verifier.digests(filename.name, is_local=False)


def verifier_of(
    verify: Any, expected_hashes: Mapping[str, str] | None = None
) -> Verifier | FileHashes | None:
    """Returns what finds the digests of files; None if they are not to be compared.

    Raises:
        ValueError: both are given.
    """
    is_wanted = verify is not None and verify is not False
    if expected_hashes is not None:
        if is_wanted:
            raise ValueError("verify and expected_hashes cannot be given together")
        return FileHashes(expected_hashes)
    if not is_wanted or isinstance(verify, FileHashes):
        return verify or None
    return Verifier(verify)


class FileHashes:
    """The SHA-256 of whole files, by their names or paths. Opening a file reads all of it."""

    reads_all = True

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)
        self._paths = list(self._hashes)
        self._find = _extra._path_ends(self._paths)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileHashes, ({without_secrets(name): each for name, each in self._hashes.items()},)

    def digests(self, path: str, index_path: str = "", is_local: bool = True) -> Digests:
        """Returns the digest of a file.

        Raises:
            SafetensorError: there is none.
        """
        found = self._find(path)
        if found is None:
            raise failure(
                "invalid_argument",
                "expected_hashes has no entry for the file",
                path=path,
            )
        return None, None, {}, True, "sha256:" + self._hashes[self._paths[found]].lower()

    def absent(self, shards: Sequence[FileOfLoad]) -> list[Absent]:
        """Returns nothing: the hashes of files do not say which tensors a model has.

        Raises:
            IntegrityError: a folder or an index leads to a numbered file of a model, such as
                model-00001-of-00002.safetensors, and not to another one of the same model that has
                a hash.
        """
        present = {_parts_of(shard.path)[-1] for shard in shards}
        sources = {
            model: source
            for shard in shards
            for model, source in [(_numbered(shard.path), _source_of(shard))]
            if model is not None and source
        }
        for name in self._hashes:
            model = _numbered(name)
            if model is not None and model in sources and _parts_of(name)[-1] not in present:
                raise missing(sources[model], name, "expected_hashes has its digest")
        return []


class Verifier:
    """Finds the digests of files. Reads each file of sums once."""

    reads_all = False

    def __init__(self, verify: Any) -> None:
        self._algorithm: str | None = None
        self._sums: _ByFile | None = None
        self._digests: dict[str, tuple[str, None]] | None = None
        self._read: dict[str, _ByFile] = {}
        self._read_sums: Callable[[str], Sums] = _sums.read
        if isinstance(verify, Sums):
            self._sums = _ByFile(verify, "the sums")
        elif isinstance(verify, Mapping):
            self._digests = {name: (digest, None) for name, digest in verify.items()}
        elif hasattr(verify, "_read_sums"):
            self._algorithm = verify.algorithm
            self._read_sums = verify._read_sums
        elif verify in (XXH3, SHA256):
            self._algorithm = verify
        elif isinstance(verify, (str, bytes, os.PathLike)):
            path = os.fsdecode(verify)
            self._sums = _ByFile(_sums.read(path), path)
        elif verify is not True:
            raise TypeError(
                'verify is True, "xxh3-128", "sha256", the path of a file of sums, or a dict from '
                f"names of tensors to digests, not {type(verify).__name__}"
            )

    def digests(self, path: str, index_path: str = "", is_local: bool = True) -> Digests:
        """Returns the digests of a file.

        Args:
            path: the file.
            index_path: the index that names it; empty without one.
            is_local: whether sums may be beside it.

        Raises:
            FileNotFoundError: there are no sums.
            SafetensorError: the sums are not valid, or lack the file or a digest.
        """
        if self._digests is not None:
            return None, None, self._digests, True, None
        sums = self._sums_of(path, index_path, is_local)
        file = sums.file_of(path)
        nbytes, header, _ = sums.files[file]
        tensors = {
            name: self._of_tensor(name, each, sums.path)
            for name, each in sums.tensors[file].items()
        }
        by = SHA256 if self._algorithm == SHA256 and SHA256 in header else next(iter(header))
        return nbytes, f"{by}:{header[by]}", tensors, False, None

    def _of_tensor(
        self, name: str, tensor: TensorSums, where: str
    ) -> tuple[str | None, bytes | None]:
        digests, wanted = tensor.digests, self._algorithm
        if wanted is not None and wanted not in digests:
            raise failure(
                "invalid_argument",
                f"{where}: tensor `{name}` has no digest by {wanted}",
                path=where,
                subject=name,
            )
        by = wanted or (XXH3 if XXH3 in digests else SHA256)
        blocks = None if wanted == SHA256 else tensor.blocks
        return f"{by}:{digests[by]}", blocks

    def _sums_of(self, path: str, index_path: str, is_local: bool) -> _ByFile:
        return self._sums or self._beside(path, index_path, is_local)

    def _beside(self, path: str, index_path: str, is_local: bool) -> _ByFile:
        if not is_local:
            raise ValueError(
                "sums are looked for beside local files only: for a URL or a RangeReader, verify "
                f"is the path of the sums or a dict of digests (in {path})"
            )
        candidates = [_sums.path_of(index_path)] if index_path else _extra._sums_paths(path)
        sums = _first_of(path, candidates, self._read_once)
        if sums is not None:
            return sums
        # The file's own absence says more than that of its sums.
        _core._open_shard(os.fsencode(path), "pread", None, None).close()
        return self._read_once(candidates[0])  # raises: there are none

    def _read_once(self, path: str) -> _ByFile:
        if path not in self._read:
            self._read[path] = _ByFile(self._read_sums(path), path)
        return self._read[path]

    def absent(self, shards: Sequence[FileOfLoad]) -> list[Absent]:
        """Returns the tensors of the sums that no file of a load has: what a stranger removed.

        All tensors have to be there of sums that are used for a folder or an index. A file that
        the caller names stands for itself: the other files of its sums are excluded, and its own
        tensors are those that its header names, whose digest is compared when it is opened.

        A dict of digests says nothing about which tensors there are.

        Raises:
            FileNotFoundError, SafetensorError: as digests().
        """
        if self._digests is not None or not any(map(_source_of, shards)):
            return []
        sources: dict[int, str] = {}
        used: dict[int, tuple[_ByFile, set[str]]] = {}
        for shard in shards:
            sums = self._sums_of(shard.path, shard.index_path, shard.reader is None)
            _, present = used.setdefault(id(sums), (sums, set()))
            if shard.names is None:
                present.update(sums.tensors[sums.file_of(shard.path)])
            else:
                present.update(shard.names)
            source = _source_of(shard)
            if source:
                sources.setdefault(id(sums), source)
        found = []
        for key, source in sources.items():
            sums, present = used[key]
            names = [name for each in sums.tensors.values() for name in each if name not in present]
            if names:
                found.append(Absent(source, names, sums.path))
        return found


class _ByFile:
    """Sums, with the tensors of each file."""

    def __init__(self, sums: Sums, path: str) -> None:
        self.path = path
        self.files: dict[str, FileSums] = sums.files
        self.tensors: dict[str, dict[str, TensorSums]] = {file: {} for file in sums.files}
        for name, tensor in sums.tensors.items():
            self.tensors[tensor.file][name] = tensor
        self._paths = list(sums.files)
        self._find = _extra._path_ends(self._paths)

    def has(self, path: str) -> bool:
        """Returns whether an entry is the end of a file's path."""
        return self._find(path) is not None

    def file_of(self, path: str) -> str:
        """Returns the entry of a file: the longest that its path ends with, or the only one."""
        found = self._find(path)
        if found is not None:
            return self._paths[found]
        if len(self.files) != 1:
            raise failure("invalid_argument", f"{self.path} has no digests of the file", path=path)
        return next(iter(self.files))


def sums_beside(path: str) -> str | None:
    """Returns the path of the sums of a file that the caller names; None if it has none."""
    found = _first_of(path, _extra._sums_paths(path), lambda each: _ByFile(_sums.read(each), each))
    return None if found is None else found.path


def _first_of(
    path: str, candidates: Sequence[str], read: Callable[[str], _ByFile]
) -> _ByFile | None:
    for found in filter(os.path.exists, candidates):
        sums = read(found)
        # model.sums.json may be of model.safetensors, beside which this file is.
        if found == candidates[0] or sums.has(path):
            return sums
    return None


def _parts_of(path: str) -> list[str]:
    return re.split(r"[/\\]", path)


def _source_of(shard: FileOfLoad) -> str:
    """Returns the folder or the index that led to a file; empty if the caller named the file."""
    return shard.index_path or shard.folder


def _numbered(path: str) -> tuple[str, str, str, int] | None:
    """Returns what the names of all files of a model in numbered files have; None for others."""
    parsed = _extra._parse_model_file_name(_parts_of(path)[-1])
    if parsed is None or parsed[0] not in ("shard", "rank"):
        return None
    kind, name, variant, _, total = parsed
    return kind, name, variant, total
