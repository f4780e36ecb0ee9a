"""Patches that are applied one after the other, and what they do to one tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .._saving.specs import Spec
from .._shards import sources_of
from .._text import clipped
from .._typing import Source
from .errors import AlreadyAppliedError, PatchError, WrongBaseError
from .patch import Change, Patch, error_of, open_patch
from .tensors import whole_digest

Patches = Patch | Source | Sequence[Patch | Source]
BASE, APPLIED = "base", "applied"
_VERIFY = ("blocks", "full", "whole")
_ALREADY = ("error", "skip")


class Held(NamedTuple):
    """A tensor, whose bytes may be changed."""

    spec: Spec
    data: Any
    """An object with a buffer: a bytearray, a memoryview, or an array of NumPy."""


class Chain:
    """Patches, each of which has the target of the one before as its base."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self.patches = patches
        for before, after in pairwise(patches):
            _check_link(before, after)
        self._of: dict[str, list[Patch]] = {}
        for patch in patches:
            for name in patch.names:
                self._of.setdefault(name, []).append(patch)

    @property
    def names(self) -> list[str]:
        """The tensors that a patch changes."""
        return list(self._of)

    @property
    def algorithm(self) -> str:
        return self.patches[0].algorithm

    def changes(self, name: str) -> list[Change]:
        """Returns what the patches do to a tensor; at least one change. Raises PatchError."""
        changes = [patch._change(name) for patch in self._of[name]]
        for before, after in pairwise(changes):
            if before.target != after.base:
                raise _error(
                    PatchError,
                    after,
                    f"its base is {after.base}, but {before.path} leaves {before.target}",
                )
        return changes

    def rest(self, digest_in_model: Callable[[str], str | None]) -> Chain | None:
        """Returns the patches that are not applied yet, None if all are.

        Args:
            digest_in_model: returns the digest of a tensor of the model, None if there is none.
        """
        states = set(range(len(self.patches) + 1))
        for name in self.names:
            states &= self._states_with(name, digest_in_model(name))
            if not states:
                raise error_of(
                    WrongBaseError,
                    f"{self.patches[0].path}: tensor `{clipped(name)}` of the model is neither "
                    "that of the base nor that after one of the patches",
                    self.patches[0].path,
                    name,
                )
        first = max(states)
        return Chain(self.patches[first:]) if first < len(self.patches) else None

    def _states_with(self, name: str, digest: str | None) -> set[int]:
        """Returns after how many patches a tensor has a digest."""
        by_patch = dict(zip(self._of[name], self.changes(name), strict=True))
        current = next(iter(by_patch.values())).base
        states = {0} if current == digest else set()
        for number, patch in enumerate(self.patches, 1):
            if patch in by_patch:
                current = by_patch[patch].target
            if current == digest:
                states.add(number)
        return states


def open_chain(patches: Patches, stack: contextlib.ExitStack) -> Chain:
    """Opens patches, and checks that they follow each other. The stack closes them."""
    if isinstance(patches, Patch):
        patches = [patches]
    listed = sources_of(patches)  # type: ignore[arg-type]
    if not listed:
        raise ValueError("no patches: the list is empty")
    return Chain(
        [
            each if isinstance(each, Patch) else stack.enter_context(open_patch(each))
            for each in listed
        ]
    )


def check_options(verify: str, already: str) -> None:
    if verify not in _VERIFY:
        raise ValueError(f"verify is {verify!r}, not 'blocks', 'full' or 'whole'")
    if already not in _ALREADY:
        raise ValueError(f"already is {already!r}, not 'error' or 'skip'")


class Order:
    """Notices that a patch has been applied already, or to a part of the tensors."""

    def __init__(self) -> None:
        self._first: Change | None = None
        self._state = BASE

    def add(self, change: Change, held: Held | None, full: bool) -> None:
        """Checks the tensor that a change is for. Raises WrongBaseError."""
        state = _state_of(change, held, full)
        if self._first is None:
            self._first, self._state = change, state
        elif state != self._state:
            done, not_yet = (change, self._first) if state == APPLIED else (self._first, change)
            raise _error(
                WrongBaseError,
                not_yet,
                f"it is as before the patch, but tensor `{clipped(done.name)}` as after it: the "
                "model is a mixture",
            )

    def finish(self) -> None:
        """Raises AlreadyAppliedError if all tensors are the target's."""
        if self._first is not None and self._state == APPLIED:
            path = self._first.path
            raise error_of(AlreadyAppliedError, f"{path}: the model has this patch already", path)


def run(changes: Sequence[Change], held: Held | None, full: bool) -> Held | None:
    """Returns what changes make of a tensor, whose memory they may change."""
    for change in changes:
        if change.kind == "removed":
            held = None
        elif change.kind == "whole":
            assert change.dtype is not None
            held = Held(Spec(change.dtype, change.shape), change.values())
        else:
            assert held is not None
            change.apply(held.data)
    if full and held is not None:
        changes[-1].check_target(*held.spec, held.data)
    return held


def spec_after(changes: Sequence[Change], spec: Spec | None) -> Spec | None:
    """Returns the dtype and shape of a tensor after the changes, None if it is removed."""
    for change in changes:
        if change.kind == "removed":
            spec = None
        elif change.kind == "whole":
            assert change.dtype is not None
            spec = Spec(change.dtype, change.shape)
    return spec


def check_whole(chain: Chain, digests: dict[str, str], ends: dict[str, str | None]) -> None:
    """Compares the digests of all tensors of the base, and of the target, with the patches'.

    Args:
        chain: the patches.
        digests: those of the base's tensors.
        ends: the digests of the tensors that change, after the last patch.
    """
    first, last = chain.patches[0], chain.patches[-1]
    found = whole_digest(digests, chain.algorithm)
    if found != first.base:
        text = f"the model is {found} instead of the base {first.base}: tensors that the patch "
        text += "does not change have other values, are missing, or are too many"
        raise error_of(WrongBaseError, f"{first.path}: {text}", first.path)
    after = {**digests, **ends}
    found = whole_digest({n: each for n, each in after.items() if each}, chain.algorithm)
    if found != last.target:
        text = f"the model becomes {found} instead of the target {last.target}"
        raise error_of(PatchError, f"{last.path}: {text}", last.path)


def _check_link(before: Patch, after: Patch) -> None:
    what = ""
    if after.base != before.target:
        what = f"its base is {_named(after.base, after.base_label)}, but the patch before it, "
        what += f"{before.path}, leads to {_named(before.target, before.target_label)}"
    elif len({after.base_label, before.target_label} - {None}) > 1:
        what = f"its base is labelled `{after.base_label}`, but {before.path} leads to "
        what += f"`{before.target_label}`"
    if what:
        raise error_of(WrongBaseError, f"{after.path}: {what}", after.path)


def _named(digest: str, label: str | None) -> str:
    return digest if label is None else f"`{label}` ({digest})"


def _state_of(change: Change, held: Held | None, full: bool) -> str:
    """Returns BASE or APPLIED. Raises WrongBaseError if a tensor is neither."""
    if held is None:
        return change.check_absent()
    return change.check(*held.spec, held.data, full)


def label_of(change: Change) -> str:
    """Returns what errors about a change begin with."""
    return f"{change.path}: tensor `{clipped(change.name)}`"


def _error(kind: type[PatchError], change: Change, text: str) -> PatchError:
    return error_of(kind, f"{label_of(change)}: {text}", change.path, change.name)
