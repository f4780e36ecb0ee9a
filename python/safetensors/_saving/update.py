"""Changes some tensors of a file: update_file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _core, _extra
from .._core import safe_open
from .._errors import failure
from .._paths import absolute, refuse_url
from .._progress import Report, shows_progress
from .._reading import Version, version_of
from .._typing import Path, ProgressOption, SumsOption
from .arguments import SaveArguments
from .prepare import Prepared, prepared
from .specs import Spec, nbytes_of, rows_of, spec_in, spec_of
from .writer import open_writer


class _Keep:
    """The type of the default of `metadata`."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP = _Keep()


@shows_progress("updating")
def update_file(
    filename: Path,
    tensors: Mapping[str, Any],
    *,
    add: bool = False,
    remove: Iterable[str] = (),
    metadata: dict[str, str] | _Keep | None = KEEP,
    fsync: bool = False,
    sums: SumsOption = None,
    in_place: bool = False,
    shared: bool = False,
    progress: ProgressOption = None,
) -> None:
    """Changes tensors of a file, atomically: if it fails, the file is unchanged.

        update_file("model.safetensors", {"lm_head.weight": weight})

    On file systems such as btrfs and XFS, the new file shares the blocks of the other tensors with
    the old one, so that only the changed tensors take time and space. Elsewhere, such as on ext4,
    the kernel copies them, and the disk needs space for both files. Tensors behind a removed one
    are shared only if it has whole blocks of 4096 bytes.

    Tensors that were loaded from the old file keep their values.

    With `in_place`, the changed tensors are written into the file itself, without space for a
    second file. Memory is needed for one tensor three times. The change is
    flushed to a journal beside the file first. After a kill or a power failure, no reader takes the
    file for a valid one until `recover` has completed the change.

    Args:
        filename: the file to change.
        tensors: new values by name: tensors of torch or NumPy, or all else that `SafeWriter.write`
            takes. They have the dtypes and shapes of those in the file. They may be views of the
            file.
        add: if true, names that the file does not have are added at its end.
        remove: names of tensors to remove.
        metadata: the new metadata of the header; None removes it. By default it is kept.
        fsync: if true, returns only after the file and its name are on the disk. Always so with
            `in_place`.
        sums: whether to write the digests of the tensors beside the file, as `save_file`. All of
            the new file is read for it.
        in_place: if true, writes into the file, and removes its sums. For changed tensors only.
            Without `shared`, on Linux only, and not on overlayfs, which containers have.
        shared: with `in_place`, changes the file although it may be open or mapped, by this program
            or others. Tensors that were loaded from it as views of its pages change too, but for
            NumPy arrays of this process, which on Linux are copied to memory first.
        progress: true for a bar; or called as `progress(done, total)` with the bytes of the new
            file, or with `in_place` those of the changed tensors. If it raises, the file is
            unchanged.

    Raises:
        SafetensorError: a tensor has another dtype or shape; the file has no tensor of a name,
            which is a KeyError, too; or another program changed the file meanwhile. With
            `in_place`, the file is a link; it is in use; or the system does not tell whether it
            is, and `shared` is false. If an operating system call fails, the error is an OSError
            too.
        ValueError: `in_place` with `add`, `remove`, `metadata` or `sums`.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    if isinstance(remove, (str, bytes)):
        raise TypeError(f"remove is a list of names, not {remove!r}")
    refuse_url(filename)
    tensors = dict(tensors)
    removed = set(remove)
    if in_place:
        if add or removed or sums or not isinstance(metadata, _Keep):
            raise ValueError(
                "in_place changes tensors; add, remove, metadata and sums need a new file"
            )
        _update_in_place(filename, tensors, shared, Report(0, progress))
        return
    before = version_of(os.stat(filename))
    with safe_open(filename, framework="numpy", backend="pread") as file:
        old = {name: spec_in(file, name) for name in file.offset_keys()}
        specs = _updated_specs(filename, old, tensors, removed, add)
        notes = file.metadata() if isinstance(metadata, _Keep) else metadata
        begin = _core._data_begin(file)
        options = SaveArguments(notes, fsync, progress, sums, layout="given", data_begin=begin)
        with open_writer(filename, specs, options) as writer:
            # First, so that the file system need not find space for what it can share.
            writer._copy(file, [(name, name) for name in specs if name not in tensors])
            for name, tensor in tensors.items():
                writer.write(name, tensor)
            file.close()  # Windows cannot replace an open file
            _check_unchanged(filename, before)


def _update_in_place(
    filename: Path, tensors: Mapping[str, Any], shared: bool, report: Report
) -> None:
    path = absolute(filename)
    if not hasattr(_extra, "_InPlaceChange"):
        raise failure(
            "invalid_argument",
            f"{path} is not changed in place: that is not supported on Windows",
            path=path,
        )
    from .in_place import open_change

    with open_change([path], os.path.basename(path), shared) as change:
        (rows,) = change.tensors
        old = {name: Spec(dtype, shape) for name, dtype, shape in rows}
        _updated_specs(filename, old, tensors, (), add=False)
        sizes = nbytes_of(rows_of({name: old[name] for name in tensors}))
        report.expect(sum(sizes.values()))
        for name, tensor in tensors.items():
            report.add(sizes[name])
            data = prepared(name, tensor)
            change.write(name, data.array if isinstance(data, Prepared) else data)
        report.finish()
        change.commit()


def _updated_specs(
    filename: Path,
    old: dict[str, Spec],
    tensors: Mapping[str, Any],
    removed: Iterable[str],
    add: bool,
) -> dict[str, Spec]:
    """Returns the specs of the tensors that the file then has. Checks all names and specs."""
    specs: dict[str, Spec] = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "dtype"):
            specs[name] = spec_of(name, tensor)
        elif name in old:
            specs[name] = old[name]  # bytes, whose number the writer checks
        elif add:
            raise TypeError(
                f"tensor `{name}` is new: it needs a dtype and a shape, which "
                f"{type(tensor).__name__} does not have"
            )
        else:
            specs[name] = Spec("U8", ())  # refused, as the file has no such tensor
    names = _extra._updated_names(filename, old, specs, list(removed), add)
    return {name: specs[name] if name in specs else old[name] for name in names}


def _check_unchanged(filename: Path, before: Version) -> None:
    """Raises if the path names another file, or the file was written to."""
    if version_of(os.stat(filename)) != before:
        raise failure(
            "file_changed",
            f"Error while serializing: {os.fsdecode(filename)} was replaced or written to while it "
            "was being updated",
            path=filename,
        )
