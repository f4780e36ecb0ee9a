"""Applies patches to the files of a model."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from .. import _extra
from .._core import safe_open
from .._model_folder import choice_of
from .._paths import absolute, refuse_url
from .._progress import Report, shows_progress
from .._saving.arguments import SaveArguments
from .._saving.model_files import refuse_other_models, save_files
from .._saving.recovery import old_names
from .._saving.specs import Spec, nbytes_of, rows_of
from .._saving.split import Split
from .._saving.writer import SafeWriter, open_writer
from .._typing import Path, ProgressOption, Sources, SumsOption
from .apply_in_place import apply_in_place
from .chain import (
    Chain,
    Held,
    Order,
    Patches,
    check_options,
    check_whole,
    open_chain,
    run,
    spec_after,
)
from .tensors import FileTensors, digest_of


@shows_progress("patching")
def apply_file(
    model: Sources,
    patches: Patches,
    output: Path | None = None,
    *,
    in_place: bool = False,
    verify: str = "full",
    already: str = "error",
    fsync: bool = False,
    shared: bool = False,
    sums: SumsOption = None,
    name: str | None = None,
    variant: str | None = None,
    progress: ProgressOption = None,
) -> None:
    """Writes the model that patches make of another one, or changes the model itself.

        delta.apply_file("step0", ["1.safetensors-patch", "2.safetensors-patch"], "step2")

    The model is read once, one tensor at a time. The output appears when it is complete, or not at
    all. Tensors that no patch names are copied by the system, and share their disk space with the
    model where the file system can do that.

    With `in_place`, the files of the model are changed. After a kill or a power failure, no reader
    takes them for valid ones until `recover` has completed the change.

    Args:
        model: a file, a folder, an index or a list of these, as for `load_files`. With `in_place`,
            files of one folder.
        patches: a patch (a path, or what `open_patch` returns), or a list of patches, each of which
            has the target of the one before as its base.
        output: a file, which may replace another one; or for a model of several files a folder,
            which gets as many files and their index. New tensors are added to the last file.
        in_place: if true, there is no output. For patches without tensors that are new, removed, or
            of another dtype or shape.
        verify: as for `apply`.
        already: as for `apply`. "skip" reads the tensors that change twice.
        fsync: if true, returns only after the output is on the disk. Always so with `in_place`.
        shared: with `in_place`, see `update_file`.
        sums: whether to write the digests of the tensors beside the output, as `save_file`.
        name, variant: which model of a folder, as for `load_files`. The output has its names, too.
        progress: true for a bar; or called as `progress(done, total)` with the bytes of the
            output's tensors, or with `in_place` of those that change. If it raises, nothing is
            written.

    Raises:
        WrongBaseError: the model is not the base, or patches do not follow each other.
        AlreadyAppliedError: the model is the target.
        PatchError: a patch is not valid.
        SafetensorError: the model is damaged. If an operating system call fails, the error is an
            OSError too.
        ValueError: the output does not fit the model or the patches; `in_place` with `sums`; or
            `name` or `variant` for a model that is no folder.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    check_options(verify, already)
    choice = choice_of(name, variant)
    if (output is None) != in_place:
        raise ValueError("apply_file needs an output, or in_place=True instead")
    if in_place and sums:
        raise ValueError("in_place changes tensors, and sums need an output")
    if output is None:
        apply_in_place(model, patches, verify, already, shared, choice, Report(0, progress))
        return
    refuse_url(output)
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(FileTensors(model, choice))
        chain = open_chain(patches, stack)
        if already == "skip":
            left = chain.rest(lambda name: _digest(files, name, chain.algorithm))
            work = _Work(files, left, verify)
        else:
            work = _Work(files, chain, verify)
        path = absolute(output)
        options = SaveArguments(fsync=fsync, progress=progress, sums=sums)
        _write(work, path, _is_folder(output, files), options)


def _is_folder(output: Path, files: FileTensors) -> bool:
    path = os.fsdecode(output)
    if len(files.files) == 1:
        return os.path.isdir(path) or path.endswith(("/", os.sep))
    if path.endswith(".safetensors"):
        raise ValueError(f"the model has {len(files.files)} files: {path} must be a folder")
    return True


class _Work:
    """What is written to which file. Checks the patches, and the tensors when they are written."""

    def __init__(self, files: FileTensors, chain: Chain | None, verify: str) -> None:
        self.files = files
        self._chain = chain
        self._full = verify != "blocks"
        self._whole = verify == "whole" and chain is not None
        self._order = Order()
        self._digests: dict[str, str] = {}
        self._ends: dict[str, str | None] = {}
        after: dict[str, Spec | None] = {}
        for name in self._names:
            assert chain is not None
            changes = chain.changes(name)
            after[name] = spec_after(changes, files.specs.get(name))
            self._ends[name] = changes[-1].target
        self.specs: list[dict[str, Spec]] = []
        """The tensors of each file of the output."""
        for _, _, names in files.files:
            specs = {name: after.get(name, files.specs[name]) for name in names}
            self.specs.append({name: spec for name, spec in specs.items() if spec is not None})
        for name, spec in after.items():
            if name not in files.specs and spec is not None:
                self.specs[-1][name] = spec
        self.sizes: dict[str, int] = {}
        """The bytes of each tensor of the output."""
        for of_file in self.specs:
            self.sizes |= nbytes_of(rows_of(of_file))

    @property
    def _names(self) -> list[str]:
        return [] if self._chain is None else self._chain.names

    def metadata_of(self, file: safe_open) -> dict[str, str] | None:
        """Returns the metadata of the file that a file of the model becomes."""
        if self._chain is not None and self.files.metadata is not None:
            for patch in reversed(self._chain.patches):
                if patch.metadata is not None:
                    return patch.metadata
        return file.metadata()

    def write(self, number: int, writer: SafeWriter) -> None:
        """Writes a file of the output. After the last one, makes the checks that need all tensors:
        nothing has taken its name yet."""
        _, file, names = self.files.files[number]
        changed = set(self._names)
        kept = [name for name in names if name not in changed]
        if self._whole:
            assert self._chain is not None
            for name in kept:
                data = self.files.read(name)
                spec = self.files.specs[name]
                self._digests[name] = digest_of(spec, data, self._chain.algorithm)
                writer.write(name, data)
        else:
            writer._copy(file, [(name, name) for name in kept])
        for name in names:
            if name in changed:
                self._write_changed(name, writer)
        if number == len(self.specs) - 1:
            for name in self._names:
                if name not in self.files.specs:
                    self._write_changed(name, writer)
            if self._whole:
                assert self._chain is not None
                check_whole(self._chain, self._digests, self._ends)

    def _write_changed(self, name: str, writer: SafeWriter) -> None:
        assert self._chain is not None
        changes = self._chain.changes(name)
        held = None
        if name in self.files.specs:
            held = Held(self.files.specs[name], self.files.read(name))
        self._order.add(changes[0], held, self._full)
        self._order.finish()
        if changes[0].base is not None:
            self._digests[name] = changes[0].base
        made = run(changes, held, self._full)
        if made is not None:
            writer.write(name, made.data)


def _digest(files: FileTensors, name: str, algorithm: str) -> str | None:
    if name not in files.specs:
        return None
    return digest_of(files.specs[name], files.read(name), algorithm)


def _write(work: _Work, output: str, is_folder: bool, options: SaveArguments) -> None:
    opened = [file.handle for file in work.files.files]
    if not is_folder:
        nbytes = sum(work.sizes.values())
        report = Report(nbytes, options.progress)
        how = options._replace(
            metadata=work.metadata_of(opened[0]), progress=report.of_file(nbytes)
        )
        with open_writer(output, work.specs[0], how) as writer:
            work.write(0, writer)
            report.finish()
        return
    shard = work.files.files[0].shard
    name = _extra._name_to_save(os.path.basename(shard.index_path or shard.path))
    refuse_other_models(output, old_names(output, name))
    os.makedirs(os.path.dirname(output), exist_ok=True)
    left = enumerate(opened)

    def save(_: list[str], target: Any, of_shard: SaveArguments) -> None:
        number, file = next(left)
        how = of_shard._replace(metadata=work.metadata_of(file))
        with open_writer(target, work.specs[number], how) as writer:
            work.write(number, writer)

    split = Split([list(specs) for specs in work.specs], sum(work.sizes.values()))
    save_files(split, work.sizes, save, output, name, options)
