"""Loads and saves Paddle tensors."""

from __future__ import annotations  # evaluating them would dominate the import time

import ctypes
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import paddle
from paddle.utils.dlpack import from_dlpack

from safetensors import TensorSpec, deserialize, numpy, safe_open, serialize, serialize_file

from . import _core
from ._core import _dtypes
from ._errors import failure
from ._frameworks import code_of, refuse
from ._numpy_arrays import _TYPES as _NUMPY_TYPES
from ._typing import Buffer, Path, ProgressOption, Source, SumsOption, Verify

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "numpy",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]

# NumPy dtypes that carry the bits of dtypes that NumPy does not have.
_CARRIERS = {"BF16": np.int16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}

# Paddle uses torch's names. Older versions do not have all of these dtypes, and Paddle's uint16 is
# bfloat16.
_KNOWN = [
    (code, getattr(paddle, row["torch"]), row)
    for code, row in _dtypes().items()
    if (row["numpy"] or code in _CARRIERS) and code != "U16" and hasattr(paddle, row["torch"])
]

_SIZE: Dict[paddle.dtype, int] = {dtype: row["bits"] // 8 for _, dtype, row in _KNOWN}
"""Bytes of one element of each dtype in memory."""

_TYPES: Dict[str, paddle.dtype] = {code: dtype for code, dtype, _ in _KNOWN}
"""Maps the format's dtype names to Paddle's dtypes."""

NPDTYPES: Dict[paddle.dtype, Any] = {
    # NumPy has no bfloat16; upstream's table gives float16 for it.
    dtype: np.float16 if code == "BF16" else _NUMPY_TYPES.get(code, np.uint8)
    for code, dtype, _ in _KNOWN
}
"""Maps Paddle's dtypes to NumPy dtypes of the same size, and of the same values where NumPy can."""


def save(tensors: Dict[str, paddle.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Returns a file with the tensors, as bytes.

    Args:
        tensors: dense, contiguous tensors by name, on any devices.
        metadata: strings to store in the file's header.

    Raises:
        ValueError: a value is not a tensor, or a tensor is sparse or not contiguous.
        KeyError: the format has no such dtype.
        SafetensorError: a name cannot be written.
    """
    keep_alive: List[Any] = []
    return serialize(_flatten(tensors, keep_alive), metadata=metadata)


def save_file(
    tensors: Dict[str, paddle.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> None:
    """Saves tensors to a file, atomically: if it fails, an existing file is unchanged.

    `tensors` are as for `save`. `safetensors.numpy.save_file` describes the other arguments and the
    errors.
    """
    from ._progress import reported
    from ._saving.arguments import SaveArguments

    keep_alive: List[Any] = []
    with reported(progress, "saving") as report:
        how = SaveArguments(metadata, fsync, report, sums).of_file(filename)
        _core._save_specs_file(_flatten(tensors, keep_alive), filename, how)


def load(data: Buffer, device: str = "cpu") -> Dict[str, paddle.Tensor]:
    """Returns the tensors of a file that is in memory, copied.

    Args:
        data: the file's bytes: any object with a contiguous buffer.
        device: the device of the tensors, by Paddle's name: "cpu" or "gpu:0". "cuda:0" is accepted
            too.

    Raises:
        SafetensorError: the file is damaged, or Paddle has no such dtype.
    """
    return _view2paddle(deserialize(data), device)


def load_file(
    filename: Source,
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
    storage_options: Optional[Mapping[str, Any]] = None,
    verify: Verify = None,
    expected_hashes: Optional[Mapping[str, str]] = None,
) -> Dict[str, paddle.Tensor]:
    """Returns all tensors of a file.

    Args:
        filename: the file to read: a path, a URL, or a `RangeReader`.
        device: as for `load`; an int is the index of a GPU.
        backend: see `safe_open`. The tensors are copies with every backend.
        storage_options: settings for a URL.
        verify, expected_hashes: see `safetensors.numpy.load_file`.

    Raises:
        SafetensorError: as `load`.
        IntegrityError: a digest differs; `.damaged` has the tensors and ranges.
        OSError: the file cannot be read.
    """
    with safe_open(
        filename,
        framework="paddle",
        backend=backend,
        storage_options=storage_options,
        verify=verify,
        expected_hashes=expected_hashes,
    ) as f:
        if device == "cpu":
            return f.get_tensors()
        # One at a time, so that the CPU holds the copy of one tensor only.
        return {name: _to_device(f.get_tensor(name), device) for name in f.offset_keys()}


def _np2paddle(numpy_dict: Dict[str, np.ndarray], device: str = "cpu") -> Dict[str, paddle.Tensor]:
    """Copies arrays to tensors. As in Paddle, uint16 means bfloat16."""
    result = {}
    for name, array in numpy_dict.items():
        code = "BF16" if array.dtype == np.uint16 else code_of(array)
        result[name] = _to_device(_copy(array, code, name), device)
    return result


def _paddle2np(paddle_dict: Dict[str, paddle.Tensor]) -> Dict[str, np.ndarray]:
    """Converts as Paddle does: bfloat16 becomes uint16, 8-bit floats become int8."""
    return {name: tensor.numpy() for name, tensor in paddle_dict.items()}


def _getdtype(dtype_str: str) -> paddle.dtype:
    return _TYPES[dtype_str]


def _view2paddle(
    safeview: Sequence[Tuple[str, Mapping[str, Any]]], device: str
) -> Dict[str, paddle.Tensor]:
    """Returns copies of the tensors of `deserialize`'s result."""
    result = {}
    for name, entry in safeview:
        code = entry["dtype"]
        if code not in _TYPES:
            refuse(code, "Paddle", name, None)
        carrier = _CARRIERS.get(code) or NPDTYPES[_TYPES[code]]
        array = np.frombuffer(entry["data"], dtype=carrier).reshape(entry["shape"])
        result[name] = _to_device(_copy(array, code, name), device)
    return result


def _from_file(array: np.ndarray, code: str, name: str, path: str) -> paddle.Tensor:
    return _copy(array, code, name, path)


def _copy(array: np.ndarray, code: str, name: str, path: Optional[str] = None) -> paddle.Tensor:
    """Copies an array to a tensor; for a dtype that NumPy lacks, `array` holds the bits."""
    if code not in _TYPES:
        refuse(code, "Paddle", name, path)
    if code in _CARRIERS:
        return paddle.to_tensor(array.view(_CARRIERS[code])).view(_TYPES[code])
    if code in ("U32", "U64"):
        # From a copy: Paddle 3.3 confuses the owners of two DLPack tensors at one address.
        return from_dlpack(array.copy().__dlpack__())
    return paddle.to_tensor(array)


def _to_device(tensor: paddle.Tensor, device: Union[str, int]) -> paddle.Tensor:
    if device == "cpu":
        return tensor
    return tensor.to(f"gpu:{device}" if isinstance(device, int) else device)


def _to_ndarray(tensor: paddle.Tensor, name: str) -> Tuple[np.ndarray, paddle.Tensor]:
    """Returns the tensor's bytes, and the CPU tensor that owns them.

    The bytes are a NumPy array of uint8 over that tensor's memory.
    """
    if tensor.is_sparse():
        raise ValueError(
            f"You are trying to save a sparse tensor: `{name}` which this library does not support."
        )
    count = tensor.size
    if count != 0 and not tensor.is_contiguous():
        raise ValueError(
            f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It "
            "either means you are trying to save tensors which are reference of each other in "
            "which case it's recommended to save only the full tensors, and reslice at load time, "
            "or simply call `.contiguous()` on your tensor to pack it before saving."
        )
    if tensor.dtype not in _SIZE:
        raise failure(
            "unsupported_dtype",
            f"{tensor.dtype}: tensor `{name}` is of this type, which the file format does not have",
            subject=name,
            also=KeyError,
        )
    nbytes = count * _SIZE[tensor.dtype]
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8), tensor
    dense = tensor if tensor.place.is_cpu_place() else tensor.cpu()
    pointer = ctypes.cast(dense.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, shape=(nbytes,)), dense


def _flatten(
    tensors: Dict[str, paddle.Tensor], keep_alive_buffer: List[Any]
) -> Dict[str, TensorSpec]:
    """Returns the argument of `serialize`.

    The specs point to memory that `keep_alive_buffer` owns once this function returns.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, paddle.Tensor] but received {type(tensors)}")
    specs = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, paddle.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected paddle.Tensor but received {type(tensor)}"
            )
        array, dense = _to_ndarray(tensor, name)
        keep_alive_buffer.append((array, dense))
        specs[name] = TensorSpec(
            dtype=str(tensor.dtype).rpartition(".")[2],
            shape=list(tensor.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    return specs
