"""What save_model writes of a module, and load_model loads into it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from .._errors import failure, not_a_tensor
from . import torch
from .checks import refuse_wrapper
from .load_into import no_memory, refuse_destination
from .module_state import is_dtensor
from .shared_memory import names_not_needed, names_not_saved
from .wrapper_names import matched, mismatch


def state_to_save(
    model: torch.nn.Module, metadata: dict[str, str] | None, force_contiguous: bool
) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """Returns the tensors and the metadata of the file that save_model writes. See there."""
    state_dict: dict[str, torch.Tensor] = model.state_dict()
    for name, tensor in state_dict.items():
        if not isinstance(tensor, torch.Tensor):  # the extra state of a module may be anything
            raise not_a_tensor(name, tensor, "torch.Tensor")
        refuse_wrapper(tensor, name)  # such tensors have no contiguous() or addresses of their own
    notes = dict(metadata) if metadata is not None else {}
    for kept, removed in names_not_saved(state_dict).items():
        for name in removed:
            notes.setdefault(name, kept)
            del state_dict[name]
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    return state_dict, notes if notes else metadata


def load_state(
    model: torch.nn.Module, loaded: Mapping[str, torch.Tensor], strict: bool, strip_prefixes: bool
) -> tuple[set[str], list[str]]:
    """Loads the tensors of a file into a module. See load_model."""
    own = _tensors_of(model.state_dict())
    renamed = matched(own, loaded) if strip_prefixes else {}
    state_dict = {renamed.get(name, name): tensor for name, tensor in loaded.items()}
    _refuse_dtensors(own, state_dict)
    # Which tensors of a group were saved is unknown: names in the file take precedence.
    not_needed = names_not_needed(own, state_dict)
    incompatible = model.load_state_dict(state_dict, strict=False)
    missing, unexpected = set(incompatible.missing_keys), list(incompatible.unexpected_keys)
    for name in not_needed:
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        heading = f"Error(s) in loading state_dict for {type(model).__name__}:"
        raise RuntimeError(mismatch(heading, missing, unexpected))
    _refuse_meta(model, state_dict)
    return missing, unexpected


def _tensors_of(state_dict: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns a module's state without extra state that is not a tensor."""
    return {name: each for name, each in state_dict.items() if isinstance(each, torch.Tensor)}


def _refuse_dtensors(own: Mapping[str, torch.Tensor], loaded: Mapping[str, torch.Tensor]) -> None:
    for name in loaded:
        if is_dtensor(own.get(name)):
            raise failure(
                "invalid_argument",
                f"Cannot load tensor {name!r} into the module: it is a DTensor, of which this rank "
                "holds a part; load_into(module, filename) loads the part",
                subject=name,
            )


def _refuse_meta(model: torch.nn.Module, loaded: Mapping[str, torch.Tensor]) -> None:
    """Raises if a tensor was loaded to nowhere: torch only warns of it.

    After the load, because a module's own `_load_from_state_dict` may have allocated it.
    """
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta and name in loaded and not loaded[name].is_meta and tensor.numel():
            refuse_destination(name, no_memory(tensor))
