"""Saves and loads checkpoints of torch.distributed.checkpoint as the files of one model.

    import torch.distributed.checkpoint as dcp
    from safetensors.dcp import StorageReader, StorageWriter

    dcp.save(model.state_dict(), storage_writer=StorageWriter("model_dir"))
    dcp.load(state, storage_reader=StorageReader("model_dir"))

All ranks write their parts of the tensors into the final files: there is no second pass. Each rank
reads what its own tensors take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from typing import Any, ClassVar, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _Base
from torch.distributed.checkpoint.storage import WriteResult

from . import _extra
from ._dcp import boxes, rank_files
from ._dcp.consolidate import consolidate
from ._dcp.model import FullSizeModel, FullSizePart, Options, Place, check_written
from ._dcp.ranges import write_part
from ._dcp.reader import StorageReader
from ._dcp.site import Site, can_share_files, one_machine, site_of
from ._dcp.tensor_bytes import bytes_of
from ._errors import failure
from ._paths import absolute, refuse_url
from ._regions import byte_shape
from ._saving.folder import Folder
from ._saving.model_files import ModelFiles, refuse_other_models
from ._saving.specs import Row, nbytes_of, spec_of
from ._saving.split import Split, parse_size
from ._saving.writer import safe_create
from ._torch.checks import _check_data
from ._typing import Path
from ._warn import warn

__all__ = ["StorageReader", "StorageWriter", "consolidate"]


class _FromRank(NamedTuple):
    """What a rank adds to its plan for the coordinator."""

    site: Site
    rows: list[Row]
    """The tensors of its state dict, in their order."""


class _SharedFiles(NamedTuple):
    """What the coordinator answers if the ranks write into the final files."""

    files: list[FullSizePart]
    places: dict[str, Place]
    fsync: bool


class _OwnFile(NamedTuple):
    """What the coordinator answers if each rank writes a file of its own."""

    number: int
    ranks: int


class StorageWriter(_Base):
    """Saves the tensors of a state dict as `model.safetensors`, or as shards with an index.

    The files have the bytes that `safetensors.torch.save_files` writes for the whole tensors. They
    replace a model of the same name as a whole when all ranks have written: until then the old
    model can be loaded, and if a rank fails, nothing else is left.

    Ranks write into one file if they run on one machine and find the same folder, or if its file
    system is Lustre, GPFS, BeeGFS or CephFS. Else each rank writes a file of its own, as
    `HuggingFaceStorageWriter(save_distributed=True)` does: `consolidate` then makes the model.
    """

    _active: ClassVar[weakref.WeakSet[StorageWriter]] = weakref.WeakSet()
    """The coordinators that are saving, in this process."""

    def __init__(
        self,
        path: Path,
        *,
        max_shard_size: int | str = "5GB",
        name: str = "model",
        fqn_to_index_mapping: dict[str, int] | None = None,
        fsync: bool = False,
    ) -> None:
        """Makes a writer. All ranks pass the same arguments.

        Args:
            path: the folder; made if it does not exist, but its parent must exist.
            max_shard_size: the limit of the tensors of a file, in bytes or as "5GB" (decimal) or
                "2GiB". A larger tensor gets a file of its own.
            name: the first part of the files' names.
            fqn_to_index_mapping: the number of the file of each tensor, from 1 on, instead of
                `max_shard_size`.
            fsync: if true, `save` returns only after the model is on the disk. If a model is
                replaced, the new files are flushed in any case before the first old one is
                removed.

        Raises:
            ValueError: `name` or `max_shard_size` is not valid.
        """
        _extra._check_model_name(name, rank_files.MAX_NAME_NBYTES)
        parse_size(max_shard_size)
        refuse_url(path)
        self._folder = absolute(path)
        self._options = Options(max_shard_size, name, fsync, fqn_to_index_mapping)
        self._model: FullSizeModel | None = None
        self._expected: dict[str, int] | None = None
        """The bytes of each tensor, if ranks write files of their own."""
        self._thread: threading.Thread | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Discards a save that did not end. `checkpoint_id` is the folder of the next save."""
        self._abort()
        if checkpoint_id:
            refuse_url(checkpoint_id)
            self._folder = absolute(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses to save without a coordinator."""
        if not kwargs.get("use_collectives", True):
            raise failure(
                "invalid_argument", "safetensors.dcp.StorageWriter needs use_collectives=True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Checks what this rank saves, and adds where it runs."""
        if not getattr(plan, "usable", True):
            raise failure(
                "invalid_argument",
                "safetensors.dcp.StorageWriter needs a whole plan for each save: "
                "DefaultSavePlanner(enable_plan_caching=False)",
            )
        rows = {item.index.fqn: _row_of(item) for item in plan.items}
        local = _FromRank(site_of(self._folder), list(rows.values()))
        return dataclasses.replace(plan, storage_data=local)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the files, and says where each rank writes."""
        self._abort()
        sites = [plan.storage_data.site for plan in plans]
        rows = _merged([row for plan in plans for row in plan.storage_data.rows])
        if not can_share_files(sites):
            self._expected = nbytes_of(list(rows.values()))
            warn(
                f"The ranks do not share {self._folder} in a way that lets them write one file: "
                "each writes its own. safetensors.dcp.consolidate makes a model of them."
            )
            return [
                dataclasses.replace(plan, storage_data=_OwnFile(number, len(plans)))
                for number, plan in enumerate(plans, 1)
            ]
        self._abort_failed_saves()
        self._model = model = FullSizeModel(self._folder, list(rows.values()), self._options)
        self._thread = threading.current_thread()
        StorageWriter._active.add(self)
        # Only the machine that wrote can flush what it wrote.
        fsync = not one_machine(sites) and (self._options.fsync or model.replaces)
        return [
            dataclasses.replace(
                plan,
                storage_data=_SharedFiles(
                    model.files,
                    {item.index.fqn: model.places[item.index.fqn] for item in plan.items},
                    fsync,
                ),
            )
            for plan in plans
        ]

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        """Writes the parts of this rank, and returns a future that is done."""
        try:
            if isinstance(plan.storage_data, _OwnFile):
                results = self._write_own_file(plan, planner)
            else:
                results = self._write_shared_files(plan, planner)
        except BaseException:
            self._abort()
            raise
        future: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Checks that all bytes were written, and makes the files the model."""
        written: dict[str, int] = {}
        for result in (each for of_rank in results for each in of_rank):
            fqn = result.index.fqn
            written[fqn] = written.get(fqn, 0) + result.size_in_bytes
        model, expected = self._model, self._expected  # another thread may call reset()
        try:
            if model is not None:
                model.commit(written)
            elif expected is not None:
                check_written(expected, written)
            else:
                raise failure(
                    "writer_closed",
                    f"{self._folder}: the save was discarded before it ended, by reset() or by "
                    "another save with the same StorageWriter: nothing was saved",
                    path=self._folder,
                )
        finally:
            self._abort()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether it is a path, whose parent is a folder."""
        path = os.fsdecode(checkpoint_id)
        return "://" not in path and os.path.isdir(os.path.dirname(absolute(path)))

    def _write_shared_files(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        target: _SharedFiles = plan.storage_data
        by_file: dict[int, list[WriteItem]] = {}
        for item in plan.items:
            by_file.setdefault(target.places[item.index.fqn].file, []).append(item)
        folder = Folder(self._folder)
        results = []
        for index, items in sorted(by_file.items()):
            file = target.files[index]
            fd = file.open(folder)
            try:
                for item in sorted(items, key=lambda each: target.places[each.index.fqn].begin):
                    tensor = _resolved(item, planner)
                    whole, part = _boxes_of(item)
                    begin = target.places[item.index.fqn].begin
                    nbytes = write_part(fd, begin, whole, part, bytes_of(tensor))
                    results.append(WriteResult(item.index, nbytes, None))
                if target.fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        return results

    def _write_own_file(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        number, ranks = plan.storage_data
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder)
        name = self._options.name
        refuse_other_models(self._folder, rank_files.file_names(name, ranks))
        items = {item.index.fqn: item for item in plan.items}
        if len(items) != len(plan.items):
            twice = next(each for each in plan.items if items[each.index.fqn] is not each)
            raise failure(
                "invalid_argument",
                f"a rank has two parts of tensor `{twice.index.fqn}`, and a file of its own holds "
                "one",
                subject=twice.index.fqn,
            )
        if not items:
            return []
        notes = rank_files.metadata({fqn: _offsets_in_file(item) for fqn, item in items.items()})
        specs = {}
        for fqn, item in items.items():
            specs[fqn] = spec_of(fqn, _on_meta(item, _tensor_data(item).chunk.sizes))
        results = []
        with ModelFiles(
            self._folder,
            rank_files.model_name(name, number),
            self._options.fsync,
        ) as files:
            with safe_create(files.temporary(1), specs, metadata=notes) as writer:
                for fqn, item in items.items():
                    tensor = _resolved(item, planner)
                    with writer.open(fqn) as out:
                        nbytes = sum(out.write(piece) for piece in bytes_of(tensor))
                    results.append(WriteResult(item.index, nbytes, None))
            files.commit(Split([[*items]], sum(each.size_in_bytes for each in results)))
        return results

    def _abort(self) -> None:
        model, self._model, self._thread = self._model, None, None
        self._expected = None
        StorageWriter._active.discard(self)
        if model is not None:
            model.abort()

    def _abort_failed_saves(self) -> None:
        """Discards saves to the same folder that failed, of writers that still exist.

        A failed save is not reported to the writer, and the exception may keep it alive. `save`
        blocks its thread: if that is this thread, or has ended, the save has failed.
        """
        for other in list(StorageWriter._active):
            thread = other._thread
            is_running = (
                thread is not None
                and thread is not threading.current_thread()
                and thread.is_alive()
            )
            if other._folder == self._folder and not is_running:
                other._abort()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._abort()


def _tensor_data(item: WriteItem) -> Any:
    """Returns the description of an item's tensor."""
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        raise failure(
            "invalid_argument",
            f"Error while serializing: `{item.index.fqn}` is not a tensor. Save the other values "
            "of the state dict in another file",
            subject=item.index.fqn,
        )
    if data.properties.layout != torch.strided:
        raise failure(
            "invalid_argument",
            f"Error while serializing: tensor `{item.index.fqn}` is sparse, which the file format "
            "does not support",
            subject=item.index.fqn,
        )
    return data


def _on_meta(item: WriteItem, size: torch.Size) -> torch.Tensor:
    return torch.empty(size, dtype=_tensor_data(item).properties.dtype, device="meta")


def _row_of(item: WriteItem) -> Row:
    """Returns what a file holds of the whole tensor of an item."""
    fqn = item.index.fqn
    spec = spec_of(fqn, _on_meta(item, _tensor_data(item).size))
    return fqn, spec.dtype, spec.shape


def _boxes_of(item: WriteItem) -> tuple[boxes.Sizes, boxes.Box]:
    """Returns the whole tensor of an item, and its part."""
    data = _tensor_data(item)
    bits = data.properties.dtype.itemsize * 8
    whole = byte_shape(data.size, bits)
    part = boxes.box(data.chunk.offsets, data.chunk.sizes, bits)
    if not boxes.fits(whole, part):
        raise failure(
            "invalid_argument",
            f"Error while serializing: the part {tuple(data.chunk.sizes)} at "
            f"{tuple(data.chunk.offsets)} is not inside tensor `{item.index.fqn}`, which is "
            f"{tuple(data.size)}",
            subject=item.index.fqn,
        )
    return whole, part


def _offsets_in_file(item: WriteItem) -> list[int]:
    """Returns where the item's part begins, in elements of the file's dtype."""
    data = _tensor_data(item)
    # An offset is scaled as a size is: F4 has two elements in one of torch's.
    return list(spec_of(item.index.fqn, _on_meta(item, data.chunk.offsets)).shape)


def _resolved(item: WriteItem, planner: SavePlanner) -> torch.Tensor:
    """Returns the values of an item."""
    fqn, data = item.index.fqn, _tensor_data(item)
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor):
        raise failure(
            "invalid_argument", f"Error while serializing: `{fqn}` is not a tensor", subject=fqn
        )
    _check_data(tensor, fqn)
    if (tensor.dtype, tensor.shape) != (data.properties.dtype, data.chunk.sizes):
        raise failure(
            "invalid_argument",
            f"Error while serializing: the part of tensor `{fqn}` is {data.properties.dtype} "
            f"{tuple(data.chunk.sizes)} in the plan, but {tensor.dtype} {tuple(tensor.shape)}",
            subject=fqn,
        )
    return tensor


def _merged(rows: list[Row]) -> dict[str, Row]:
    """Returns the tensors of all ranks, each once, in the order of the first rank that has it."""
    found: dict[str, Row] = {}
    for row in rows:
        other = found.setdefault(row[0], row)
        if other != row:
            raise failure(
                "invalid_argument",
                f"Error while serializing: tensor `{row[0]}` is {other[1]} {list(other[2])} on one "
                f"rank and {row[1]} {list(row[2])} on another",
                subject=row[0],
            )
    return found
