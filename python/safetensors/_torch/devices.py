"""Devices that tensors are loaded to."""

from __future__ import annotations

from typing import NamedTuple, Union

import torch

from .._core import SafetensorError

AnyDevice = Union[str, int, torch.device, None]
"""A device as callers name it. An int is the index of a CUDA device, or of torch's current
accelerator; None is the CPU."""

_WITHOUT_INDEX = ("cpu", "meta", "mps")


class Device(NamedTuple):
    """Where tensors go, by the name that both torch and this package take."""

    kind: str
    ordinal: int = 0

    @property
    def name(self) -> str:
        """As "cuda:1"."""
        return self.kind if self.kind in _WITHOUT_INDEX else f"{self.kind}:{self.ordinal}"


CPU = Device("cpu")


def device_of(device: object) -> Device:
    """A device from a str, an index or a torch.device; "cuda" is the first, None the CPU.

    Raises:
        SafetensorError: there is no such device in this torch.
    """
    if device is None:
        return CPU
    try:
        if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
            raise TypeError("expected a str, an int or a torch.device")
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SafetensorError(f"device {device} is invalid: {error}") from error
    if found.type in _WITHOUT_INDEX and found.index:
        raise SafetensorError(f"device {device} is invalid: there is one {found.type} only")
    return Device(found.type, found.index or 0)


def known_device(device: object) -> Device:
    """As `device_of`, but leaves it to torch whether there is such a device."""
    kind, _, index = str(torch.device(device) if isinstance(device, int) else device).partition(":")
    return Device(kind, int(index or 0))
