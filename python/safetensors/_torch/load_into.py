"""Loads files into existing tensors: load_into."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .. import _core
from .._core import SafetensorError
from .._shards import find_shards, open_tensors
from .._typing import Progress, Sources
from .load_files import Reporter, Wanted, wanted_of


def load_into(
    tensors: Union[torch.nn.Module, Mapping[str, torch.Tensor]],
    filenames: Sources,
    *,
    strict: bool = True,
    progress: Optional[Progress] = None,
    storage_options: Optional[Mapping[str, Any]] = None,
) -> Tuple[List[str], List[str]]:
    """Loads files into existing tensors, on any devices, without allocating others.

    Everything is checked before the first byte is written. If reading fails after that, some
    tensors have new values and others their old ones. If a CUDA stream other than the current one
    still uses a tensor, the caller waits for it first.

    Args:
        tensors: a module, or a mapping of names to tensors, such as a `state_dict()`. The tensors
            are contiguous and have the dtypes and shapes of the files. Of tied weights, which share
            memory, the files hold one.
        filenames: as for `load_files`.
        strict: if true, missing or unexpected names raise RuntimeError.
        progress, storage_options: as for `load_files`.

    Returns:
        The missing names (in `tensors`, not in the files) and the unexpected names (in the files,
        not in `tensors`). A tied weight is not missing if the files hold the tensor that it is tied
        to.

    Raises:
        RuntimeError: names differ and `strict` is true.
        SafetensorError: a tensor cannot be written, or as `load_files`.
    """
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    with ExitStack() as stack:
        handles, unexpected = open_tensors(
            find_shards(filenames, storage_options), tensors.keys(), "auto", stack
        )
        missing = _missing(tensors, handles)
        if strict and (missing or unexpected):
            heading = "Error(s) in loading tensors from files:"
            raise RuntimeError(mismatch(heading, missing, unexpected))
        wanted = wanted_of(handles, None)
        for item in wanted:
            _check_destination(item, tensors[item.name])
        _check_overlaps({item.name: tensors[item.name] for item in wanted})
        _write(wanted, tensors, Reporter(wanted, progress))
    return missing, unexpected


def _missing(tensors: Mapping[str, torch.Tensor], found: Collection[str]) -> List[str]:
    """Returns the names that were not found and share memory with none that was."""
    # Addresses are needed only if a name is absent, which is rare.
    absent = [name for name in tensors if name not in found]
    filled = {_memory(tensors[name]) for name in found} if absent else set()
    return [name for name in absent if (_memory(tensors[name]) or name) not in filled]


def _memory(tensor: object) -> Optional[Tuple[object, ...]]:
    """Returns a key that is equal for tensors with the same elements in memory; None if empty."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return None
    address = _address(tensor)
    if address == 0 or tensor.numel() == 0:
        return None
    return tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()


def mismatch(heading: str, missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """Returns the text of an error in the words of torch's load_state_dict."""
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        quoted = ", ".join(f'"{name}"' for name in sorted(names))
        if quoted:
            heading += f"\n    {what} key(s) in state_dict: {quoted}"
    return heading


def _check_destination(item: Wanted, tensor: torch.Tensor) -> None:
    """Raises SafetensorError if the file's bytes cannot be written to the tensor."""
    problem = _problem(item, tensor)
    if problem:
        raise SafetensorError(f"Cannot load tensor {item.name!r} into the one given: {problem}")


def _problem(item: Wanted, tensor: torch.Tensor) -> str:
    """Returns why the file's bytes cannot be written to the tensor; empty if they can."""
    if not isinstance(tensor, torch.Tensor):
        return f"it is not a torch.Tensor but {type(tensor)}"
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
        advice = "; `to_empty()` of the module allocates it" if tensor.device.type == "meta" else ""
        return f"it has no memory that can be written (it is on {tensor.device}){advice}"
    return ""


def _address(tensor: torch.Tensor) -> int:
    """Returns the address of the first element; 0 if the tensor has none."""
    if tensor.device.type == "meta":
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # subclasses that wrap other tensors
        return 0


def _device(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def _check_overlaps(tensors: Dict[str, torch.Tensor]) -> None:
    """Raises SafetensorError if two tensors overlap: sorted by begin, these are neighbours."""
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


def _write(
    wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], reporter: Reporter
) -> None:
    """Fills the tensors from the files, all devices in one load."""
    by_device: Dict[str, List[Wanted]] = {}
    for item in wanted:
        by_device.setdefault(_device(tensors[item.name]), []).append(item)
    groups = [
        (device, [(item.handle, item.name, None, tensors[item.name]) for item in items])
        for device, items in by_device.items()
    ]
    try:
        _core._load_groups(groups, reporter.while_loading())
    finally:  # autograd does not see these writes
        for item in wanted:
            torch.autograd.graph.increment_version(tensors[item.name])
    reporter.finish()
