"""The tensors of a model as bytes, of files or of memory; their digests."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from .. import _core, _extra
from .._checking import sums
from .._core import safe_open
from .._model_folder import BY_RULE, Choice
from .._open_shards import open_shards, refuse_repeated
from .._saving.prepare import Prepared, prepared
from .._saving.specs import Spec, spec_in, spec_of
from .._shards import ShardFile, find_shards
from .._typing import Buffer, Sources

Model = Sources | Mapping[str, Any]
"""A file, a folder, an index or a list of these; or a dict of tensors."""


class Tensors(Protocol):
    """The tensors of a model."""

    specs: Mapping[str, Spec]
    metadata: dict[str, str] | None
    """The metadata of a model that is one file; None for others."""

    def read(self, name: str) -> Buffer:
        """Returns the bytes of a tensor, valid until the next call."""
        ...


class OpenShard(NamedTuple):
    """A file of a model, open."""

    shard: ShardFile
    handle: safe_open
    names: list[str]
    """Its tensors, in the order of their bytes."""


class FileTensors:
    """The tensors of files, one of which is in memory at a time. A context manager."""

    def __init__(self, source: Sources, choice: Choice) -> None:
        with contextlib.ExitStack() as stack:
            opened = open_shards(find_shards(source, choice=choice), None, "pread", stack)
            self.files = [
                OpenShard(shard, handle, names)
                for shard, handle, names in refuse_repeated(opened)
                if handle is not None
            ]
            self._handles = {name: file.handle for file in self.files for name in file.names}
            self.specs: Mapping[str, Spec] = {
                name: spec_in(handle, name) for name, handle in self._handles.items()
            }
            self.metadata: dict[str, str] | None = None
            if len(self.files) == 1 and not self.files[0].shard.index_path:
                self.metadata = self.files[0].handle.metadata() or {}
            self._stack = stack.pop_all()
        self._buffer = bytearray()

    def read(self, name: str) -> memoryview:
        """Returns the bytes of a tensor, which may be changed, valid until the next call."""
        begin, end = self._handles[name].get_tensor_meta(name).data_offsets
        nbytes = end - begin
        if nbytes == 0:
            return memoryview(bytearray())
        if nbytes > len(self._buffer):
            self._buffer = bytearray()  # first, so that there are never two
            self._buffer = bytearray(nbytes)
        _core._read_request(self._handles[name], name, None, _address(self._buffer), nbytes)
        return memoryview(self._buffer)[:nbytes]

    def __enter__(self) -> FileTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._buffer = bytearray()


class MemoryTensors:
    """The tensors of a dict."""

    metadata: dict[str, str] | None = None

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self.specs: Mapping[str, Spec] = {
            name: spec_of(name, tensor) for name, tensor in tensors.items()
        }

    def read(self, name: str) -> Buffer:
        return prepared_as_bytes(name, self._tensors[name]).array  # type: ignore[no-any-return]


def open_model(model: Model, stack: contextlib.ExitStack, choice: Choice = BY_RULE) -> Tensors:
    """Returns the tensors of a model, whose files the stack closes."""
    if isinstance(model, Mapping):
        choice.refuse_for("a dict")
        return MemoryTensors(model)
    return stack.enter_context(FileTensors(model, choice))


def _address(buffer: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def prepared_as_bytes(name: str, tensor: Any) -> Prepared:
    """Returns the bytes of a tensor of torch or NumPy, which are its own memory if possible."""
    data = prepared(name, tensor)
    if not isinstance(data, Prepared):
        raise TypeError(f"tensor `{name}`: expected a tensor, found {type(tensor).__name__}")
    return data


def digest_of(spec: Spec, data: Buffer, algorithm: str) -> str:
    """Returns the digest of a tensor, such as "xxh3-128:99aa..."."""
    hasher = _extra._TensorHasher(spec.dtype, spec.shape)
    if algorithm == sums.SHA256:
        sha256 = hashlib.sha256(hasher.start)
        sha256.update(data)
        return f"{algorithm}:{sha256.hexdigest()}"
    hasher.update(data)
    return hasher.digest()


def whole_digest(digests: Mapping[str, str], algorithm: str) -> str:
    """Returns the digest of a model whose tensors have these digests."""
    bare = {name: digest.partition(":")[2] for name, digest in digests.items()}
    return f"{algorithm}:{sums.whole_digest(bare, algorithm)}"
