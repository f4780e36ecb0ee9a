"""Refuses tensors that files cannot hold."""

from __future__ import annotations

from .._errors import failure
from . import torch
from .dtypes import _SIZE
from .wrappers import wrapper_of


def _check_dense(tensor: torch.Tensor, name: str) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(
            f"You are trying to save a sparse tensor: `{name}` which this library does not support."
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It "
            "either means you are trying to save tensors which are reference of each other in "
            "which case it's recommended to save only the full tensors, and reslice at load time, "
            "or simply call `.contiguous()` on your tensor to pack it before saving."
        )


def refuse_wrapper(tensor: torch.Tensor, name: str) -> None:
    """Raises if the tensor's own memory does not hold its elements."""
    wrapper = wrapper_of(tensor)
    if wrapper is None:
        return
    text = f"Tensor `{name}` is {wrapper.kind}. {wrapper.advice}"
    if wrapper.error is RuntimeError:
        text = f"Attempted to access the data pointer on an invalid python storage. {text}"
    raise failure("invalid_argument", text, subject=name, also=wrapper.error)


def refuse_shapeless(tensor: torch.Tensor, name: str) -> None:
    """Raises if the tensor has no shape that a file can hold."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_nested:
        refuse_wrapper(tensor, name)


def _check_data(tensor: torch.Tensor, name: str) -> None:
    """Raises if a file cannot hold the tensor.

    The messages begin as those that torch raises when the tensor's memory is read.
    """
    refuse_wrapper(tensor, name)
    if tensor.device.type == "meta":
        raise NotImplementedError(
            f"Cannot copy out of meta tensor; no data! Tensor `{name}` is on the meta device. Load "
            "its values before saving, or leave it out."
        )
    if tensor.dtype not in _SIZE:
        advice = "`.dequantize()` or `.int_repr()`" if tensor.is_quantized else "`.to(...)`"
        raise failure(
            "unsupported_dtype",
            f"{tensor.dtype}: tensor `{name}` is of this type, which the file format does not "
            f"have. Convert it with {advice}.",
            subject=name,
            also=KeyError,
        )


def _evaluate_tensors_for_save(tensors: dict[str, torch.Tensor]) -> None:
    """Raises if the tensors cannot be saved in one file."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    sparse = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}"
            )
        if tensor.layout != torch.strided:
            refuse_wrapper(tensor, name)  # nested tensors have a layout of their own
            sparse.append(name)
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not "
            "support. You can make it a dense tensor before saving with `.to_dense()` but be aware "
            "this might make a much larger file than needed."
        )
    for name, tensor in tensors.items():
        _check_data(tensor, name)
    _refuse_shared_tensors(tensors)


def _refuse_shared_tensors(tensors: dict[str, torch.Tensor]) -> None:
    """Raises RuntimeError if tensors share memory."""
    from .shared_memory import _find_shared_tensors

    failing = [group for group in _find_shared_tensors(tensors) if len(group) > 1]
    if failing:
        # Programs compare this text, spaces included.
        indent = "\n            "
        raise RuntimeError(
            f"{indent}Some tensors share memory, this will lead to duplicate memory on disk and "
            f"potential differences when loading them again: {failing}."
            f"{indent}A potential way to correctly save your model is to use `save_model`."
            f"{indent}More information at "
            f"https://huggingface.co/docs/safetensors/torch_shared_tensors{indent}"
        )
