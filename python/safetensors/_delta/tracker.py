"""Writes patches of a state that changes step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from .. import _extra
from .._progress import reported
from .._saving.specs import Spec
from .._typing import Buffer, Path, ProgressOption
from .chain import Held, run
from .diff import Options, write_patch
from .patch import Patch
from .tensors import Model, digest_of, open_model


class Tracker:
    """Keeps a copy of a state, and writes patches to later states.

        tracker = delta.Tracker(module.state_dict(), label="0")
        ...
        patch = tracker.diff(module.state_dict(), "1.safetensors-patch", label="1")

    A tensor that does not change costs one comparison: its digest is kept.

    Attributes:
        label: the label of the state that is kept.
    """

    def __init__(self, state: Model, *, label: str | None = None, digest: str = "xxh3-128") -> None:
        """Copies a state.

        Args:
            state, digest: as for `diff`.
            label: the name of the state.
        """
        Options.checked(digest, "auto", (label, None))
        self.label = label
        self._digest = digest
        self._digests: dict[str, str] = {}
        kept: dict[str, Held] = {}
        with contextlib.ExitStack() as stack:
            tensors = open_model(state, stack)
            for name, spec in tensors.specs.items():
                kept[name] = Held(spec, bytearray(tensors.read(name)))
                self._digests[name] = digest_of(*kept[name], digest)
        self._kept = _Kept(kept)

    def diff(
        self,
        state: Model,
        path: Path | None = None,
        *,
        label: str | None = None,
        values: str = "auto",
        fsync: bool = False,
        progress: ProgressOption = None,
    ) -> Patch:
        """Writes a patch from the state that is kept to a new one, which is kept from then on.

        If it raises, the old state is kept.

        Args:
            state, path, values, fsync, progress: as `new`, `path`, `values`, `fsync` and `progress`
                for `diff`.
            label: the name of the new state.
        """
        options = Options.checked(self._digest, values, (self.label, label), fsync)
        with contextlib.ExitStack() as stack:
            new = open_model(state, stack)
            report = stack.enter_context(reported(progress, "comparing"))
            patch, digests = write_patch(self._kept, new, self._digests, path, options, report)
        self._kept.apply(patch)
        self.label, self._digests = label, digests
        return patch


class _Kept:
    """A copy of a state."""

    metadata: dict[str, str] | None = None

    def __init__(self, held: dict[str, Held]) -> None:
        self._held = held
        self.specs: Mapping[str, Spec] = {name: each.spec for name, each in held.items()}

    def read(self, name: str) -> Buffer:
        return self._held[name].data  # type: ignore[no-any-return]

    def apply(self, patch: Patch) -> None:
        """Brings the copy to the state that a patch was made from."""
        after = dict(self._held)
        writes = []
        for name in patch.names:
            change = patch._change(name)
            if change.kind == "blocks":
                writes.append((change, self._held[name].data))
                continue
            after.pop(name, None)
            held = run([change], None, False)
            if held is not None:
                after[name] = held
        _extra._apply_patches(writes)  # one call, which Ctrl-C does not interrupt
        self._held = after
        self.specs = {name: held.spec for name, held in self._held.items()}
