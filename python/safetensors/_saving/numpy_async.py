"""Saves NumPy arrays in the background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._numpy_arrays import _flatten
from .._typing import Path, SumsOption
from .arguments import SaveArguments
from .save_async import SaveFuture, start_save


def save_file_async(
    tensor_dict: Mapping[str, np.ndarray | np.generic],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    fsync: bool = False,
    budget_bytes: int | None = None,
    sums: SumsOption = None,
) -> SaveFuture:
    """Saves arrays to a file in the background.

    Returns when the arrays have been copied: from then on they may be changed or deleted. The file
    gets the values that they had during the call.

    Args:
        tensor_dict: as for `save`.
        filename, metadata, fsync, sums: as for `save_file`.
        budget_bytes: the limit of the memory that all saves in the background use for copies, at
            least 16 MiB. A call that needs more waits until enough has been written. By default, a
            quarter of the available memory. The memory is kept for the next save;
            `safetensors.release_staging` frees it.

    Returns:
        A `concurrent.futures.Future` without a result. It raises errors of the operating system;
        one that nobody asks for is passed to `sys.unraisablehook`. Its attribute `nbytes_done` is
        the number of bytes that are written. `cancel` succeeds while the save waits for others.

    Raises:
        SafetensorError: as `save`.
    """
    kept: list[Any] = []
    specs = _flatten(tensor_dict, kept)
    options = SaveArguments(metadata, fsync, sums=sums, budget_bytes=budget_bytes)
    return start_save(specs, {}, filename, options)
