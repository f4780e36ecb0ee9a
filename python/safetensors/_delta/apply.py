"""Applies patches to tensors in memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, MutableMapping
from itertools import pairwise
from typing import Any

from .. import _extra
from .._core import SafetensorError
from .._errors import failure
from .._progress import Report, reported
from .._saving.specs import Spec
from .._text import clipped
from .._typing import Progress, ProgressOption
from .chain import (
    Chain,
    Held,
    Order,
    Patches,
    check_options,
    check_whole,
    label_of,
    open_chain,
    run,
)
from .patch import Change
from .tensors import digest_of, prepared_as_bytes


def apply(
    tensors: Mapping[str, Any],
    patches: Patches,
    *,
    verify: str = "blocks",
    already: str = "error",
    progress: ProgressOption = None,
) -> None:
    """Changes tensors in memory from the base of a patch to its target.

        delta.apply(module.state_dict(), "step1.safetensors-patch")

    All tensors are checked before the first one is changed, so that a patch that is refused
    changes nothing. The tensors keep their memory; torch's autograd does not notice.

    Args:
        tensors: a dict of tensors of torch or arrays of NumPy, contiguous and on the CPU; also the
            `state_dict()` of a module, as long as no tensor is new, removed, or gets another dtype
            or shape. Where hooks put copies into a `state_dict()`, only the copies are changed:
            pass them to `load_state_dict`. Tensors that no patch names stay as they are.
        patches: a patch (a path, or what `open_patch` returns), or a list of patches, each of which
            has the target of the one before as its base.
        verify: "blocks" compares the elements that change with those of the base. "full" also
            compares the digests of all tensors that change, before and after; "whole" those of all
            tensors of the model.
        already: what to do if the tensors have the target's values: "error", or "skip", which
            computes the digests of the tensors and applies only the patches that come after them.
        progress: true for a bar; or called as `progress(done, total)` with the bytes of the tensors
            that were checked, of those that change. If it raises, nothing is changed.

    Raises:
        WrongBaseError: the tensors are not those of the base, or patches do not follow each other.
        AlreadyAppliedError: the tensors are those of the target.
        PatchError: a patch is not valid.
        ValueError: a tensor cannot be changed.
    """
    check_options(verify, already)
    with contextlib.ExitStack() as stack:
        chain = open_chain(patches, stack)
        left: Chain | None = chain
        if already == "skip":
            left = chain.rest(lambda name: _digest(tensors, name, chain.algorithm))
        if left is not None:
            report = stack.enter_context(reported(progress, "patching"))
            _apply(tensors, left, verify, report)


def _apply(
    tensors: Mapping[str, Any], chain: Chain, verify: str, progress: Progress | None
) -> None:
    order, full = Order(), verify != "blocks"
    work = {name: chain.changes(name) for name in chain.names}
    memory: dict[str, Held] = {}
    report = Report(0, progress)
    for name, changes in work.items():
        in_place = all(change.kind == "blocks" for change in changes)
        if not in_place:
            _check_replaceable(tensors, changes[0])
        if name in tensors:
            memory[name] = _held(name, tensors[name], in_place)
    report.expect(sum(held.data.nbytes for held in memory.values()))
    for name, changes in work.items():
        order.add(changes[0], memory.get(name), full)
        report.add(memory[name].data.nbytes if name in memory else 0)
    order.finish()
    aliases = _aliases(memory, work)
    if full or len(chain.patches) > 1:
        most = max((held.data.nbytes for held in memory.values()), default=0)
        scratch = memoryview(bytearray(most))
        for name, changes in work.items():
            run(changes, _copy(memory.get(name), scratch), full)
    if verify == "whole":
        _check_whole(tensors, chain, work)
    made: dict[str, Any] = {}
    writes = []
    for name, changes in work.items():
        if all(change.kind == "blocks" for change in changes):
            if name not in aliases:
                writes += [(change, memory[name].data) for change in changes]
            continue
        held = run(changes, _copy(memory.get(name)), False)
        made[name] = None if held is None else _made(tensors, name, held)
    report.finish()
    _extra._apply_patches(writes)  # one call, which Ctrl-C does not interrupt
    for name, tensor in made.items():
        if tensor is None:
            tensors.pop(name, None)  # type: ignore[attr-defined]
        else:
            tensors[name] = tensor  # type: ignore[index]


def _held(name: str, tensor: Any, in_place: bool) -> Held:
    """Returns the bytes of a tensor, in place those that it has itself."""
    found = prepared_as_bytes(name, tensor)
    if in_place and found.array.nbytes:
        where = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
        if where != found.array.ctypes.data:
            raise _unsuited(
                f"tensor `{clipped(name)}` is not contiguous, or not on the CPU: patches are "
                "applied to contiguous tensors on the CPU",
                name,
            )
        if not found.array.flags.writeable:
            raise _unsuited(f"tensor `{clipped(name)}` is read-only", name)
    return Held(Spec(found.dtype, found.shape), found.array)


def _unsuited(text: str, name: str) -> SafetensorError:
    return failure("invalid_argument", text, subject=name, also=ValueError)


def _copy(held: Held | None, scratch: memoryview | None = None) -> Held | None:
    """Returns a copy of a tensor, in memory that is used again for the next one if it is given."""
    if held is None:
        return None
    if scratch is None:
        return Held(held.spec, bytearray(held.data))
    scratch[: held.data.nbytes] = memoryview(held.data)
    return Held(held.spec, scratch[: held.data.nbytes])


def _aliases(memory: Mapping[str, Held], work: Mapping[str, list[Change]]) -> set[str]:
    """Returns the tensors that have the memory of another one.

    Raises ValueError if they share a part of it, or change in other ways.
    """
    places = sorted(
        (held.data.ctypes.data, held.data.nbytes, name)
        for name, held in memory.items()
        if held.data.nbytes and all(change.kind == "blocks" for change in work[name])
    )
    aliases = set()
    for (begin, nbytes, name), (next_begin, next_nbytes, next_name) in pairwise(places):
        if next_begin >= begin + nbytes:
            continue
        is_same = (begin, nbytes) == (next_begin, next_nbytes)
        if is_same and _targets(work[name]) == _targets(work[next_name]):
            aliases.add(next_name)
            continue
        raise _unsuited(
            f"tensors `{clipped(name)}` and `{clipped(next_name)}` share memory, and the patch "
            "changes them in different ways",
            name,
        )
    return aliases


def _targets(changes: list[Change]) -> list[str | None]:
    return [change.target for change in changes]


def _check_replaceable(tensors: Mapping[str, Any], change: Change) -> None:
    """Raises unless the tensors are a dict that can gain, lose and replace one."""
    if isinstance(tensors, MutableMapping) and not hasattr(tensors, "_metadata"):
        return
    raise _unsuited(
        f"{label_of(change)} is new, removed, or of another dtype or shape than before: such a "
        "patch is applied to a plain dict, not to the state dict of a module",
        change.name,
    )


def _digest(tensors: Mapping[str, Any], name: str, algorithm: str) -> str | None:
    if name not in tensors:
        return None
    held = _held(name, tensors[name], False)
    return digest_of(*held, algorithm)


def _check_whole(
    tensors: Mapping[str, Any], chain: Chain, work: Mapping[str, list[Change]]
) -> None:
    digests = {name: changes[0].base for name, changes in work.items()}
    for name in tensors:
        if name not in digests:
            digests[name] = _digest(tensors, name, chain.algorithm)
    ends = {name: changes[-1].target for name, changes in work.items()}
    check_whole(chain, {name: each for name, each in digests.items() if each}, ends)


def _made(tensors: Mapping[str, Any], name: str, held: Held) -> Any:
    """Returns a tensor of the kind that the dict has. Raises ValueError if its dtype has none."""
    try:
        return _made_as(tensors, name, held)
    except KeyError:
        raise _unsuited(
            f"tensor `{clipped(name)}` is {held.spec.dtype}, and there is no such type in memory",
            name,
        ) from None


def _made_as(tensors: Mapping[str, Any], name: str, held: Held) -> Any:
    like = tensors[name] if name in tensors else next(iter(tensors.values()), None)
    entry = {"dtype": held.spec.dtype, "shape": list(held.spec.shape), "data": held.data}
    if "torch" in sys.modules and isinstance(like, sys.modules["torch"].Tensor):
        from .._torch.arrays import _view2torch

        return _view2torch([(name, entry)])[name]
    from .._numpy_arrays import _view2np

    return _view2np([(name, entry)])[name]
