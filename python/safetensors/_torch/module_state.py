"""What `load_into` fills of a module: the memory of its parameters and buffers, and extra state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch.nn import Module

from . import torch

_EXTRA_STATE = "_extra_state"  # the last word of the names that torch gives to extra state

_Storage = tuple[torch.device, int]
"""A device, and the address of a storage on it."""


class ModuleState:
    """The tensors of a module's `state_dict()`, and which of them are the module's own memory.

    A hook, or a `state_dict()` or `_save_to_state_dict()` of the module's own, may put copies into
    the dict: values written to these would never reach the module.
    """

    def __init__(self, module: Module) -> None:
        self.tensors: Mapping[str, Any] = module.state_dict()
        # After that: FSDP exchanges the parameters while it makes the dict.
        held = itertools.chain(module.parameters(), module.buffers())
        self._storages: set[_Storage] = {key for key in map(_storage_of, held) if key is not None}
        self._extra = dict(_extra_states(module))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor with memory lies in that of a parameter or buffer."""
        return _storage_of(tensor) in self._storages

    def owner_of_extra_state(self, name: str) -> Module | None:
        """Returns the module whose `set_extra_state` takes the tensor of this name, if any."""
        return self._extra.get(name)


def local_of(tensor: Any) -> Any:
    """Returns the memory of a DTensor on this rank, and any other object as it is."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def is_dtensor(tensor: object) -> bool:
    """Returns whether it is a DTensor of torch.distributed."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "to_local")


def _storage_of(tensor: torch.Tensor) -> _Storage | None:
    """Returns the storage of a tensor on this rank; None if it has none."""
    try:
        local = local_of(tensor)
        return local.device, local.untyped_storage().data_ptr()
    # NotImplementedError is one: subclasses that wrap other tensors, sparse tensors.
    except (RuntimeError, ValueError):  # ValueError: parameters of lazy modules
        return None


def _extra_states(module: Module) -> Iterator[tuple[str, Module]]:
    for path, each in module.named_modules(remove_duplicate=False):
        if type(each).set_extra_state is not Module.set_extra_state:
            yield f"{path}.{_EXTRA_STATE}" if path else _EXTRA_STATE, each
