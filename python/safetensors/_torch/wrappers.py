"""Recognises tensors whose own memory does not hold their elements."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from . import torch


class Wrapper(NamedTuple):
    """What such a tensor is, and how to save it."""

    kind: str
    """Completes `tensor x is ...`."""
    advice: str
    error: type[Exception] = RuntimeError
    """What upstream raises for it."""


# By the beginning of the name of the class, with its module.
_KNOWN = {
    "torch._subclasses.fake_tensor.": Wrapper(
        "a FakeTensor, which has a shape but no values",
        "Save the tensors that the model has outside of FakeTensorMode.",
    ),
    "torch.masked.": Wrapper(
        "a MaskedTensor",
        "Save its `.get_data()` and `.get_mask()`, or the dense tensor of `.to_tensor(value)`.",
    ),
    "torchao.": Wrapper(
        "quantized by torchao",
        "Save what `torchao.prototype.safetensors.safetensors_support` flattens it to "
        "(`flatten_tensor_state_dict`), or its `.dequantize()`.",
    ),
}
_DTENSOR = Wrapper(
    "a DTensor, of which this process holds a part",
    "Save its `.full_tensor()`, or save the parts with `torch.distributed.checkpoint`.",
)
_NESTED = Wrapper(
    "a nested tensor", "Save the tensors of `.unbind()`, or `.to_padded_tensor(value)`."
)
_JAGGED = Wrapper(
    "a nested tensor",
    "Save its `.values()` and `.offsets()`, or `.to_padded_tensor(value)`.",
    ValueError,
)
_TRANSFORMED = Wrapper(
    "inside a transform of torch.func, such as vmap or grad, or a trace of it",
    "Return it from the transform, and save it there.",
)
_LAZY = Wrapper(
    "a parameter of a lazy module, without a shape yet",
    "Run the module once before saving.",
    ValueError,
)
_EMPTIED = Wrapper(
    "without memory, because its storage was emptied or never allocated",
    "Bring back its values before saving (FSDP: `summon_full_params`), or leave it out.",
)


def has_own_operators(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor's class decides what its elements are."""
    kind: Any = type(tensor)
    plain: Any = torch.Tensor
    return bool(kind.__torch_dispatch__ is not plain.__torch_dispatch__)


def address_of(tensor: torch.Tensor) -> int:
    """Returns the address of the first element; 0 if the tensor has none."""
    if tensor.device.type == "meta":
        return 0
    try:
        return tensor.data_ptr()
    # Subclasses that wrap other tensors, and parameters of lazy modules.
    except (RuntimeError, ValueError):
        return 0


def wrapper_of(tensor: torch.Tensor) -> Wrapper | None:
    """Returns what a tensor is if its own memory does not hold its elements; None for others.

    Subclasses that only change functions (`__torch_function__`), such as parameters and images, are
    not wrappers. Those that change operators (`__torch_dispatch__`) say what their elements are,
    and torch refuses to read their memory, too.
    """
    if has_own_operators(tensor):
        return _of_class(tensor, type(tensor))
    if torch.nn.parameter.is_lazy(tensor):
        return _LAZY
    if tensor.is_nested:
        return _NESTED
    if _is_transformed(tensor):
        return _TRANSFORMED
    if tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda"):
        # Other devices may have no addresses.
        return None if tensor.numel() == 0 or address_of(tensor) != 0 else _EMPTIED
    return None


def _of_class(tensor: torch.Tensor, kind: type) -> Wrapper:
    if hasattr(tensor, "full_tensor"):  # without importing torch.distributed
        return _DTENSOR
    if tensor.layout == torch.jagged:
        return _JAGGED
    name = f"{kind.__module__}.{kind.__qualname__}"
    for beginning, known in _KNOWN.items():
        if name.startswith(beginning):
            return known
    flatten = getattr(tensor, "__tensor_flatten__", None)
    parts = ", ".join(f"`.{part}`" for part in flatten()[0]) if flatten is not None else ""
    advice = f"Save the tensors that it is made of ({parts})" if parts else "Save plain tensors"
    return Wrapper(f"a {name}, which has operators of its own", f"{advice} instead.")


def _is_transformed(tensor: torch.Tensor) -> bool:
    functorch: Any = sys.modules.get("torch._C._functorch")
    private: Any = torch
    is_wrapped = functorch is not None and functorch.is_functorch_wrapped_tensor(tensor)
    return bool(is_wrapped or private._is_functional_tensor(tensor))
