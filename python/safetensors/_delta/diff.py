"""Writes what changed between two states of a model as a patch."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from .. import _extra
from .._checking import sums
from .._model_folder import choice_of
from .._paths import absolute, refuse_url
from .._progress import Report, reported
from .._saving.specs import Spec, nbytes_of, rows_of
from .._saving.writer import safe_create
from .._typing import Buffer, Path, Progress, ProgressOption
from .patch import RECORD, VALUES, InMemory, Patch, is_sub_byte, open_patch, unit_of
from .tensors import Model, Tensors, digest_of, open_model, whole_digest

Labels = tuple[str | None, str | None]
FORMAT = "safetensors-patch"
VERSION = "1"
MAX_LABEL_NBYTES: int = _extra._MAX_LABEL_NBYTES
_COPY_NBYTES = 4 << 20
_VALUES = ("auto", "set")


class Options(NamedTuple):
    """How a patch is written."""

    digest: str
    values: str
    labels: Labels
    fsync: bool = False

    @classmethod
    def checked(cls, digest: str, values: str, labels: Labels, fsync: bool = False) -> Options:
        if digest not in (sums.XXH3, sums.SHA256):
            raise ValueError(f"digest is {digest!r}, not 'xxh3-128' or 'sha256'")
        if values not in _VALUES:
            raise ValueError(f"values is {values!r}, not 'auto' or 'set'")
        before, after = labels
        for label in (before, after):
            if label is not None and len(label.encode()) > MAX_LABEL_NBYTES:
                raise ValueError(f"a label has at most {MAX_LABEL_NBYTES} bytes: {label[:50]!r}")
        return cls(digest, values, (before, after), fsync)


def diff(
    old: Model,
    new: Model,
    path: Path | None = None,
    *,
    digest: str = "xxh3-128",
    values: str = "auto",
    labels: Labels = (None, None),
    fsync: bool = False,
    name: str | None = None,
    variant: str | None = None,
    progress: ProgressOption = None,
) -> Patch:
    """Writes a patch that makes `new` of `old`, two states of a model, and returns it, open.

        delta.diff("step0", "step1", "step1.safetensors-patch")

    One tensor of each state is in memory at a time, unless they are in memory already.

    Args:
        old, new: a file, a folder, an index or a list of these (as for `load_files`), or a dict of
            tensors of torch or NumPy. They need not have the same number of files.
        path: the file to write, atomically. Its name does not end with `.safetensors`, because
            programs would take it for a part of a model. None: the patch is in memory.
        digest: the algorithm of the digests: "xxh3-128" finds mistakes and damage; "sha256" also
            identifies a model if the patch comes from a source that you trust.
        values: "auto" stores differences where that is shorter. "set" stores new values only, for
            receivers that do not have the base, such as inference engines.
        labels: names of both states, such as steps or revisions, at most 256 bytes each.
        fsync: if true, returns only after the file and its name are on the disk.
        name, variant: which model of both folders, as for `load_files`.
        progress: true for a bar; or called as `progress(done, total)` with the bytes of the tensors
            of `new` that were compared. If it raises, nothing is written.

    Raises:
        ValueError: `name` or `variant` is given, and a state is no folder.
        SafetensorError: a model is damaged, or a tensor's dtype cannot be stored.
        OSError: a file cannot be read or written.
    """
    options = Options.checked(digest, values, labels, fsync)
    choice = choice_of(name, variant)
    with contextlib.ExitStack() as stack:
        before, after = open_model(old, stack, choice), open_model(new, stack, choice)
        report = stack.enter_context(reported(progress, "comparing"))
        return write_patch(before, after, {}, path, options, report)[0]


def check_path(path: Path) -> None:
    """Raises ValueError if a patch may not have this name, SafetensorError if it is a URL."""
    refuse_url(path)
    if os.fsdecode(path).endswith(".safetensors"):
        raise ValueError(f"a patch is no model: {os.fsdecode(path)} must not end with .safetensors")


def write_patch(
    old: Tensors,
    new: Tensors,
    known: Mapping[str, str],
    path: Path | None,
    options: Options,
    progress: Progress | None = None,
) -> tuple[Patch, dict[str, str]]:
    """Returns the patch and the digests of the new tensors.

    Args:
        old, new: the states.
        known: the digests of all old tensors, or nothing.
        path, options, progress: see `diff`.
    """
    if path is not None:
        check_path(path)
    folder = None if path is None else os.path.dirname(absolute(path))
    before, after = dict(known), {}
    sizes = {} if progress is None else nbytes_of(rows_of(new.specs))
    report = Report(sum(sizes.values()), progress)
    with contextlib.ExitStack() as stack:
        parts = _Parts(stack.enter_context(_scratch(folder)))
        for name, spec in new.specs.items():
            data = new.read(name)
            if old.specs.get(name) != spec:
                after[name] = digest_of(spec, data, options.digest)
                if name in old.specs and name not in before:
                    before[name] = _digest_in(old, name, options)
                parts.add_whole(name, data, spec, before.get(name), after[name])
            else:
                _add_blocks(parts, name, data, old, before, after, options)
            report.add(sizes.get(name, 0))
        for name in old.specs.keys() - new.specs.keys():
            if name not in before:
                before[name] = _digest_in(old, name, options)
            parts.add_whole(name, None, old.specs[name], before[name], None)
        metadata = {
            "format": FORMAT,
            "patch_version": VERSION,
            "base": whole_digest(before, options.digest),
            "target": whole_digest(after, options.digest),
        }
        for key, label in zip(("base_label", "target_label"), options.labels, strict=True):
            if label is not None:
                metadata[key] = label
        if new.metadata is not None and new.metadata != old.metadata:
            metadata["metadata"] = json.dumps(new.metadata, sort_keys=True)
        report.finish()
        if path is None:
            file = io.BytesIO()
            parts.save(file, metadata, False)
            return open_patch(InMemory(file.getvalue())), after
        parts.save(path, metadata, options.fsync)
    return open_patch(path), after


def _add_blocks(
    parts: _Parts,
    name: str,
    data: Buffer,
    old: Tensors,
    before: dict[str, str],
    after: dict[str, str],
    options: Options,
) -> None:
    """Adds a tensor that both states have, with one dtype and shape, if it changed."""
    spec, base = old.specs[name], old.read(name)
    digests: dict[str, Any] = {"base_digest": before.get(name)}
    if options.digest != sums.XXH3:  # the codec computes XXH3 only
        after[name] = digest_of(spec, data, options.digest)
        before.setdefault(name, digest_of(spec, base, options.digest))
        digests = {"base_digest": before[name], "target_digest": after[name]}
    encoded = _extra._encode_patch(base, data, *spec, set_values=options.values == "set", **digests)
    if encoded is None:
        before[name] = after[name] = before.get(name) or digest_of(spec, data, options.digest)
        return
    record, values, _, before[name], after[name] = encoded
    parts.add_blocks(name, record, values, spec.dtype)


def _digest_in(tensors: Tensors, name: str, options: Options) -> str:
    return digest_of(tensors.specs[name], tensors.read(name), options.digest)


class _Part(NamedTuple):
    """An entry of the patch, whose bytes are in a temporary file."""

    spec: Spec
    begin: int
    nbytes: int


class _Parts:
    """The entries of a patch, kept in a temporary file until its header is known."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._parts: dict[str, _Part] = {}

    def add_whole(
        self,
        name: str,
        data: Buffer | None,
        spec: Spec,
        base: str | None,
        target: str | None,
    ) -> None:
        """Adds a tensor as a whole, or without data as removed."""
        record = _extra._whole_patch(data, *spec, base_digest=base, target_digest=target)
        self._add_record(name, record)
        if data is not None:
            self._add(VALUES + name, data, spec)

    def add_blocks(self, name: str, record: Buffer, values: Buffer, dtype: str) -> None:
        self._add_record(name, record)
        units = memoryview(values).nbytes // unit_of(dtype)
        self._add(VALUES + name, values, Spec("U8" if is_sub_byte(dtype) else dtype, (units,)))

    def _add_record(self, name: str, record: Buffer) -> None:
        self._add(RECORD + name, record, Spec("U8", (memoryview(record).nbytes,)))

    def _add(self, name: str, data: Buffer, spec: Spec) -> None:
        nbytes = memoryview(data).nbytes
        self._parts[name] = _Part(spec, self._file.tell(), nbytes)
        if nbytes:
            self._file.write(data)

    def save(self, target: Any, metadata: dict[str, str], fsync: bool) -> None:
        """Writes the patch. The same entries give the same bytes."""
        specs = {name: part.spec for name, part in self._parts.items()}
        with safe_create(target, specs, metadata=metadata, fsync=fsync) as writer:
            for name, part in self._parts.items():
                self._file.seek(part.begin)
                if part.nbytes <= _COPY_NBYTES:
                    writer.write(name, self._file.read(part.nbytes))
                    continue
                with writer.open(name) as stream:
                    for begin in range(0, part.nbytes, _COPY_NBYTES):
                        stream.write(self._file.read(min(_COPY_NBYTES, part.nbytes - begin)))


def _scratch(folder: str | None) -> IO[bytes]:
    """Returns a temporary file without a name in a folder, or one in memory."""
    return io.BytesIO() if folder is None else tempfile.TemporaryFile(dir=folder)
