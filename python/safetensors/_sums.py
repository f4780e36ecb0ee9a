"""Reads and writes the digests of a model's tensors, `STEM.sums.json`.

docs/verify.md describes the file. What is read here may come from anyone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from . import _core
from ._core import SafetensorError

XXH3, SHA256 = "xxh3-128", "sha256"
BLOCK_SIZE = 4 << 20
SUFFIX = ".sums.json"
_MOST_NBYTES = 100_000_000
_HEX = {XXH3: re.compile("[0-9a-f]{32}"), SHA256: re.compile("[0-9a-f]{64}")}

Digests = Dict[str, str]
"""Hexadecimal digests by algorithm."""


class FileSums(NamedTuple):
    """What the sums say about a file."""

    nbytes: int
    header: Digests
    """Digests of the header and the 8 bytes before it. One is enough."""
    sha256: Optional[str] = None
    """The SHA-256 of the whole file."""


class TensorSums(NamedTuple):
    """What the sums say about a tensor."""

    file: str
    digests: Digests
    blocks: Optional[bytes] = None
    """XXH3-64 of each block, 8 little-endian bytes each."""


class Sums(NamedTuple):
    """The digests of a model."""

    files: Dict[str, FileSums]
    """By path, relative to the model's folder."""
    tensors: Dict[str, TensorSums]
    block_size: int = BLOCK_SIZE

    def whole(self) -> Digests:
        """Returns the digests of the model, by the algorithms that all its tensors have."""
        return {
            algorithm: whole_digest(
                {name: each.digests[algorithm] for name, each in self.tensors.items()}, algorithm
            )
            for algorithm in _HEX
            if all(algorithm in each.digests for each in self.tensors.values())
        }

    def to_bytes(self) -> bytes:
        """Returns the file. The same sums give the same bytes."""
        files: Dict[str, Any] = {}
        for path, file in self.files.items():
            (header,) = _to_texts(file.header)
            files[path] = {"size": file.nbytes, "header": header}
            if file.sha256 is not None:
                files[path]["sha256"] = file.sha256
        tensors: Dict[str, Any] = {}
        for name, each in self.tensors.items():
            tensors[name] = {"file": each.file, "digest": _to_texts(each.digests)}
            if each.blocks is not None:
                tensors[name]["blocks"] = base64.b64encode(each.blocks).decode()
        content = {
            "format": "safetensors-sums",
            "version": 1,
            "whole": _to_texts(self.whole()),
            "block_size": self.block_size,
            "files": files,
            "tensors": tensors,
        }
        return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()


def whole_digest(digests: Mapping[str, str], algorithm: str = SHA256) -> str:
    """Returns the digest of a model whose tensors have these digests, by name."""
    lines = "".join(f"{json.dumps(name)} {digests[name]}\n" for name in sorted(digests)).encode()
    if algorithm == SHA256:
        return hashlib.sha256(lines).hexdigest()
    return _core._xxh3_128(lines).partition(":")[2]


def read(path: str) -> Sums:
    """Reads the sums of a model. Raises SafetensorError if the file is not valid."""
    if not os.path.isfile(path):
        raise _core._error_class(FileNotFoundError)(f"No sums of the model: {path}")
    with open(path, "rb") as file:
        return parse(file.read(_MOST_NBYTES + 1), path)


def parse(data: bytes, path: str) -> Sums:
    """Returns the sums in a file's bytes. Errors name the file as `path`."""
    try:
        return _parse(data)
    except _Invalid as error:
        raise SafetensorError(f"Invalid sums: {error} (in {path})") from None


class _Invalid(Exception):
    """What is wrong with the content."""


def _parse(data: bytes) -> Sums:
    if len(data) > _MOST_NBYTES:
        raise _Invalid(f"more than {_MOST_NBYTES:,} bytes")
    try:
        content = json.loads(
            data.decode(), object_pairs_hook=_without_twins, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise _Invalid(f"not JSON: {error}") from None
    content = _of_type(content, dict, "the content")
    if content.get("format") != "safetensors-sums":
        raise _Invalid("`format` is not `safetensors-sums`")
    if type(content.get("version")) is not int or content["version"] != 1:
        raise _Invalid(f"version {_quoted(content.get('version'))} is unknown")
    block_size = content.get("block_size")
    if type(block_size) is not int or block_size != BLOCK_SIZE:
        raise _Invalid(f"`block_size` is {_quoted(block_size)} instead of {BLOCK_SIZE}")
    files = {
        _path(path): _file(each, path)
        for path, each in _of_type(content.get("files"), dict, "`files`").items()
    }
    tensors = {
        _text(name): _tensor(each, name, files)
        for name, each in _of_type(content.get("tensors"), dict, "`tensors`").items()
    }
    sums = Sums(files, tensors, block_size)
    # Else a damaged digest in the sums would accuse a good tensor.
    if _from_texts(content.get("whole"), "`whole`") != sums.whole():
        raise _Invalid("`whole` is not the digest of the tensors' digests: the sums are damaged")
    return sums


def _file(value: Any, path: str) -> FileSums:
    where = f"file {_quoted(path)}"
    value = _of_type(value, dict, where)
    size = value.get("size")
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise _Invalid(f"{where} has no size")
    sha256 = value.get("sha256")
    if sha256 is not None and not (isinstance(sha256, str) and _HEX[SHA256].fullmatch(sha256)):
        raise _Invalid(f"{where}: `sha256` is not 64 hexadecimal digits in lower case")
    return FileSums(size, _from_texts([value.get("header")], f"`header` of {where}"), sha256)


def _tensor(value: Any, name: str, files: Mapping[str, FileSums]) -> TensorSums:
    where = f"tensor {_quoted(name)}"
    value = _of_type(value, dict, where)
    file = value.get("file")
    if not isinstance(file, str) or file not in files:
        raise _Invalid(f"{where}: its file is not in `files`")
    digests = _from_texts(value.get("digest"), f"`digest` of {where}")
    blocks = value.get("blocks")
    if blocks is None:
        return TensorSums(file, digests)
    try:
        decoded = base64.b64decode(_of_type(blocks, str, f"`blocks` of {where}"), validate=True)
    except (ValueError, binascii.Error):
        raise _Invalid(f"`blocks` of {where} are not base64") from None
    if len(decoded) % 8:
        raise _Invalid(f"`blocks` of {where} do not have 8 bytes each")
    return TensorSums(file, digests, decoded)


def _from_texts(value: Any, where: str) -> Digests:
    """Converts a list such as ["xxh3-128:99aa..."]."""
    digests: Digests = {}
    for text in _of_type(value, list, where):
        algorithm, _, digits = text.partition(":") if isinstance(text, str) else ("", "", "")
        if algorithm not in _HEX or not _HEX[algorithm].fullmatch(digits) or algorithm in digests:
            raise _Invalid(f"{where}: {_quoted(text)} is not a digest, or the second one")
        digests[algorithm] = digits
    if not digests:
        raise _Invalid(f"{where}: there is no digest")
    return digests


def _to_texts(digests: Digests) -> List[str]:
    return [f"{algorithm}:{digits}" for algorithm, digits in sorted(digests.items())]


def _path(path: str) -> str:
    """Returns a path if it stays below the folder. The rules of all systems apply at once."""
    parts = re.split(r"[/\\]", _text(path))
    has_name = any(part not in ("", ".") for part in parts)
    if not parts[0] or path[1:2] == ":" or ".." in parts or "\0" in path or not has_name:
        raise _Invalid(f"{_quoted(path)} is not a file below the folder of the model")
    return path


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeError:
        raise _Invalid("a string holds half of a surrogate pair") from None
    return text


def _of_type(value: Any, wanted: type, where: str) -> Any:
    if not isinstance(value, wanted):
        kind = {"dict": "an object", "list": "a list", "str": "a string"}[wanted.__name__]
        raise _Invalid(f"{where} is not {kind}")
    return value


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _without_twins(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        for key, _ in pairs:
            if key not in found:
                raise _Invalid(f"{_quoted(key)} occurs twice")
            del found[key]
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise _Invalid(f"not JSON: {text}")
