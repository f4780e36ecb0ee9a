"""Loads files into existing tensors: load_into."""

from __future__ import annotations

import functools
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch

from .. import _core
from .._core import SafetensorError
from .._rules import match
from .._shards import find_shards, open_tensors, with_hashes
from .._typing import Progress, Sources, Verify
from ..plan import SKIP, Part, Rule, apply
from .overlaps import find_overlap, may_overlap_itself
from .wanted import Reporter, Wanted, wanted_of

if TYPE_CHECKING:
    from .._core import safe_open
    from .._group.communicator import Communicator
    from .._group.opening import Model


def load_into(
    tensors: Union[torch.nn.Module, Mapping[str, torch.Tensor]],
    filenames: Sources,
    *,
    strict: bool = True,
    parts: Optional[Mapping[str, Rule]] = None,
    progress: Optional[Progress] = None,
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
    group: Optional[torch.distributed.ProcessGroup] = None,
    timeout: Optional[timedelta] = None,
) -> Tuple[List[str], List[str]]:
    """Loads files into existing tensors, on any devices, without allocating others.

    Everything is checked before the first byte is written. If reading fails after that, some
    tensors have new values and others their old ones. If a CUDA stream other than the current one
    still uses a tensor, the caller waits for it first.

    Args:
        tensors: a module, or a mapping of names to tensors, such as a `state_dict()`. The tensors
            have the dtypes and shapes of the files. They may be views of others, such as some
            columns of a matrix. Of tied weights, which share memory, the files hold one.
        filenames: as for `load_files`.
        strict: if true, missing or unexpected names raise RuntimeError.
        parts: the parts of the files' tensors that `tensors` take, as the `plan` of `load_files`.
            A tensor that nothing matches takes all of the file's.
        progress, storage_options, verify, expected_hashes: as for `load_files`. If a tensor is
            damaged, the values of all `tensors` are unspecified.
        group, timeout: as for `load_files`. `tensors`, `strict` and `parts` may differ between
            ranks.

    Returns:
        The missing names (in `tensors`, not in the files) and the unexpected names (in the files,
        not in `tensors`). A tied weight is not missing if the files hold the tensor that it is tied
        to.

    Raises:
        RuntimeError: names differ and `strict` is true.
        SafetensorError: a tensor cannot be written, or as `load_files`.
    """
    if timeout is not None and group is None:
        raise ValueError("timeout is for loads with a group")
    verify = with_hashes(verify, expected_hashes)
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    names = tensors.keys()
    with ExitStack() as stack:
        write = _write
        if group is not None and _is_shared(group):
            from .._group import files

            comm = stack.enter_context(files.communicator(group, timeout))
            model, handles, unexpected = files.open_named(
                comm, filenames, storage_options, verify, names, stack
            )
            write = functools.partial(_write_together, comm, model)
        else:
            shards = find_shards(filenames, storage_options, verify=verify)
            handles, unexpected = open_tensors(shards, names, "auto", stack)
        missing = _missing(tensors, handles)
        if strict and (missing or unexpected):
            heading = "Error(s) in loading tensors from files:"
            raise RuntimeError(mismatch(heading, missing, unexpected))
        wanted = wanted_of(handles, _parts_of(parts, handles, unexpected))
        targets = {item.name: _local(item, tensors[item.name]) for item in wanted}
        for item in wanted:
            _check_destination(item, targets[item.name])
        _check_overlaps(targets)
        write(wanted, targets, Reporter(wanted, progress))
    return missing, unexpected


def _is_shared(group: torch.distributed.ProcessGroup) -> bool:
    from .._group import files

    return files.checked(group).size() > 1


def _parts_of(
    rules: Optional[Mapping[str, Rule]], handles: Dict[str, safe_open], others: Sequence[str]
) -> Optional[Dict[str, Part]]:
    """Returns the parts of all tensors, None if all are whole. Takes SKIP out of `handles`.

    Args:
        rules: the caller's.
        handles: the file of each tensor.
        others: the names of the files' other tensors, which keys may fit as well.
    """
    if rules is None:
        return None
    found = match(rules, dict.fromkeys([*handles, *others]), SKIP)
    parts = apply({name: found.get(name) for name in handles}, handles)
    for name in [name for name, part in parts.items() if part is SKIP]:
        del handles[name], parts[name]
    return parts


def _local(item: Wanted, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a DTensor on this rank if the part is for one, else the tensor."""
    if item.finish is None or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    return local


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
        if may_overlap_itself(tensor):
            return f"elements of it may share memory (its strides are {list(tensor.stride())})"
        if _is_packed(item) and tensor.shape[-1] != 1 and tensor.stride(-1) != 1:
            return "the last axis of a tensor with two elements in a byte is contiguous"
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


def _is_packed(item: Wanted) -> bool:
    return item.handle.get_tensor_meta(item.name).dtype == "F4"


def _check_overlaps(tensors: Dict[str, torch.Tensor]) -> None:
    """Raises SafetensorError if two tensors overlap."""
    found = find_overlap(tensors)
    if found is not None:
        raise SafetensorError(
            f"Tensors {found[0]!r} and {found[1]!r} share memory: both cannot be loaded into it; "
            "pass a dict without one of them"
        )


def _write(
    wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], reporter: Reporter
) -> None:
    """Fills the tensors from the files, all devices in one load."""
    by_device: Dict[str, List[Wanted]] = {}
    for item in wanted:
        by_device.setdefault(_device(tensors[item.name]), []).append(item)
    groups = [
        (device, [item.request(tensors[item.name]) for item in items])
        for device, items in by_device.items()
    ]
    try:
        _core._load_groups(groups, reporter.while_loading())
    finally:
        _tell_autograd(wanted, tensors)
    reporter.finish()


def _write_together(
    comm: Communicator,
    model: Model,
    wanted: Sequence[Wanted],
    tensors: Mapping[str, torch.Tensor],
    reporter: Reporter,
) -> None:
    """Fills the tensors by all ranks of a group."""
    from .._group.files import load_together

    report, done = reporter.while_loading(), 0
    try:
        with closing(load_together(comm, model, wanted, tensors)) as items:
            for item in items:
                done += item.nbytes
                if report is not None:
                    report(done, 0)
    finally:
        _tell_autograd(wanted, tensors)
    reporter.finish()


def _tell_autograd(wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor]) -> None:
    """Says that the tensors were written to, which autograd has not seen."""
    for item in wanted:
        torch.autograd.graph.increment_version(tensors[item.name])
