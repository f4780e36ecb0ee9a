"""Finds tensors that share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from . import torch
from .dtypes import _SIZE
from .overlaps import find_overlap, may_overlap_itself
from .wrappers import address_of, has_own_operators


def storage_ptr(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's storage; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    # NotImplementedError is one. ValueError: parameters of lazy modules.
    except (RuntimeError, ValueError):
        return 0  # no storage, such as a FakeTensor and other wrappers


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
    tensors: list[set[str]], state_dict: dict[str, torch.Tensor]
) -> list[set[str]]:
    """Splits groups of tensors that share a storage into groups that share bytes of it.

    Sorted by begin, a tensor belongs to the last group if it begins before the furthest end so far:

        a  [----------)
        b      [---)             a and b share bytes
        c                [----)  c is a group of its own
    """
    filtered: list[set[str]] = []
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


def _find_shared_tensors(state_dict: dict[str, torch.Tensor]) -> list[set[str]]:
    """Returns groups of names; the tensors of a group share memory."""
    groups: dict[tuple[torch.device, int, int], set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device.type == "meta" or has_own_operators(tensor):
            continue
        pointer, size = storage_ptr(tensor), storage_size(tensor)
        if pointer != 0 and size != 0:
            groups[tensor.device, pointer, size].add(name)
    return _filter_shared_not_shared(list(groups.values()), state_dict)


def _remove_duplicate_names(
    state_dict: dict[str, torch.Tensor],
    *,
    preferred_names: list[str] | None = None,
    discard_names: list[str] | None = None,
) -> dict[str, list[str]]:
    """Returns, for each group of tensors that share memory, the name to keep and those to remove.

    Only a tensor that covers its whole storage is kept. Among several, names in `preferred_names`
    take precedence, then names outside `discard_names`; the first in sorted order wins.

    Raises:
        RuntimeError: no tensor of a group covers its storage.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    to_remove: dict[str, list[str]] = defaultdict(list)
    for group in _find_shared_tensors(state_dict):
        kept = _complete_name(group, state_dict, preferred, discarded)
        if kept is None:
            raise RuntimeError(_none_is_complete(group))
        if len(group) > 1:
            to_remove[kept] = sorted(group - {kept})
    return to_remove


def names_not_saved(state_dict: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    """Returns what `_remove_duplicate_names` does, and also takes parts of a storage.

    If no tensor of a group covers the storage, the one that covers the memory of the group is kept;
    if the elements of none are those of another, all are.

    Raises:
        RuntimeError: tensors of a group overlap, and none covers the memory of the group.
    """
    removed: dict[str, list[str]] = {}
    for group in _find_shared_tensors(state_dict):
        kept = _complete_name(group, state_dict) or _covering_name(group, state_dict)
        if kept is not None:
            if len(group) > 1:
                removed[kept] = sorted(group - {kept})
        elif _overlap({name: state_dict[name] for name in group}):
            raise RuntimeError(_none_is_complete(group))
    return removed


def names_not_needed(state_dict: dict[str, torch.Tensor], found: Collection[str]) -> list[str]:
    """Returns the names that `_remove_duplicate_names` removes if those that were found in a file
    are preferred.

    In a group of which no tensor covers the storage, these are the names that were not found and
    whose memory is filled through one that was.
    """
    preferred = set(found)
    names: list[str] = []
    for group in _find_shared_tensors(state_dict):
        kept = _complete_name(group, state_dict, preferred)
        if kept is not None:
            names += sorted(group - {kept})
            continue
        filled = [state_dict[name] for name in group & preferred]
        names += (
            name
            for name in sorted(group - preferred)
            if any(_lies_in(state_dict[name], tensor) for tensor in filled)
        )
    return names


def elements_of(tensor: object) -> tuple[object, ...] | None:
    """Returns a key that is equal for tensors with the same elements in memory; None if empty."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return None
    address = address_of(tensor)
    if address == 0 or tensor.numel() == 0:
        return None
    return tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()


def _complete_name(
    group: set[str],
    state_dict: dict[str, torch.Tensor],
    preferred: Collection[str] = (),
    discarded: Collection[str] = (),
) -> str | None:
    """Returns the name of a tensor that covers its whole storage, if one does."""
    complete = {name for name in group if _is_complete(state_dict[name])}
    return min(
        complete.intersection(preferred) or complete.difference(discarded) or complete, default=None
    )


def _none_is_complete(group: set[str]) -> str:
    return (
        "Error while trying to find names to remove to save state dict, but found no "
        f"suitable name to keep for saving amongst: {group}. None is covering the entire "
        "storage.Refusing to save/load the model since you could be storing much more "
        "memory than needed. Please refer to "
        "https://huggingface.co/docs/safetensors/torch_shared_tensors for more "
        "information. Or open an issue."
    )


def _covering_name(group: set[str], state_dict: dict[str, torch.Tensor]) -> str | None:
    """Returns the name of a tensor that covers the memory of all, if one does."""
    tensors = [state_dict[name] for name in group]
    area = min(each.data_ptr() for each in tensors), max(_end_ptr(each) for each in tensors)
    return min((name for name in group if _dense_area(state_dict[name]) == area), default=None)


def _dense_area(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns the addresses of a tensor's begin and end if all memory between is its own."""
    begin, end = tensor.data_ptr(), _end_ptr(tensor)
    is_dense = tensor.nelement() * _SIZE[tensor.dtype] == end - begin
    return (begin, end) if is_dense and not may_overlap_itself(tensor) else None


def _lies_in(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether all elements of a tensor are elements of the other one."""
    area = _dense_area(other)
    if area is not None and area[0] <= tensor.data_ptr() and _end_ptr(tensor) <= area[1]:
        return True
    elements = elements_of(tensor)
    return elements is not None and elements == elements_of(other)


def _overlap(tensors: dict[str, torch.Tensor]) -> bool:
    """Returns whether two elements of the tensors share memory."""
    return any(map(may_overlap_itself, tensors.values())) or find_overlap(tensors) is not None
