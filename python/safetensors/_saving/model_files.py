"""Writes the files of a model so that they replace the old ones as a whole.

While a model `model` is saved, its folder has another one, which only this user can enter:

    .model.0123456789abcdef.save/
        switch   locked by the process that saves
        00001    the first shard
        index    the index, if there are several shards
        sums     the sums, if there are any
        +NAME    a small file that a conversion replaces with the model

The switch is empty until all other files are complete. Then it says what is to be done; from then
on the save can only be completed (docs/format.md, "Switch").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._errors import failure
from .._paths import refuse_url
from .._progress import Report
from .._typing import Path
from . import recovery
from . import split as _split
from .arguments import SaveArguments
from .folder import File, Folder
from .switch import Switch

if TYPE_CHECKING:
    from .._checking.digests import FileDigests

SaveShard = Callable[[list[str], Any, SaveArguments], None]
"""Called as `save(names, target, options)`: saves these tensors to a new file, for which `target`
stands in place of a path."""


class ModelFiles:
    """The files of a model that is being saved.

    A context manager: leaving it without `commit` aborts. In a forked child, aborting does nothing.

    Thread safety: one thread at a time calls methods. The files may be written by any number of
    threads and processes.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "model",
        fsync: bool = False,
    ) -> None:
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
        _split.check_name(name)
        self._name = name
        refuse_url(folder)
        self._path = os.path.abspath(os.fsdecode(folder))
        self._fsync = fsync
        self._pid = os.getpid()
        self._companions: list[str] = []
        self._made = not os.path.lexists(self._path)
        if self._made and self._path.endswith(".safetensors"):
            raise ValueError(
                f"{self._path} would be a folder with the name of a file: save_file writes one "
                "file, and a model of several files needs a folder"
            )
        try:
            if self._made:
                self._make_folder()
            self._folder = Folder(self._path)
            recovery.recover_model(self._folder, name)
            self._old = recovery.old_files(self._folder, name)
            self._switch = Switch(self._folder, name)
        except BaseException:
            self._remove_folder()
            raise

    @property
    def rights_of(self) -> File | None:
        """The file of the old model whose mode, owner and access list the new shards take over."""
        index = _split.index_name(self._name)
        files = [file for file in self._old if file != index] or list(self._old)
        return (self._folder, files[0]) if files else None

    @property
    def is_committed(self) -> bool:
        """Whether a file has taken its place, which cannot be undone."""
        return self._switch.is_committed

    @property
    def parts(self) -> Folder:
        """The private folder of the save."""
        return self._switch.parts

    def temporary(self, number: int) -> Any:
        """Makes the file of shard `number`, from 1 on, with the rights that it keeps, and returns
        what the writers take in place of its path."""
        return self.parts.target(recovery.shard_part(number), self.rights_of)

    def add_companion(self, name: str, data: bytes) -> None:
        """Adds a small file, which replaces one of this name together with the model."""
        assert _split.is_companion_name(name)
        like = (self._folder, name) if self._folder.identity(name) is not None else None
        self.parts.write(recovery.companion_part(name), data, like)
        self._companions.append(name)

    def commit(
        self, split: _split.Split, digests: Sequence[FileDigests] | None = None
    ) -> list[str]:
        """Makes the files that were written the model, and returns their paths.

        With the digests of the files, in their order, it also writes the sums.

        Requires: the files of the shards 1 to `len(split.shards)` are complete.

        If it raises, the old model is unchanged and nothing else is left; or, if the system
        refuses to rename or remove files when some had been, `recover` completes the save.
        """
        if len(split.shards) > 1:
            text = _split.index_text(self._name, split)
            index = _split.index_name(self._name)
            like = (self._folder, index) if index in self._old else self.rights_of
            self.parts.write("index", text.encode(), like)
        if digests is not None:
            self._write_sums(split, digests)
        self._switch.commit(len(split.shards), self._fsync, self._companions)
        if self._fsync and self._made:
            Folder(os.path.dirname(self._path)).flush()
        files = _split.file_names(self._name, len(split.shards))
        return [os.path.join(self._path, file) for file in files]

    def _write_sums(self, split: _split.Split, digests: Sequence[FileDigests]) -> None:
        from .._checking.sums_save import sums_of

        names = _split.file_names(self._name, len(split.shards))
        data = sums_of(dict(zip(names, digests, strict=True))).to_bytes()
        # They tell about the tensors: who may not read the model may not read them.
        self.parts.write(recovery.SUMS, data, (self.parts, recovery.shard_part(1)))

    def abort(self) -> None:
        """Removes everything that was written. Does nothing after `commit`."""
        if os.getpid() == self._pid and self._switch.abort():
            self._remove_folder()

    def _make_folder(self) -> None:
        try:
            os.mkdir(self._path)
        except FileExistsError:  # another process was faster
            self._made = False

    def _remove_folder(self) -> None:
        if self._made:
            with contextlib.suppress(OSError):  # it has other files
                os.rmdir(self._path)

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
    sizes: Mapping[str, int],
    save: SaveShard,
    folder: Path,
    max_shard_size: int | str,
    name: str,
    options: SaveArguments,
) -> list[str]:
    """Saves a model. Shared by all frameworks.

    Args:
        sizes: the bytes of each tensor, in the order in which they are split.
        save: saves one shard.
        folder, max_shard_size, name: see `safetensors.torch.save_files`.
    """
    split = _split.split(sizes, max_shard_size)
    of_shards, digests = options.of_shards()
    with ModelFiles(folder, name, options.fsync) as files:
        report = Report(split.total_size, options.progress)
        for number, tensors in enumerate(split.shards, 1):
            nbytes = sum(sizes[tensor] for tensor in tensors)
            how = of_shards._replace(progress=report.of_file(nbytes))
            save(tensors, files.temporary(number), how)
        report.finish()
        return files.commit(split, digests)


def refuse_other_model(folder: str, ours: Collection[str]) -> None:
    """Raises SafetensorError if a folder has files of a model whose names are not in `ours`."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if ".safetensors" in name and name not in ours:
            raise failure(
                "several_models",
                f"{os.path.join(folder, name)} exists: two models in one folder get mixed up, "
                "choose another folder",
                path=os.path.join(folder, name),
            )
