"""Reads checkpoints of torch.distributed.checkpoint from safetensors files: StorageReader."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _Base

from .. import _core
from .._core import SafetensorError, safe_open
from .._paths import is_url
from .._shards import find_shards, open_shards
from .._torch.dtypes import Form, form_of
from .._torch.load_into import _device, _memory, _problem, _request
from .._torch.wanted import Wanted
from .._typing import Sources
from . import rank_files
from .parts import Part, SplitTensor

_STAGING_NBYTES = 32 << 20
_ALIGNMENT = 64


class StorageReader(_Base):
    """Loads tensors of a checkpoint into those of a state dict.

    The files are those of `StorageWriter`, of torch's `HuggingFaceStorageWriter`, or of any model:
    each rank reads the bytes that its own tensors take, also if other ranks had saved them.

    A file that is replaced or changed while `dcp.load` runs causes an error. If reading fails, some
    tensors have new values and others their old ones.
    """

    def __init__(
        self, path: Sources, *, storage_options: Optional[Mapping[str, Any]] = None
    ) -> None:
        """Makes a reader. Opens nothing.

        Args:
            path: a folder, a file, an index, a URL of one of these, or a list, as the `filenames`
                of `safetensors.torch.load_files`.
            storage_options: settings for URLs.
        """
        self._path = path
        self._options = storage_options
        self._parts: Dict[MetadataIndex, Part] = {}
        self._files: Optional[ExitStack] = None

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickles the path: the options may hold secrets, and files are open in one process."""
        return type(self), (self._path,)

    def reset(self, checkpoint_id: Optional[Union[str, os.PathLike[str]]] = None) -> None:
        """Closes the files of a load that did not end. `checkpoint_id` is read next."""
        self._close()
        if checkpoint_id:
            self._path = checkpoint_id

    # Without keyword arguments: else `load` would call it again after an error, for a rank alone.
    def read_metadata(self) -> Metadata:
        """Opens the files, and returns which parts of which tensors they have.

        Raises:
            FileNotFoundError, SafetensorError: as `load_files`. Or parts of a tensor are missing,
                overlap or differ in dtype.
        """
        self._close()
        tensors: Dict[str, SplitTensor] = {}
        with ExitStack() as stack:
            for shard, handle, names in open_shards(
                find_shards(self._path, self._options), None, "pread", stack
            ):
                if handle is not None:
                    _add_parts(tensors, shard.path, handle, names)
            found: Dict[str, Any] = {}
            for name, tensor in tensors.items():
                tensor.check()
                found[name] = _metadata_of(tensor)
                for part, chunk in zip(tensor.parts, found[name].chunks, strict=True):
                    if 0 not in part.shape:  # it may begin where another part does
                        self._parts[MetadataIndex(name, chunk.offsets)] = part
            self._files = stack.pop_all()
        # With it, a planner can make a state dict of some of the tensors.
        return Metadata(found, planner_data={name: (name,) for name in found})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: the files are open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """Returns the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Reads this rank's part of the plan, closes the files, and returns a future that is done.

        Raises:
            SafetensorError: a file cannot be read or has changed, or the plan does not fit.
        """
        if self._files is None:
            raise SafetensorError("read_data reads the files that read_metadata opened: call it")
        try:
            items = [self._item(each, planner) for each in plan.items]
            _load(items)
        finally:
            self._close()
        for item, asked in zip(items, plan.items, strict=True):
            planner.commit_tensor(asked, item.tensor)
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        """Returns whether it is a URL, or a path that exists."""
        return is_url(checkpoint_id) or os.path.exists(checkpoint_id)

    def _item(self, asked: ReadItem, planner: LoadPlanner) -> _Item:
        name = asked.storage_index.fqn
        part = self._parts.get(asked.storage_index)
        if part is None or asked.type == LoadItemType.BYTE_IO:
            what = "tensor" if part is None else "other value than the tensor"
            raise SafetensorError(f"The files do not contain the {what} {name!r} at this place")
        tensor = planner.resolve_tensor(asked).detach()
        if tensor.is_meta:
            raise SafetensorError(
                f"Cannot load tensor {name!r} into the one given: it has no memory"
            )
        begin, sizes = tuple(asked.storage_offsets), tuple(asked.lengths)
        dtype, shape = form_of(part.source.get_tensor_meta(name))
        if tuple(tensor.shape) != sizes or not _fits(shape, begin, sizes):
            raise SafetensorError(
                f"{part.path}: the plan reads {list(sizes)} at {list(begin)} of tensor {name!r}, "
                f"which is {list(shape)} in this file, into a tensor of shape {list(tensor.shape)}"
            )
        return _Item(name, part.source, (dtype, shape), begin, tensor)

    def _close(self) -> None:
        files, self._files = self._files, None
        self._parts = {}
        if files is not None:
            files.close()


class _Item(NamedTuple):
    """What to read, and the tensor that takes it."""

    name: str
    handle: safe_open
    form: Form
    """The dtype and shape of the file's tensor."""
    begin: Tuple[int, ...]
    tensor: torch.Tensor

    def wanted(self) -> Wanted:
        """Returns the part of the file's tensor."""
        (dtype, shape), sizes = self.form, tuple(self.tensor.shape)
        nbytes = self.tensor.numel() * dtype.itemsize
        if sizes == shape:
            return Wanted(self.name, self.handle, None, nbytes)
        index = [slice(b, b + size) for b, size in zip(self.begin, sizes, strict=True)]
        if sizes[-1] == shape[-1]:
            index[-1] = slice(None)  # of F4, the file's last axis is longer than torch's
        return Wanted(self.name, self.handle, tuple(index), nbytes)

    def pieces(self, limit: int) -> Iterator[_Item]:
        """Yields items of at most `limit` bytes of the file, or of one element."""
        sizes = self.tensor.shape
        axis = next((axis for axis, size in enumerate(sizes) if size > 1), None)
        if self.wanted().nbytes <= limit or axis is None:
            yield self
            return
        half = sizes[axis] // 2
        for begin, size in ((0, half), (half, sizes[axis] - half)):
            first = list(self.begin)
            first[axis] += begin
            tensor = self.tensor.narrow(axis, begin, size)
            yield from self._replace(begin=tuple(first), tensor=tensor).pieces(limit)


def _add_parts(
    tensors: Dict[str, SplitTensor], path: str, handle: safe_open, names: Sequence[str]
) -> None:
    """Adds the parts that a file has."""
    info = rank_files.offsets_of(path, handle)
    for name in names:
        meta = handle.get_tensor_meta(name)
        dims = len(meta.shape)
        offsets = [0] * dims
        if info is not None:
            offsets = rank_files.checked_offsets(path, name, info, dims)
        tensor = tensors.get(name)
        if tensor is None:
            tensor = tensors[name] = SplitTensor(name, meta.dtype, dims)
        tensor.add(path, handle, offsets, meta)


class _Meta(NamedTuple):
    """What `form_of` needs of a tensor's entry in a header."""

    dtype: str
    shape: Sequence[int]


def _metadata_of(tensor: SplitTensor) -> TensorStorageMetadata:
    """Returns what DCP knows of a tensor, in torch's dtype and its elements."""
    dtype, shape = form_of(tensor)
    # An offset is scaled as a size is: F4 has two elements in one of torch's.
    chunks = [
        ChunkStorageMetadata(
            *(torch.Size(form_of(_Meta(tensor.dtype, each))[1]) for each in (p.offsets, p.shape))
        )
        for p in tensor.parts
    ]
    return TensorStorageMetadata(TensorProperties(dtype), torch.Size(shape), chunks)


def _fits(shape: Sequence[int], begin: Sequence[int], sizes: Sequence[int]) -> bool:
    return len(shape) == len(begin) == len(sizes) and all(
        b >= 0 and b + size <= whole for b, size, whole in zip(begin, sizes, shape, strict=True)
    )


def _load(items: Sequence[_Item]) -> None:
    """Fills the items' tensors: those that take the files' bytes by one load of all devices."""
    direct: Dict[object, Tuple[str, Tuple[Any, ...]]] = {}
    others: Dict[str, List[_Item]] = {}
    for item in items:
        if item.tensor.numel() == 0:
            continue
        wanted, device = item.wanted(), _device(item.tensor)
        if _problem(wanted, item.tensor):
            others.setdefault(device, []).append(item)
        else:  # of tied weights, which are one tensor, the last is read
            direct[_memory(item.tensor)] = device, _request(wanted, item.tensor)
    groups: Dict[str, List[Tuple[Any, ...]]] = {}
    for device, request in direct.values():
        groups.setdefault(device, []).append(request)
    try:
        _core._load_groups(list(groups.items()))
    finally:  # autograd does not see these writes
        for _, request in direct.values():
            torch.autograd.graph.increment_version(request[3])
    for device, of_device in others.items():
        _convert(device, of_device)


def _convert(device: str, items: Sequence[_Item]) -> None:
    """Reads into staging memory, from which torch copies to the tensors."""
    kind = device.partition(":")[0]
    staging = torch.empty(
        _STAGING_NBYTES, dtype=torch.uint8, device=device if kind == "cuda" else "cpu"
    )
    batch: List[Tuple[torch.Tensor, Tuple[Any, ...], torch.Tensor]] = []
    used = 0

    def flush() -> None:
        _core._load_groups([(str(staging.device), [request for _, request, _ in batch])])
        for to, _, source in batch:
            with torch.no_grad():
                to.copy_(source)
        batch.clear()

    for item in items:
        for piece in item.pieces(_STAGING_NBYTES):
            wanted = piece.wanted()
            if used + wanted.nbytes > _STAGING_NBYTES:
                flush()
                used = 0
            source = staging[used : used + wanted.nbytes].view(item.form[0])
            source = source.view(piece.tensor.shape)
            batch.append((piece.tensor, wanted.request(source), source))
            used += -(-wanted.nbytes // _ALIGNMENT) * _ALIGNMENT
    flush()
