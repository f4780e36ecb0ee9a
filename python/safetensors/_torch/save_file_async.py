"""Saves tensors in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import TensorSpec
from .._saving.arguments import SaveArguments
from .._saving.save_async import Readers, SaveFuture, start_save
from .._typing import Path, SumsOption
from . import torch, transfer
from .arrays import _to_ndarray
from .checks import _check_dense, _evaluate_tensors_for_save
from .dtypes import tensor_spec

__all__ = ["save_file_async"]


def save_file_async(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    fsync: bool = False,
    budget_bytes: int | None = None,
    sums: SumsOption = None,
) -> SaveFuture:
    """Saves tensors to a file in the background.

        future = save_file_async(model.state_dict(), "model.safetensors")
        train()  # may change the tensors
        future.result()

    Returns when the tensors have been copied: from then on they may be changed or deleted. The file
    gets the values that they had during the call. Tensors on a device are copied after the work on
    its current stream: on CUDA devices through pinned memory, on others by torch.

    Args:
        tensors: as for `save`.
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
        SafetensorError, ValueError, RuntimeError, NotImplementedError: as `save`.
    """
    if isinstance(tensors, dict):
        tensors = dict(tensors)  # other threads may change the caller's
    _evaluate_tensors_for_save(tensors)
    specs: dict[str, TensorSpec] = {}
    readers: Readers = {}
    kept: list[Any] = []
    for name, tensor in tensors.items():
        _check_dense(tensor, name)
        if transfer.device_of(tensor).type == "cpu":
            array, dense = _to_ndarray(tensor)
            address, nbytes = array.ctypes.data, array.nbytes
            kept.append((array, dense))
        else:
            flat = _flat_bytes(tensor)
            address, nbytes = flat.data_ptr(), flat.nbytes
            kept.append(flat)
            readers[name] = _cuda_stream(tensor) or _reader_of(flat)
        specs[name] = tensor_spec(tensor, address, nbytes)
    options = SaveArguments(metadata, fsync, sums=sums, budget_bytes=budget_bytes)
    return start_save(specs, readers, filename, options)


def _cuda_stream(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns the device and its current stream; None for tensors that torch copies."""
    device = transfer.device_of(tensor)
    if device.type != "cuda" or not _core._has_cuda_driver():
        return None
    return device.index, transfer.raw_stream(device.index)


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().resolve_conj().resolve_neg()
    return dense.as_strided((dense.nelement(),), (1,)).view(torch.uint8)


def _reader_of(flat: torch.Tensor) -> Callable[[int, memoryview], object]:
    """Returns a function that copies bytes of a tensor to memory."""

    def read(begin: int, to: memoryview) -> None:
        memory = torch.frombuffer(to, dtype=torch.uint8)
        memory.copy_(flat[begin : begin + len(to)])

    return read
