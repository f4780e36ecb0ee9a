"""Loads files into existing tensors: load_into."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _core
from .._errors import failure
from .._load_arguments import LoadArguments
from .._model_folder import choice_of
from .._open_shards import open_tensors
from .._progress import Report, shows_progress
from .._rules import match
from .._shards import with_hashes
from .._typing import ProgressOption, Sources, Verify
from ..plan import SKIP, Part, Rule, apply
from . import torch
from .dtypes import form_in
from .module_state import ModuleState, is_dtensor, local_of
from .overlaps import find_overlap, may_overlap_itself
from .shared_memory import elements_of
from .wanted import Wanted, wanted_of
from .wrapper_names import BareNames, matched, mismatch
from .wrappers import address_of, wrapper_of

if TYPE_CHECKING:
    from .._core import safe_open
    from .._group.communicator import Communicator
    from .._group.opening import Model


@shows_progress("loading")
def load_into(
    tensors: torch.nn.Module | Mapping[str, torch.Tensor],
    filenames: Sources,
    *,
    strict: bool = True,
    parts: Mapping[str, Rule] | None = None,
    progress: ProgressOption = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: Verify = None,
    expected_hashes: Mapping[str, str] | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    strip_prefixes: bool = False,
    name: str | None = None,
    variant: str | None = None,
) -> tuple[list[str], list[str]]:
    """Loads files into existing tensors, on any devices, without allocating others.

    Everything is checked before the first byte is written. If reading fails after that, some
    tensors have new values and others their old ones. If a CUDA stream other than the current one
    still uses a tensor, the caller waits for it first.

    Args:
        tensors: a module, or a mapping of names to tensors. The tensors have the dtypes and shapes
            of the files. They may be views of others, such as some columns of a matrix. Of tied
            weights, which share memory, the files hold one. A DTensor gets this rank's part. Of a
            module, the parameters and buffers in its `state_dict()` are written to, and extra state
            is passed to `set_extra_state`; hooks that load_state_dict calls are not called.
        filenames: as for `load_files`.
        strict: if true, missing or unexpected names raise RuntimeError.
        parts: the parts of the files' tensors that `tensors` take, as the `plan` of `load_files`.
            A tensor that nothing matches takes all of the file's, a DTensor what its placements
            give it.
        progress, storage_options, verify, expected_hashes: as for `load_files`. If a tensor is
            damaged, the values of all `tensors` are unspecified.
        group, timeout: as for `load_files`. `tensors`, `strict`, `parts` and `strip_prefixes` may
            differ between ranks.
        strip_prefixes: if true, names that differ only in the prefixes that wrappers of modules add
            are the same: `_orig_mod.` of torch.compile, `_fsdp_wrapped_module.` and
            `_checkpoint_wrapped_module.` anywhere, `module.` of DistributedDataParallel at the
            beginning. Equal names take precedence.
        name, variant: which model of a directory, as for `load_files`.

    Returns:
        The missing names (in `tensors`, not in the files) and the unexpected names (in the files,
        not in `tensors`). A tied weight is not missing if the files hold the tensor that it is tied
        to.

    Raises:
        RuntimeError: names differ and `strict` is true.
        SafetensorError: a tensor cannot be written, the module's `state_dict()` has a copy of it
            instead of its memory, or as `load_files`.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    if timeout is not None and group is None:
        raise ValueError("timeout is for loads with a group")
    options = LoadArguments(
        filenames, storage_options, with_hashes(verify, expected_hashes), choice_of(name, variant)
    )
    module: ModuleState | None = None
    if isinstance(tensors, torch.nn.Module):
        module = ModuleState(tensors)
        tensors = module.tensors
    names: Collection[str] = BareNames(tensors) if strip_prefixes else tensors.keys()
    with ExitStack() as stack:
        write = _write
        if group is not None and _is_shared(group):
            from .._group import files

            comm = stack.enter_context(files.communicator(group, timeout))
            model, handles, unexpected = files.open_named(comm, options, names, stack)
            write = functools.partial(_write_together, comm, model)
        else:
            handles, unexpected = open_tensors(options.find(), names, "auto", stack)
        named = _by_file_name(tensors, handles, unexpected)
        missing = _missing(tensors, set(named.values()))
        if strict and (missing or unexpected):
            heading = "Error(s) in loading tensors from files:"
            raise RuntimeError(mismatch(heading, missing, unexpected))
        given = {name: tensors[own] for name, own in named.items()}
        wanted = wanted_of(handles, _parts_of(parts, handles, unexpected, given))
        targets: dict[str, torch.Tensor] = {}
        extra: dict[str, torch.nn.Module] = {}
        for item in wanted:
            owner = None if module is None else module.owner_of_extra_state(named[item.name])
            if owner is None:
                targets[item.name] = _local(item, given[item.name])
                _check_destination(item, targets[item.name], module)
            else:  # of any form: only the module knows where it goes
                dtype, shape = item.form()
                extra[item.name] = owner
                targets[item.name] = torch.empty(shape, dtype=dtype, device="cpu")
        _check_overlaps(targets)
        write(wanted, targets, Report(sum(item.nbytes for item in wanted), progress))
    for name, owner in extra.items():
        owner.set_extra_state(targets[name])
    return missing, unexpected


def _is_shared(group: torch.distributed.ProcessGroup) -> bool:
    from .._group import files

    return files.checked(group).size() > 1


def _by_file_name(
    tensors: Mapping[str, Any], handles: dict[str, safe_open], unexpected: list[str]
) -> dict[str, str]:
    """Returns the name in `tensors` of each tensor of the files.

    Moves those that have none from `handles` to `unexpected`: they differ in prefixes only from a
    tensor that the files have by its own name.
    """
    renamed: dict[str, str] = {}
    if any(name not in tensors for name in handles):
        renamed = matched(tensors, handles)
    named: dict[str, str] = {}
    for name in [*handles]:
        own = renamed.get(name, name)
        if own in tensors:
            named[name] = own
        else:
            del handles[name]
            unexpected.append(name)
    return named


def _parts_of(
    rules: Mapping[str, Rule] | None,
    handles: dict[str, safe_open],
    others: Sequence[str],
    tensors: Mapping[str, Any],
) -> dict[str, Part] | None:
    """Returns the parts of all tensors, None if all are whole. Takes SKIP out of `handles`.

    Args:
        rules: the caller's.
        handles: the file of each tensor.
        others: the names of the files' other tensors, which keys may fit as well.
        tensors: the tensors to fill, by the names in the files.
    """
    dtensors = [name for name in handles if is_dtensor(tensors[name])]
    if rules is None and not dtensors:
        return None
    found = match(rules or {}, dict.fromkeys([*handles, *others]), SKIP)
    parts = apply({name: found.get(name) for name in handles}, handles)
    for name in [name for name, part in parts.items() if part is SKIP]:
        del handles[name], parts[name]
    for name in dtensors:
        if name in parts:
            from .placements import part_of_dtensor

            shape = form_in(handles[name], name)[1]
            parts[name] = part_of_dtensor(name, tensors[name], parts[name], shape)
    return parts


def _local(item: Wanted, tensor: torch.Tensor) -> Any:
    """Returns the memory of a DTensor on this rank if the part is for one, else the tensor."""
    return tensor if item.finish is None else local_of(tensor)


def _missing(tensors: Mapping[str, torch.Tensor], found: Collection[str]) -> list[str]:
    """Returns the names that were not found and share memory with none that was."""
    # Addresses are needed only if a name is absent, which is rare.
    absent = [name for name in tensors if name not in found]
    filled = {elements_of(tensors[name]) for name in found} if absent else set()
    return [name for name in absent if (elements_of(tensors[name]) or name) not in filled]


def _check_destination(item: Wanted, tensor: torch.Tensor, module: ModuleState | None) -> None:
    """Raises SafetensorError if the file's bytes cannot be written to the tensor."""
    problem = _problem(item, tensor, module)
    if problem:
        refuse_destination(item.name, problem)


def refuse_destination(name: str, problem: str) -> NoReturn:
    """Raises the error for a tensor that values cannot be loaded to."""
    raise failure(
        "invalid_argument",
        f"Cannot load tensor {name!r} into the one given: {problem}",
        subject=name,
    )


def no_memory(tensor: torch.Tensor) -> str:
    """Returns why values cannot be loaded to a tensor without memory."""
    if tensor.device.type == "meta":
        advice = "; `to_empty()` of the module allocates it"
    else:  # such as quantized parameters, which hold several tensors
        advice = f"; load_state_dict may fill a {type(tensor).__name__}"
    return f"it has no memory that can be written (it is on {tensor.device}){advice}"


def _problem(item: Wanted, tensor: torch.Tensor, module: ModuleState | None = None) -> str:
    """Returns why the file's bytes cannot be written to the tensor; empty if they can."""
    if not isinstance(tensor, torch.Tensor):
        return f"it is not a torch.Tensor but {type(tensor)}"
    wrapper = wrapper_of(tensor)
    if wrapper is not None:
        return f"it is {wrapper.kind}; load_state_dict may fill a {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return "it is not dense"
    if item.nbytes != 0 and address_of(tensor) == 0:
        return no_memory(tensor)
    if module is not None and item.nbytes != 0 and not module.holds(tensor):
        return (
            "`state_dict()` of the module has a copy of it, not memory of a parameter, DTensor or "
            "buffer; use load_model, or load_files and load_state_dict, which hooks of the module "
            "take part in"
        )
    dtype, shape = item.form()
    if tensor.dtype != dtype:
        return f"it is of type {tensor.dtype}, the file's is {dtype}"
    if tuple(tensor.shape) != shape:
        return f"it is of shape {list(tensor.shape)}, the file's is {list(shape)}"
    if not tensor.is_contiguous():
        if may_overlap_itself(tensor):
            return f"elements of it may share memory (its strides are {list(tensor.stride())})"
        if _is_packed(item) and tensor.shape[-1] != 1 and tensor.stride(-1) != 1:
            return "the last axis of a tensor with two elements in a byte is contiguous"
    if tensor.is_conj() or tensor.is_neg():
        return "it is a lazily conjugated or negated view"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode, and can be written to only there"
    return ""


def _device(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def _is_packed(item: Wanted) -> bool:
    return item.handle.get_tensor_meta(item.name).dtype == "F4"


def _check_overlaps(tensors: dict[str, torch.Tensor]) -> None:
    """Raises SafetensorError if two tensors overlap."""
    found = find_overlap(tensors)
    if found is not None:
        raise failure(
            "invalid_argument",
            f"Tensors {found[0]!r} and {found[1]!r} share memory: both cannot be loaded into it; "
            "pass a dict without one of them",
            subject=found[0],
        )


def _write(wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], report: Report) -> None:
    """Fills the tensors from the files, all devices in one load."""
    by_device: dict[str, list[Wanted]] = {}
    for item in wanted:
        by_device.setdefault(_device(tensors[item.name]), []).append(item)
    groups = [
        (device, [item.request(tensors[item.name]) for item in items])
        for device, items in by_device.items()
    ]
    try:
        _core._load_groups(groups, report.counter())
    finally:
        _tell_autograd(wanted, tensors)
    report.finish()


def _write_together(
    comm: Communicator,
    model: Model,
    wanted: Sequence[Wanted],
    tensors: Mapping[str, torch.Tensor],
    report: Report,
) -> None:
    """Fills the tensors by all ranks of a group."""
    from .._group.files import load_together

    try:
        with closing(load_together(comm, model, wanted, tensors)) as batches:
            for items in batches:
                report.add(sum(item.nbytes for item in items))
    finally:
        _tell_autograd(wanted, tensors)
    report.finish()


def _tell_autograd(wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor]) -> None:
    """Says that the tensors were written to, which autograd has not seen."""
    for item in wanted:
        torch.autograd.graph.increment_version(tensors[item.name])
