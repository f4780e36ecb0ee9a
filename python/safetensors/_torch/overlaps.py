"""Finds elements of tensors that share memory."""

from __future__ import annotations

from collections.abc import Sequence

from . import torch

_Area = tuple[str, int, int, str]
"""A device, the addresses of the first byte and of the end, and a name."""


def may_overlap_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements of a tensor may be at one address.

    They are not if each axis, in the order of the strides, steps over all elements of those before:

        shape (3, 2), strides (4, 1)   | 00 01 .. .. | 10 11 .. .. | 20 21
        shape (3, 2), strides (1, 2)   | 00 10 20/01 11 21 |    elements 20 and 01 are the same
    """
    reach = 1  # elements from the first to behind the last of the axes so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:
            return tensor.numel() != 0
        reach += (size - 1) * stride
    return False


def find_overlap(tensors: dict[str, torch.Tensor]) -> tuple[str, str] | None:
    """Returns the names of two tensors that share memory, or None. No tensor overlaps itself."""
    areas: list[_Area] = []
    for name, tensor in tensors.items():
        if tensor.numel() != 0:
            begin = tensor.data_ptr()
            areas.append((str(tensor.device), begin, begin + _reach(tensor), name))
    areas.sort()
    # Tensors whose areas overlap, as those of two columns of a matrix do, are compared run by run.
    group: list[_Area] = []
    end = 0
    for area in areas:
        if group and (area[0] != group[0][0] or area[1] >= end):
            found = _overlap_in(group, tensors)
            if found is not None:
                return found
            group = []
        end = max(end, area[2]) if group else area[2]
        group.append(area)
    return _overlap_in(group, tensors)


def _reach(tensor: torch.Tensor) -> int:
    """Returns the bytes from the first element to the end of the last one."""
    if tensor.is_contiguous():
        return tensor.nbytes
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in axes)) * tensor.element_size()


def _overlap_in(group: list[_Area], tensors: dict[str, torch.Tensor]) -> tuple[str, str] | None:
    if len(group) < 2:
        return None
    names = [name for *_, name in group]
    runs = [_runs(tensors[name]) for name in names]
    begins = torch.cat([begins for begins, _ in runs])
    lengths = _numbers([nbytes for _, nbytes in runs])
    owners = torch.repeat_interleave(_numbers([len(begins) for begins, _ in runs]))
    begins, order = torch.sort(begins)
    owners = owners[order]
    # If any two runs overlap, two neighbours in this order do.
    shared = (begins + lengths[owners])[:-1] > begins[1:]
    if not bool(shared.any()):
        return None
    at = int(shared.nonzero()[0])
    return names[int(owners[at])], names[int(owners[at + 1])]


def _numbers(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")  # the caller may set others


def _runs(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns the addresses of a tensor's contiguous runs, and the bytes of each."""
    nbytes = tensor.element_size()
    begins = _numbers([tensor.data_ptr()])
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        step = stride * tensor.element_size()
        if size == 1:
            continue
        if step == nbytes and len(begins) == 1:
            nbytes *= size
        else:
            begins = (begins[:, None] + _numbers(range(size)) * step).view(-1)
    return begins, nbytes
