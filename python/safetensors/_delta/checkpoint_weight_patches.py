"""Patches as the updates that vLLM's `load_checkpoint_weight_patches` takes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .._errors import failure

if TYPE_CHECKING:
    from .._core import SafetensorError
    from .._torch import torch
    from .patch import Patch

_MODULE = "vllm.model_executor.model_loader.checkpoint_weight_patch"
_SPARSE = ("F64", "F32", "F16", "BF16")
"""vLLM marks the elements that do not change with NaN. torch has no index_copy_ of FP8."""
_INT32_ELEMENTS = 1 << 31


class CheckpointWeightPatch(NamedTuple):
    """The fields of vLLM's class, for a process that has not imported vLLM."""

    name: str
    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    dtype: torch.dtype
    values: torch.Tensor
    """One axis: the values at `indices`, or all values."""
    indices: torch.Tensor | None = None
    """int32 or int64 indices in the flattened tensor; None if `values` are all."""


def checkpoint_weight_patches(
    patch: Patch, base: Mapping[str, torch.Tensor] | None = None, device: Any = None
) -> tuple[list[Any], list[Any]]:
    """Returns what `load_checkpoint_weight_patches` of vLLM takes, as two lists.

    vLLM takes no list with both kinds, so it is called once for each:

        sparse, dense = delta.checkpoint_weight_patches(patch)
        load_checkpoint_weight_patches(model, sparse, validate_unique_indices=False)
        load_checkpoint_weight_patches(model, dense)

    Args:
        patch: the patch.
        base: the tensors before the patch, by name, which stay as they are. Needed for patches
            with differences (`diff(..., values="set")` makes patches without), and for tensors
            that vLLM takes only as a whole: other types than F64, F32, F16 and BF16, and those
            that get a NaN.
        device: where the tensors are put. By default the CPU.

    Returns:
        The updates of some elements, and those of whole tensors: each has the fields `name`,
        `shape`, `dtype`, `values` and `indices`. They are of vLLM's class if it is imported.

    Raises:
        ValueError: the patch removes a tensor, or `base` is needed and lacks one.
        WrongBaseError: `base` is not the patch's base.
    """
    kind = _class()
    sparse, dense = [], []
    for name in patch.names:
        where = f"{patch.path}: tensor `{name}`"
        entry = patch.entry(name)
        if entry.kind == "removed":
            raise _unsuited(patch, name, f"{where} is removed: vLLM can only change tensors")
        if entry.kind == "whole":
            made = _tensor(name, entry, patch.changed(name)[1])
            dense.append(kind(name, tuple(made.shape), made.dtype, _flat(made, device)))
            continue
        found = _sparse(patch, name, entry, base, where) if entry.dtype in _SPARSE else None
        if found is not None:
            indices, values = found
            assert entry.shape is not None
            sparse.append(
                kind(name, entry.shape, values.dtype, values.to(device), indices.to(device))
            )
            continue
        why = (
            "gets a NaN" if entry.dtype in _SPARSE else f"is {entry.dtype or 'of packed elements'}"
        )
        made = _after(patch, name, base, f"{where} {why}, so that vLLM takes it only whole")
        dense.append(kind(name, tuple(made.shape), made.dtype, _flat(made, device)))
    return sparse, dense


def _unsuited(patch: Patch, name: str, text: str) -> SafetensorError:
    return failure("invalid_argument", text, path=patch.path, subject=name, also=ValueError)


def _class() -> Any:
    """Returns vLLM's class in a process that uses vLLM, which takes long to import; else ours."""
    if "vllm" not in sys.modules:
        return CheckpointWeightPatch
    import importlib

    return importlib.import_module(_MODULE).CheckpointWeightPatch


def _sparse(
    patch: Patch, name: str, entry: Any, base: Mapping[str, torch.Tensor] | None, where: str
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns indices and values, or None if there is a NaN among the values."""
    from .._torch import torch

    indices, values = patch.changed(name)
    positions = torch.from_numpy(indices)
    if values is None:
        why = f"{where} has differences: with values='set', diff writes values"
        new = _after(patch, name, base, why).flatten()[positions]
    else:
        new = _tensor(name, entry._replace(shape=(indices.size,)), values)
    if bool(torch.isnan(new).any()):
        return None
    if math.prod(entry.shape) < _INT32_ELEMENTS:
        positions = positions.to(torch.int32)
    return positions, new


def _after(
    patch: Patch, name: str, base: Mapping[str, torch.Tensor] | None, why: str
) -> torch.Tensor:
    """Returns a tensor after the patch, on the CPU."""
    from .._torch import torch
    from .apply import apply

    if base is None or name not in base:
        raise _unsuited(patch, name, f"{why}, which needs this tensor in `base`")
    made = base[name].detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    apply({name: made}, patch._alone(name))
    return made


def _tensor(name: str, entry: Any, values: Any) -> torch.Tensor:
    """Returns an array of values as a tensor of the entry's dtype and shape."""
    from .._torch.arrays import _view2torch

    data = bytearray(values.tobytes())
    return _view2torch([(name, {"dtype": entry.dtype, "shape": list(entry.shape), "data": data})])[
        name
    ]


def _flat(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    return tensor.flatten().to(device)
