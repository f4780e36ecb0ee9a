"""What an operation hands to the worker that times it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Work:
    """Something to time. Only `run` is timed; what it returned lives until the clock was read."""

    run: Callable[[], Any]
    calls: int = 1  # what one run does so many times
    before: Callable[[], Any] | None = None
    check: Callable[[Any], int] | None = None  # a number that must be the same for everyone
    nbytes_kept: Callable[[], float] | None = None  # reported instead of a time


class Unsupported(Exception):
    """Why an implementation cannot do this."""


def page_sum(tensors: dict[str, Any]) -> int:
    """Touch every page of torch tensors: the sum of one byte of each 4096."""
    import torch

    # By NumPy, as for everyone else.
    flat = (tensor.reshape(-1).view(torch.uint8).numpy() for tensor in tensors.values())
    return sum(int(array[::4096].sum(dtype="i8")) for array in flat)


def page_sum_of_arrays(arrays: dict[str, Any]) -> int:
    """The same for NumPy arrays."""
    flat = (array.reshape(-1).view("u1") for array in arrays.values())
    return sum(int(array[::4096].sum(dtype="i8")) for array in flat)


def fresh(path: Path) -> Callable[[], None]:
    """Makes sure, before each run, that there is no such file."""
    return lambda: path.unlink(missing_ok=True)
