"""Loading files into tensors that are there already."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .. import _core
from .._core import SafetensorError
from .._shards import find_shards, open_tensors
from .._typing import Paths, Progress
from .load_files import Count, Wanted, wanted_of


def load_into(
    tensors: Union[torch.nn.Module, Mapping[str, torch.Tensor]],
    filenames: Paths,
    *,
    strict: bool = True,
    progress: Optional[Progress] = None,
) -> Tuple[List[str], List[str]]:
    """Loads files into tensors that are there already, on any devices, without making others.

    All is checked before anything is written. When reading fails on the way, some tensors have new
    values and others old ones. Work of CUDA streams other than the current one that still uses a
    tensor is for the caller to wait for.

    Args:
        tensors: a module, or tensors by name as a `state_dict()` has them: contiguous, of the type
            and shape that the files have. Of tied weights, which share their memory, the files may
            have one.
        filenames: as `load_files` has it.
        strict: whether names that are missing or unexpected raise RuntimeError.
        progress: as `load_files` has it.

    Returns:
        The names that the files lack, and those that `tensors` lacks. A tied weight is not missing
        if the files have the one that it is tied to.

    Raises:
        RuntimeError: names are missing or unexpected.
        SafetensorError: a tensor that cannot be written, and what `load_files` raises.
    """
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    with ExitStack() as stack:
        handles, unexpected = open_tensors(find_shards(filenames), tensors.keys(), "auto", stack)
        missing = _missing(tensors, handles)
        if strict and (missing or unexpected):
            heading = "Error(s) in loading tensors from files:"
            raise RuntimeError(mismatch(heading, missing, unexpected))
        wanted = wanted_of(handles, None)
        for item in wanted:
            _check_destination(item, tensors[item.name])
        _check_overlaps({item.name: tensors[item.name] for item in wanted})
        _write(wanted, tensors, Count(wanted, progress))
    return missing, unexpected


def _missing(tensors: Mapping[str, torch.Tensor], found: Collection[str]) -> List[str]:
    """The names that were not found and are not tied to one that was."""
    absent = [name for name in tensors if name not in found]
    filled = {_memory(tensors[name]) for name in found} if absent else set()
    return [name for name in absent if (_memory(tensors[name]) or name) not in filled]


def _memory(tensor: object) -> Optional[Tuple[object, ...]]:
    """Equal for tensors that have all their elements in common; None if it has no elements."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return None
    address = _address(tensor)
    if address == 0 or tensor.numel() == 0:
        return None
    return tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()


def mismatch(heading: str, missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """The text of an error, as torch's load_state_dict words it."""
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        quoted = ", ".join(f'"{name}"' for name in sorted(names))
        if quoted:
            heading += f"\n    {what} key(s) in state_dict: {quoted}"
    return heading


def _check_destination(item: Wanted, tensor: torch.Tensor) -> None:
    """Raises SafetensorError when the file's bytes cannot become the tensor's."""
    problem = _problem(item, tensor)
    if problem:
        raise SafetensorError(f"Cannot load tensor {item.name!r} into the one given: {problem}")


def _problem(item: Wanted, tensor: torch.Tensor) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"it is no torch.Tensor but {type(tensor)}"
    dtype, shape = item.form()
    if tensor.dtype != dtype:
        return f"it is of type {tensor.dtype}, the file's is {dtype}"
    if tuple(tensor.shape) != shape:
        return f"it is of shape {list(tensor.shape)}, the file's is {list(shape)}"
    if tensor.layout != torch.strided:
        return "it is not dense"
    if not tensor.is_contiguous():
        return "it is not contiguous"
    if tensor.is_conj() or tensor.is_neg():
        return "it is a lazily conjugated or negated view"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode, and can be written to only there"
    if item.nbytes != 0 and _address(tensor) == 0:
        advice = "; `to_empty()` of the module makes it" if tensor.device.type == "meta" else ""
        return f"it has no memory of its own (it is on {tensor.device}){advice}"
    return ""


def _address(tensor: torch.Tensor) -> int:
    """Where the tensor's elements are; 0 when it does not tell."""
    if tensor.device.type == "meta":
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # tensors that stand for others
        return 0


def _device(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def _check_overlaps(tensors: Dict[str, torch.Tensor]) -> None:
    areas = sorted(
        (_device(tensor), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
        for name, tensor in tensors.items()
        if tensor.nbytes != 0
    )
    for (device, _, end, name), (other_device, begin, _, other) in itertools.pairwise(areas):
        if device == other_device and begin < end:
            raise SafetensorError(
                f"Tensors {name!r} and {other!r} share memory: both cannot be loaded into it; pass "
                "a dict without one of them"
            )


def _write(wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], count: Count) -> None:
    by_device: Dict[str, List[Wanted]] = {}
    for item in wanted:
        by_device.setdefault(_device(tensors[item.name]), []).append(item)
    groups = [
        (device, [(item.handle, item.name, None, tensors[item.name]) for item in items])
        for device, items in by_device.items()
    ]
    try:
        _core._load_groups(groups, count.while_loading())
    finally:  # autograd does not see what is written
        for item in wanted:
            torch.autograd.graph.increment_version(tensors[item.name])
    count.finish()
