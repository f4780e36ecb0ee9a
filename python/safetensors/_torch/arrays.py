"""The bytes of tensors in memory, and tensors of bytes."""

from __future__ import annotations

import sys
from typing import Any

from . import torch
from .dtypes import _SIZE, _TYPES


def _view2torch(safeview: list[tuple[str, dict[str, Any]]]) -> dict[str, torch.Tensor]:
    """Returns the tensors of `deserialize`'s result, as views of its memory."""
    result = {}
    for name, entry in safeview:
        dtype = _TYPES[entry["dtype"]]
        shape = list(entry["shape"])
        if entry["dtype"] == "F4":
            shape[-1] //= 2
        if len(entry["data"]) == 0:
            result[name] = torch.empty(shape, dtype=dtype, device="cpu")
            continue
        data = entry["data"]
        if sys.byteorder == "big":
            data = _swapped(data, _SIZE[dtype], dtype.is_complex)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        result[name] = flat.view(dtype).reshape(shape)
    return result


def _swapped(data: Any, itemsize: int, is_complex: bool) -> bytearray:
    """Reverses the bytes of each element; of a complex element, those of each half."""
    import numpy as np

    width = itemsize // 2 if is_complex else itemsize
    return bytearray(np.frombuffer(data, dtype=f"V{width}").view(f"u{width}").byteswap().tobytes())


def _to_ndarray(tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Returns the tensor's bytes, a NumPy array of uint8, and the CPU tensor that owns them."""
    dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    # Not reshape(): a tensor of one element may keep a stride that view(torch.uint8) refuses.
    flat = dense.as_strided((dense.nelement(),), (1,))
    array = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        import numpy as np

        swapped = _swapped(array, _SIZE[tensor.dtype], tensor.is_complex())
        array = np.frombuffer(swapped, dtype=np.uint8)
    return array, dense


def _tobytes(tensor: torch.Tensor, name: str = "") -> bytes:
    """Returns the tensor's bytes as the file stores them."""
    from .checks import _check_dense

    _check_dense(tensor, name)
    return bytes(_to_ndarray(tensor)[0].tobytes())
