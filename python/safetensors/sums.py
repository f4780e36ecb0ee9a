"""The digests of models' tensors, which are kept in `STEM.sums.json`. See docs/verify.md."""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Dict, NamedTuple, Optional

from . import _core, _digests, _sums
from ._core import SafetensorError
from ._shards import find_shards
from ._sums import FileSums, Sums, TensorSums
from ._sums_save import algorithms_of, sums_of
from ._typing import Path, SumsOption

__all__ = ["FileSums", "Sums", "TensorSums", "make", "read", "write"]


class Place(NamedTuple):
    """Where the files of a model and its sums are."""

    folder: str
    sums: str

    @classmethod
    def of(cls, path: str, index_path: str) -> Place:
        """Returns the place of a file, or of a folder or an index with this index, if any."""
        if not index_path and os.path.isdir(path):
            path = os.path.join(path, "model.safetensors")
        found = _sums.path_of(index_path or path)
        return cls(os.path.dirname(found), found)

    def name_of(self, path: str) -> str:
        return os.path.relpath(path, self.folder or ".").replace(os.sep, "/")

    def path_of(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, sums: Sums, fsync: bool) -> None:
        """Writes the sums of this model, with the rights of its first file."""
        like = self.path_of(next(iter(sums.files)))
        _core._write_beside(self.sums, sums.to_bytes(), like, fsync)


def read(path: Path) -> Sums:
    """Reads a file of sums.

    Raises:
        SafetensorError: the file is not valid; if there is none, the error is a FileNotFoundError,
            too.
    """
    return _sums.read(os.fsdecode(path))


def make(path: Path, sums: SumsOption = True, *, files: bool = False) -> Sums:
    """Returns the sums of a model, whose files are read by several threads.

    Args:
        path: a file, an index or a folder, as for `load_files`.
        sums: the algorithms, as for `save_file`.
        files: whether to compute the SHA-256 of each whole file, too, as hubs publish it.

    Raises:
        SafetensorError: a file is damaged, or two files have a tensor of the same name.
        OSError: a file cannot be read.
    """
    return _make(os.fsdecode(path), sums, files)[0]


def write(path: Path, sums: SumsOption = True, *, files: bool = False, fsync: bool = False) -> str:
    """Makes the sums of a model, writes them beside it, and returns their path.

    Args:
        path, sums, files: as for `make`.
        fsync: if true, returns only after the sums are on the disk.
    """
    made, place = _make(os.fsdecode(path), sums, files)
    place.write(made, fsync)
    return place.sums


def _make(
    path: str, sums: SumsOption, files: bool, advance: Optional[Callable[[int], object]] = None
) -> tuple[Sums, Place]:
    algorithms = algorithms_of(sums)
    if not algorithms:
        raise ValueError("sums need at least one algorithm")
    shards = find_shards(os.fsencode(path))  # bytes are no URL
    place = Place.of(path, shards[0].index_path)
    found: Dict[str, _digests.FileDigests] = {}
    paths: Dict[str, str] = {}
    tasks = _digests.Tasks(advance)
    with contextlib.ExitStack() as stack:
        for shard in shards:
            file = stack.enter_context(_digests.OpenFile(shard.path))
            jobs = file.jobs()
            for job in jobs:
                if job.name in paths:
                    raise SafetensorError(
                        f"Tensor {job.name!r} is in two files: {paths[job.name]} and {shard.path}"
                    )
                paths[job.name] = shard.path
            absent = sorted({*(shard.names or ())} - {job.name for job in jobs})
            if absent:
                raise SafetensorError(
                    f"The index {shard.index_path} puts tensor {absent[0]!r} into {shard.path}, "
                    "which has no such tensor"
                )
            digests = _digests.add_file(tasks, file, algorithms, None, jobs, files)
            found[place.name_of(shard.path)] = digests
        tasks.run()
    return sums_of(found), place
