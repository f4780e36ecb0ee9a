"""Applies patches to the files of a model in place."""

from __future__ import annotations

import contextlib
import os

from .._model_folder import Choice
from .._paths import absolute
from .._progress import Report
from .._saving.in_place import InPlaceChange, open_change
from .._saving.specs import Spec, nbytes_of, rows_of
from .._shards import find_shards
from .._typing import Sources
from .chain import Chain, Held, Order, Patches, check_whole, label_of, open_chain, run
from .patch import Change
from .tensors import digest_of


def apply_in_place(
    model: Sources,
    patches: Patches,
    verify: str,
    already: str,
    shared: bool,
    choice: Choice,
    report: Report,
) -> None:
    """Applies patches to the files of a model. See `apply_file`."""
    shards = find_shards(model, choice=choice)
    if any(shard.reader is not None for shard in shards):
        raise ValueError("in_place changes files of one folder, not URLs or RangeReaders")
    paths = [absolute(shard.path) for shard in shards]
    if len({os.path.realpath(os.path.dirname(path)) for path in paths}) > 1:
        raise ValueError("in_place changes files of one folder, and the model is in several")
    name = os.path.basename(shards[0].index_path or paths[0])
    with contextlib.ExitStack() as stack:
        chain = open_chain(patches, stack)
        change = stack.enter_context(open_change(paths, name, shared))
        _prepare(change, chain, verify, already, report)
        change.commit()


def _prepare(
    change: InPlaceChange, given: Chain, verify: str, already: str, report: Report
) -> None:
    """Prepares what changes of each tensor. Checks the patches and the tensors on the way."""
    files = change.tensors
    specs = {name: Spec(dtype, shape) for rows in files for name, dtype, shape in rows}

    def digest(name: str) -> str | None:
        if name not in specs:
            return None
        return digest_of(specs[name], change.read(name), given.algorithm)

    chain = given.rest(digest) if already == "skip" else given
    if chain is None:
        report.finish()
        return
    work = {name: chain.changes(name) for name in chain.names}
    sizes = nbytes_of(rows_of({name: specs[name] for name in work if name in specs}))
    report.expect(sum(sizes.values()))
    for changes in work.values():
        _check_blocks(changes)
    if len(files) == 1 and any(patch.metadata is not None for patch in chain.patches):
        raise ValueError("the patch changes the metadata of the header, which needs a new file")
    order = Order()
    full = verify != "blocks"
    for name, changes in work.items():
        if name not in specs:
            order.add(changes[0], None, full)  # raises
        report.add(sizes[name])
        held = Held(specs[name], change.read(name))
        order.add(changes[0], held, full)
        order.finish()
        run(changes, held, full)
        change.write(name, held.data)
    if verify == "whole":
        digests: dict[str, str] = {}
        for name in specs:
            found = work[name][0].base if name in work else digest(name)
            assert found is not None
            digests[name] = found
        check_whole(chain, digests, {name: each[-1].target for name, each in work.items()})
    report.finish()


def _check_blocks(changes: list[Change]) -> None:
    for change in changes:
        if change.kind != "blocks":
            raise ValueError(
                f"{label_of(change)} is new, removed, or of another dtype or shape than before: "
                "that needs a new file"
            )
