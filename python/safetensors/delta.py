"""Patches: what changed between two states of a model, as a small file.

    from safetensors import delta

    delta.diff("step0.safetensors", "step1.safetensors", "step1.safetensors-patch")
    delta.apply_file("step0.safetensors", "step1.safetensors-patch", "new.safetensors")

docs/patches.md describes the format and these functions.
"""

from __future__ import annotations

from ._delta.apply import apply
from ._delta.apply_file import apply_file
from ._delta.checkpoint_weight_patches import checkpoint_weight_patches
from ._delta.diff import diff
from ._delta.errors import AlreadyAppliedError, PatchError, WrongBaseError
from ._delta.patch import Entry, Patch, open_patch
from ._delta.tracker import Tracker

__all__ = [
    "AlreadyAppliedError",
    "Entry",
    "Patch",
    "PatchError",
    "Tracker",
    "WrongBaseError",
    "apply",
    "apply_file",
    "checkpoint_weight_patches",
    "diff",
    "open_patch",
]
