"""Which tensors share memory."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Optional, Set, Tuple

import torch

from .dtypes import _SIZE


def storage_ptr(tensor: torch.Tensor) -> int:
    """Address of the memory that the tensor is a view of; 0 when it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0  # a tensor without storage, such as a fake one


def storage_size(tensor: torch.Tensor) -> int:
    """Bytes of the memory that the tensor is a view of."""
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:
        return tensor.nelement() * _SIZE[tensor.dtype]


def _end_ptr(tensor: torch.Tensor) -> int:
    """Address past the tensor's last element."""
    if tensor.nelement() == 0:
        return tensor.data_ptr()
    # By strides: a view that is not contiguous cannot be flattened.
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr() + (last + 1) * _SIZE[tensor.dtype]


def _is_complete(tensor: torch.Tensor) -> bool:
    """Whether the tensor covers all of its storage."""
    covered = tensor.nelement() * _SIZE[tensor.dtype]
    return tensor.data_ptr() == storage_ptr(tensor) and covered == storage_size(tensor)


def _filter_shared_not_shared(
    tensors: List[Set[str]], state_dict: Dict[str, torch.Tensor]
) -> List[Set[str]]:
    """Splits groups of tensors that share a storage into those that share bytes of it."""
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
    """Groups of names: tensors of one group share memory."""
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
    """For each group of tensors that share memory, the name to keep and those it stands for.

    Kept is a tensor that covers its whole storage: of these one of `preferred_names` if there is
    any, else one not among `discard_names` if there is any, else the first by name. Raises
    RuntimeError when none covers it.
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
