"""Writes the files of a model so that they replace the old ones as a whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _extra
from .._paths import absolute, refuse_url
from .._progress import Report
from .._typing import Path
from . import split as _split
from .arguments import SaveArguments
from .folder import Folder

if TYPE_CHECKING:
    from .._checking.digests import FileDigests
    from .companions import Companions

SaveShard = Callable[[list[str], Any, SaveArguments], None]
"""Called as `save(names, target, options)` for each shard in turn: saves these tensors to a new
file, for which `target` stands in place of a path."""


class ModelFiles:
    """The files of a model that is being saved: a ModelWriter of the compiled module.

    A context manager: leaving it without `commit` aborts. In a forked child, aborting does nothing.

    Thread safety: one thread at a time calls methods. The files may be written by any number of
    threads and processes.
    """

    def __init__(self, folder: Path, name: str, fsync: bool) -> None:
        """Recovers what an interrupted save has left, and reserves the folder for this save.

        Args:
            folder: made if it does not exist; its parent must exist.
            name: the first part of the files' names.
            fsync: if true, `commit` returns only after the model is on the disk. If a model is
                replaced, its files are flushed in any case.

        Raises:
            ValueError: the name contains a separator, begins with a dot, or is too long; or a
                folder that does not exist has the name of a file.
            SafetensorError: another process is saving to the folder, or a switch or the index of
                the old model cannot be trusted.
            OSError: an operating system call failed.
        """
        refuse_url(folder)
        self._name = name
        self._model = _extra._ModelWriter(absolute(folder), name, fsync)

    @property
    def rights_of(self) -> tuple[Folder, str] | None:
        """The file of the old model whose mode, owner and access list the new shards take over."""
        return self._model.rights_of

    @property
    def is_committed(self) -> bool:
        """Whether a file has taken its place, which cannot be undone."""
        return self._model.is_committed

    @property
    def parts(self) -> Folder:
        """The private folder of the save."""
        return self._model.parts

    def temporary(self, number: int) -> Any:
        """Returns what the writers take in place of the path of shard `number`, from 1 on. The file
        is made with the rights that it keeps."""
        return self._model.temporary(number)

    def add_companion(self, name: str, data: bytes) -> None:
        """Adds a small file, which replaces one of this name together with the model."""
        self._model.add_companion(name, data)

    def commit(
        self, split: _split.Split, digests: Sequence[FileDigests] | None = None
    ) -> list[str]:
        """Makes the files that were written the model, and returns their paths.

        With the digests of the files, in their order, it also writes the sums.

        Requires: the files of the shards 1 to `len(split.shards)` are complete.

        If it raises, the old model is unchanged and nothing else is left; or, if the system
        refuses to rename or remove files when some had been, `recover` completes the save.
        """
        sums = b""
        if digests is not None:
            from .._checking.sums_save import sums_of

            names = _split.file_names(self._name, len(split.shards))
            sums = sums_of(dict(zip(names, digests, strict=True))).to_bytes()
        return self._model.commit(split.shards, split.total_size, sums)

    def abort(self) -> None:
        """Removes everything that was written. Does nothing after `commit`."""
        self._model.abort()

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.abort()
            return
        with contextlib.suppress(OSError):  # the error in flight says more
            self.abort()


def save_files(
    split: _split.Split,
    sizes: Mapping[str, int],
    save: SaveShard,
    folder: Path,
    name: str,
    options: SaveArguments,
    companions: Companions | None = None,
) -> list[str]:
    """Saves the files of a model one after another, and returns their paths.

    Args:
        split: the tensors of each file.
        sizes: the bytes of each tensor.
        save: saves one shard.
        folder, name: see `safetensors.torch.save_files`.
        options: those of the whole model.
        companions: the small files that the folder gets, too.
    """
    of_shards, digests = options.of_shards()
    with ModelFiles(folder, name, options.fsync) as files:
        report = Report(split.total_size, options.progress)
        for number, tensors in enumerate(split.shards, 1):
            nbytes = sum(sizes[tensor] for tensor in tensors)
            how = of_shards._replace(progress=report.of_file(nbytes))
            save(tensors, files.temporary(number), how)
        if companions is not None:
            companions.add_to(files)
        report.finish()
        return files.commit(split, digests)


def refuse_other_models(folder: str, ours: Iterable[str]) -> None:
    """Raises SafetensorError if a folder has a file of a model that is not one of `ours`, which are
    names. The folder need not exist."""
    if os.path.isdir(folder):
        _extra._refuse_other_models(Folder(folder), list(ours))
