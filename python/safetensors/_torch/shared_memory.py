"""Finds tensors that share memory."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Optional, Set, Tuple

import torch

from .dtypes import _SIZE


def storage_ptr(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's storage; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0  # no storage, such as a FakeTensor


def storage_size(tensor: torch.Tensor) -> int:
    """Returns the size of the tensor's storage in bytes."""
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:
        return tensor.nelement() * _SIZE[tensor.dtype]


def _end_ptr(tensor: torch.Tensor) -> int:
    """Returns the address after the tensor's last element."""
    if tensor.nelement() == 0:
        return tensor.data_ptr()
    # From the strides: a tensor that is not contiguous has no flat view to measure.
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr() + (last + 1) * _SIZE[tensor.dtype]


def _is_complete(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor covers its whole storage."""
    covered = tensor.nelement() * _SIZE[tensor.dtype]
    return tensor.data_ptr() == storage_ptr(tensor) and covered == storage_size(tensor)


def _filter_shared_not_shared(
    tensors: List[Set[str]], state_dict: Dict[str, torch.Tensor]
) -> List[Set[str]]:
    """Splits groups of tensors that share a storage into groups that share bytes of it.

    Sorted by begin, a tensor belongs to the last group if it begins before the furthest end so far:

        a  [----------)
        b      [---)             a and b share bytes
        c                [----)  c is a group of its own
    """
    filtered: List[Set[str]] = []
    for group in tensors:
        if len(group) < 2:
            filtered.append(group)
            continue
        areas = sorted(
            (state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in group
        )
        reached = -1
        for begin, end, name in areas:
            if begin >= reached:
                filtered.append({name})
            else:
                filtered[-1].add(name)
            reached = max(reached, end)
    return filtered


def _find_shared_tensors(state_dict: Dict[str, torch.Tensor]) -> List[Set[str]]:
    """Returns groups of names; the tensors of a group share memory."""
    groups: Dict[Tuple[torch.device, int, int], Set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device.type == "meta":
            continue
        pointer, size = storage_ptr(tensor), storage_size(tensor)
        if pointer != 0 and size != 0:
            groups[tensor.device, pointer, size].add(name)
    return _filter_shared_not_shared(list(groups.values()), state_dict)


def _remove_duplicate_names(
    state_dict: Dict[str, torch.Tensor],
    *,
    preferred_names: Optional[List[str]] = None,
    discard_names: Optional[List[str]] = None,
) -> Dict[str, List[str]]:
    """Returns, for each group of tensors that share memory, the name to keep and those to remove.

    Only a tensor that covers its whole storage is kept. Among several, names in `preferred_names`
    take precedence, then names outside `discard_names`; the first in sorted order wins.

    Raises:
        RuntimeError: no tensor of a group covers its storage.
    """
    preferred = set(preferred_names or ())
    discarded = set(discard_names or ())
    to_remove: Dict[str, List[str]] = defaultdict(list)
    for group in _find_shared_tensors(state_dict):
        complete = {name for name in group if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no "
                f"suitable name to keep for saving amongst: {group}. None is covering the entire "
                "storage.Refusing to save/load the model since you could be storing much more "
                "memory than needed. Please refer to "
                "https://huggingface.co/docs/safetensors/torch_shared_tensors for more "
                "information. Or open an issue."
            )
        kept = min(complete & preferred or complete - discarded or complete)
        to_remove[kept].extend(name for name in sorted(group) if name != kept)
        if not to_remove[kept]:
            del to_remove[kept]
    return to_remove
