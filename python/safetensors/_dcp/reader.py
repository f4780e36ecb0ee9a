"""Reads checkpoints of torch.distributed.checkpoint from safetensors files: StorageReader."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

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
from .._errors import failure, while_loading
from .._load_arguments import LoadArguments
from .._model_folder import choice_of
from .._open_shards import open_shards
from .._paths import is_url, without_secrets
from .._shards import with_hashes
from .._torch.dtypes import Form, form_of
from .._torch.load_into import _device, _problem
from .._torch.shared_memory import elements_of
from .._torch.wanted import Wanted, gc_paused
from .._typing import Sources, Verify
from .._workers import Workers
from . import rank_files
from .boxes import Box, fits
from .parts import SavedPart, SplitTensor

_HALF_NBYTES = 16 << 20
_ALIGNMENT = 64


class StorageReader(_Base):
    """Loads tensors of a checkpoint into those of a state dict.

    The files are those of `StorageWriter`, of torch's `HuggingFaceStorageWriter`, or of any model:
    each rank reads the bytes that its own tensors take, also if other ranks had saved them.

    A file that is replaced or changed while `dcp.load` runs causes an error. If reading fails, some
    tensors have new values and others their old ones.
    """

    def __init__(
        self,
        path: Sources,
        *,
        storage_options: Mapping[str, Any] | None = None,
        verify: Verify = None,
        expected_hashes: Mapping[str, str] | None = None,
        name: str | None = None,
        variant: str | None = None,
    ) -> None:
        """Makes a reader. Opens nothing.

        Args:
            path: a folder, a file, an index, a URL of one of these, or a list, as the `filenames`
                of `safetensors.torch.load_files`.
            storage_options: settings for URLs.
            verify, expected_hashes: what the files are compared with, as for `load_files`.
            name, variant: which model of a folder, as for `load_files`.
        """
        verify = with_hashes(verify, expected_hashes)
        self._options = LoadArguments(path, storage_options, verify, choice_of(name, variant))
        self._parts: dict[MetadataIndex, tuple[SavedPart, Form]] = {}
        self._files: ExitStack | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path and `verify`. Options and a URL's query may hold secrets, and open files
        are of one process."""
        options = self._options
        path, verify = without_secrets(options.filenames), without_secrets(options.verify)
        given = {"verify": verify, **options.choice._asdict()}
        given = {key: value for key, value in given.items() if value not in (None, "")}
        return (functools.partial(type(self), **given) if given else type(self)), (path,)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Closes the files of a load that did not end. `checkpoint_id` is read next."""
        self._close()
        if checkpoint_id:
            self._options = self._options._replace(filenames=checkpoint_id)

    # Without keyword arguments: else `load` would call it again after an error, for a rank alone.
    def read_metadata(self) -> Metadata:
        """Opens the files, and returns which parts of which tensors they have.

        Raises:
            FileNotFoundError, SafetensorError: as `load_files`. Or parts of a tensor are missing,
                overlap or differ in dtype.
        """
        self._close()
        tensors: dict[str, SplitTensor] = {}
        with ExitStack() as stack, gc_paused():  # makes objects for each tensor, none is garbage
            for shard, handle, names in open_shards(self._options.find(), None, "pread", stack):
                if handle is not None:
                    _add_parts(tensors, shard.path, handle, names)
            found: dict[str, Any] = {}
            for name, tensor in tensors.items():
                tensor.check()
                found[name] = _metadata_of(tensor)
                dtype = found[name].properties.dtype
                for part, chunk in zip(tensor.parts, found[name].chunks, strict=True):
                    if 0 not in part.shape:  # it may begin where another part does
                        index = MetadataIndex(name, chunk.offsets)
                        self._parts[index] = part, (dtype, tuple(chunk.sizes))
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

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Reads this rank's part of the plan, closes the files, and returns a future that is done.

        Raises:
            SafetensorError: a file cannot be read or has changed, or the plan does not fit.
        """
        if self._files is None:
            raise failure(
                "invalid_argument", "read_data reads the files that read_metadata opened: call it"
            )
        try:
            with gc_paused():
                items = [self._item(each, planner) for each in plan.items]
                load = _Load(items)
            load.run()
        finally:
            self._close()
        for item, asked in zip(items, plan.items, strict=True):
            planner.commit_tensor(asked, item.tensor)
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether it is a URL, or a path that exists."""
        return is_url(checkpoint_id) or os.path.exists(checkpoint_id)

    def _item(self, asked: ReadItem, planner: LoadPlanner) -> _Item:
        name = asked.storage_index.fqn
        found = self._parts.get(asked.storage_index)
        if found is None or asked.type == LoadItemType.BYTE_IO:
            what = "tensor" if found is None else "other value than the tensor"
            raise failure(
                "tensor_not_found",
                f"The files do not contain the {what} {name!r} at this place",
                subject=name,
            )
        tensor = planner.resolve_tensor(asked).detach()
        if tensor.is_meta:
            raise failure(
                "invalid_argument",
                f"Cannot load tensor {name!r} into the one given: it has no memory",
                subject=name,
            )
        begin, sizes = tuple(asked.storage_offsets), tuple(asked.lengths)
        part, form = found
        if tuple(tensor.shape) != sizes or not fits(tuple(form[1]), Box(begin, sizes)):
            raise failure(
                "invalid_argument",
                f"{part.path}: the plan reads {list(sizes)} at {list(begin)} of tensor {name!r}, "
                f"which is {list(form[1])} in this file, into one of shape {list(tensor.shape)}",
                path=part.path,
                subject=name,
            )
        return _Item(name, part.source, form, begin, tensor)

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
    begin: tuple[int, ...]
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
    tensors: dict[str, SplitTensor], path: str, handle: safe_open, names: Sequence[str]
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
    try:
        dtype, shape = form_of(tensor)
    except SafetensorError as error:
        raise while_loading(error, tensor.name, tensor.parts[0].path) from error
    size = torch.Size(shape)
    if tensor.is_in_one_file():
        whole = ChunkStorageMetadata(torch.Size((0,) * len(size)), size)
        return TensorStorageMetadata(TensorProperties(dtype), size, [whole])
    # An offset is scaled as a size is: F4 has two elements in one of torch's.
    chunks = [
        ChunkStorageMetadata(
            *(torch.Size(form_of(_Meta(tensor.dtype, each))[1]) for each in (p.offsets, p.shape))
        )
        for p in tensor.parts
    ]
    return TensorStorageMetadata(TensorProperties(dtype), size, chunks)


class _Load:
    """A load of items: of those that take the files' bytes at once, then of the others."""

    def __init__(self, items: Sequence[_Item]) -> None:
        self._tensors: list[torch.Tensor] = []
        self._groups: dict[str, list[tuple[Any, ...]]] = {}
        self._others: dict[str, list[_Item]] = {}
        direct: dict[object, tuple[str, Wanted, torch.Tensor]] = {}
        for item in items:
            if item.tensor.numel() == 0:
                continue
            wanted, device = item.wanted(), _device(item.tensor)
            if _problem(wanted, item.tensor):
                self._others.setdefault(device, []).append(item)
            else:  # of tied weights, which are one tensor, the last is read
                direct[elements_of(item.tensor)] = device, wanted, item.tensor
        for device, wanted, tensor in direct.values():
            self._tensors.append(tensor)
            self._groups.setdefault(device, []).append(wanted.request(tensor))

    def run(self) -> None:
        """Fills the items' tensors."""
        try:
            _core._load_groups(list(self._groups.items()))
        finally:  # autograd does not see these writes
            for tensor in self._tensors:
                torch.autograd.graph.increment_version(tensor)
        for device, items in self._others.items():
            _convert(device, items)


_Batch = list[tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]]
"""Tensors, their values in staging memory, and the requests that read those."""


def _convert(device: str, items: Sequence[_Item]) -> None:
    """Reads into staging memory, from which torch copies to the tensors.

    The memory has two halves. On the CPU, this thread reads into one of them while another thread
    copies from the other.
    """
    kind = device.partition(":")[0]
    where = device if kind == "cuda" else "cpu"
    halves = [torch.empty(_HALF_NBYTES, dtype=torch.uint8, device=where) for _ in range(2)]
    copying: list[Future[None]] = []
    # Another thread would copy on another stream of a device.
    with Workers(1) if kind == "cpu" else nullcontext() as pool:
        for number, batch in enumerate(_batches(items, halves)):
            if number >= 2 and pool is not None:
                copying[number - 2].result()
            _core._load_groups([(where, [request for *_, request in batch])])
            if pool is None:
                _copy(batch, torch.is_inference_mode_enabled())
            else:
                copying.append(pool.submit(_copy, batch, torch.is_inference_mode_enabled()))
        for each in copying:
            each.result()


def _batches(items: Sequence[_Item], halves: Sequence[torch.Tensor]) -> Iterator[_Batch]:
    """Divides items into batches that fill the halves of the staging memory by turns."""
    batch: _Batch = []
    used = number = 0
    for piece in (piece for item in items for piece in item.pieces(_HALF_NBYTES)):
        wanted = piece.wanted()
        if used + wanted.nbytes > _HALF_NBYTES:
            yield batch
            batch, used, number = [], 0, number + 1
        source = halves[number % 2][used : used + wanted.nbytes].view(piece.form[0])
        source = source.view(piece.tensor.shape)
        batch.append((piece.tensor, source, wanted.request(source)))
        used += -(-wanted.nbytes // _ALIGNMENT) * _ALIGNMENT
    yield batch


def _copy(batch: _Batch, is_inference: bool) -> None:
    with torch.inference_mode(is_inference), torch.no_grad():
        for tensor, source, _ in batch:
            tensor.copy_(source)
