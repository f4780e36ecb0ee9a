"""Devices as callers name them, and parsed."""

from __future__ import annotations

from typing import NamedTuple

from .._errors import failure
from . import torch

_WITHOUT_INDEX = ("cpu", "meta", "mps")


class Device(NamedTuple):
    """A parsed device: its kind and its index among devices of that kind."""

    kind: str
    ordinal: int = 0

    @property
    def name(self) -> str:
        """The name that torch and this package accept, such as "cuda:1" or "cpu"."""
        return self.kind if self.kind in _WITHOUT_INDEX else f"{self.kind}:{self.ordinal}"


CPU = Device("cpu")


def device_of(device: object) -> Device:
    """Parses a str, an index or a torch.device. "cuda" is "cuda:0"; None is the CPU.

    Raises:
        SafetensorError: this torch has no such device.
    """
    if device is None:
        return CPU
    try:
        if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
            raise TypeError("expected a str, an int or a torch.device")
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise failure("invalid_argument", f"device {device} is invalid: {error}") from error
    if found.type in _WITHOUT_INDEX and found.index:
        raise failure("device", f"device {device} is invalid: there is one {found.type} only")
    return Device(found.type, found.index or 0)
