"""The digests of models' tensors, which are kept in `STEM.sums.json`. See docs/verify.md."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from . import _extra
from ._checking import digests as _digests
from ._checking import sums as _sums
from ._checking import verify
from ._checking.sums import FileSums, Sums, TensorSums
from ._checking.sums_save import algorithms_of, sums_of
from ._errors import failure
from ._model_folder import Choice, choice_of
from ._progress import Report, reported
from ._reading import Version, version_of
from ._shards import ShardFile, find_files
from ._typing import Path, Progress, ProgressOption, SumsOption

__all__ = ["FileSums", "Sums", "TensorSums", "make", "read", "write"]


class Place(NamedTuple):
    """Where the files of a model and its sums are."""

    folder: str
    sums: str
    file: str
    """The file that the caller named; empty for an index or a folder."""

    @classmethod
    def of(cls, path: str, shards: Sequence[ShardFile]) -> Place:
        """Returns the place of what find_files() found for a path: beside the model's files, under
        its name."""
        first, file = shards[0], ""
        if first.index_path:
            found = _sums.path_of(first.index_path)
        elif first.model is not None:
            found = os.path.join(path, _sums.name_of_model(first.model.name, first.model.variant))
        elif first.folder:  # of no single model
            found = os.path.join(path, _sums.OF_FOLDER)
        else:
            found, file = _sums.path_of(path), path
        return cls(os.path.dirname(found), found, file)

    def existing(self) -> str:
        """Returns the path of the sums to read, by the rule of loads: of a file those of its model,
        else those of the folder if the model has none."""
        if self.file:
            return verify.sums_beside(self.file) or self.sums
        of_folder = os.path.join(self.folder, _sums.OF_FOLDER)
        if os.path.exists(self.sums) or not os.path.exists(of_folder):
            return self.sums
        return of_folder

    def name_of(self, path: str) -> str:
        return os.path.relpath(path, self.folder or ".").replace(os.sep, "/")

    def path_of(self, name: str) -> str:
        return os.path.join(self.folder, name)


class Made(NamedTuple):
    """The sums of a model whose files were read."""

    sums: Sums
    place: Place
    versions: dict[str, Version]
    """What was read, by path."""

    def write(self, fsync: bool) -> None:
        """Writes the sums beside the model, with the rights of its first file.

        Raises:
            SafetensorError: a file is not what was read any more: no sums are left.
        """
        changed: list[str] = []

        def is_current() -> bool:
            changed[:] = [path for path in self.versions if not self._has_version(path)]
            return not changed

        like = self.place.path_of(next(iter(self.sums.files)))
        _extra._write_beside(self.place.sums, self.sums.to_bytes(), like, fsync, is_current)
        if changed:
            raise failure(
                "file_changed",
                f"{changed[0]}: the file was replaced or changed while its sums were made",
                path=changed[0],
            )

    def _has_version(self, path: str) -> bool:
        try:
            return version_of(os.stat(path)) == self.versions[path]
        except OSError:
            return False


def read(path: Path) -> Sums:
    """Reads a file of sums.

    Raises:
        SafetensorError: the file is not valid; if there is none, the error is a FileNotFoundError,
            too.
    """
    return _sums.read(os.fsdecode(path))


def make(
    path: Path,
    sums: SumsOption = True,
    *,
    files: bool = False,
    name: str | None = None,
    variant: str | None = None,
    progress: ProgressOption = None,
) -> Sums:
    """Returns the sums of a model, whose files are read by several threads.

    Args:
        path: a file, an index or a folder, as for `load_files`. Of a folder with files of several
            models and no index, all files are taken.
        sums: the algorithms, as for `save_file`.
        files: whether to compute the SHA-256 of each whole file, too, as hubs publish it.
        name, variant: which model of a folder, as for `load_files`.
        progress: true for a bar; or called as `progress(done, total)` with the bytes that are read,
            by one thread at a time. If it raises, there are no sums.

    Raises:
        SafetensorError: a file is damaged, or two files have a tensor of the same name.
        OSError: a file cannot be read.
    """
    with reported(progress, "hashing") as report:
        return _make(os.fsdecode(path), sums, files, choice_of(name, variant), report).sums


def write(
    path: Path,
    sums: SumsOption = True,
    *,
    files: bool = False,
    fsync: bool = False,
    name: str | None = None,
    variant: str | None = None,
    progress: ProgressOption = None,
) -> str:
    """Makes the sums of a model, writes them beside it, and returns their path.

    Args:
        path, sums, files, name, variant, progress: as for `make`.
        fsync: if true, returns only after the sums are on the disk.

    Raises:
        As `make`, and SafetensorError if a file is replaced or changed meanwhile: the model then
        has no sums, or those that another save has written.
    """
    with reported(progress, "hashing") as report:
        made = _make(os.fsdecode(path), sums, files, choice_of(name, variant), report)
    made.write(fsync)
    return made.place.sums


def _make(
    path: str,
    sums: SumsOption,
    files: bool,
    choice: Choice,
    progress: Progress | None = None,
) -> Made:
    algorithms = algorithms_of(sums)
    if not algorithms:
        raise ValueError("sums need at least one algorithm")
    shards = find_files(os.fsencode(path), choice)  # bytes are no URL
    place = Place.of(path, shards)
    found: dict[str, _digests.FileDigests] = {}
    names: dict[str, list[str]] = {}
    versions: dict[str, Version] = {}
    report = Report(0, progress)
    tasks = _digests.Tasks(report.add)
    with contextlib.ExitStack() as stack:
        for shard in shards:
            file = stack.enter_context(_digests.HashedFile(shard.path))
            versions[shard.path] = file.version
            jobs = file.jobs()
            names[shard.path] = [job.name for job in jobs]
            absent = sorted({*(shard.names or ())}.difference(names[shard.path]))
            if absent:
                _extra._fail_absent(absent[0], shard.path, shard.index_path)
            digests = _digests.add_file(tasks, file, algorithms, None, jobs, files)
            found[place.name_of(shard.path)] = digests
        _extra._refuse_repeated([*names.values()], [*names])
        report.expect(tasks.nbytes)
        tasks.run()
    report.finish()
    return Made(sums_of(found), place, versions)
