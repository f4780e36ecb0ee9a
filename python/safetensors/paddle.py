"""Files of Paddle tensors: loading and saving."""

from __future__ import annotations  # to evaluate them takes most of an import

import ctypes
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import paddle
from paddle.utils.dlpack import from_dlpack

from safetensors import TensorSpec, deserialize, numpy, safe_open, serialize, serialize_file

from ._core import _dtypes
from ._frameworks import code_of, refuse
from ._typing import Buffer, Path, Progress

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

# NumPy types that carry the bits of types that NumPy lacks.
_CARRIERS = {"BF16": np.int16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}

# Paddle uses the names of torch. Older versions lack some of these types, and where Paddle says
# uint16 it means bfloat16.
_KNOWN = [
    (code, getattr(paddle, row["torch"]), row)
    for code, row in _dtypes().items()
    if (row["numpy"] or code in _CARRIERS) and code != "U16" and hasattr(paddle, row["torch"])
]

_SIZE: Dict[paddle.dtype, int] = {dtype: row["bits"] // 8 for _, dtype, row in _KNOWN}
"""Bytes an element of each type takes in memory."""

_TYPES: Dict[str, paddle.dtype] = {code: dtype for code, dtype, _ in _KNOWN}
"""From the type names of files to Paddle's types."""

NPDTYPES: Dict[paddle.dtype, Any] = {
    # NumPy has no bfloat16; upstream's table gives float16 for it.
    dtype: np.float16 if code == "BF16" else numpy._TYPES.get(code, np.uint8)
    for code, dtype, _ in _KNOWN
}
"""NumPy's types of the same size; of the same values where NumPy has one."""


def save(tensors: Dict[str, paddle.Tensor], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """A file of the tensors, as bytes.

    Args:
        tensors: contiguous and dense, on any device.
        metadata: text to go with them.

    Raises:
        ValueError: a tensor is sparse or not contiguous, or no tensor.
        KeyError: a type that files do not have.
        SafetensorError: a name that cannot be written.
    """
    keep_alive: List[Any] = []
    return serialize(_flatten(tensors, keep_alive), metadata=metadata)


def save_file(
    tensors: Dict[str, paddle.Tensor],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Writes a file of the tensors: whole, or not at all, leaving an old file as it was.

    Args:
        tensors: as `save` has them.
        filename: the file to write.
        metadata: text to go with them.
        fsync: whether to wait until the file is on the disk.
        progress: called as progress(done, total) with the bytes that are written and those of the
            file; the last call has both equal. If it raises, the save is undone and the exception
            passes through.

    Raises:
        What `save` raises, and an error that is both SafetensorError and OSError when the system
        refuses.
    """
    keep_alive: List[Any] = []
    serialize_file(
        _flatten(tensors, keep_alive), filename, metadata=metadata, fsync=fsync, progress=progress
    )


def load(data: Buffer, device: str = "cpu") -> Dict[str, paddle.Tensor]:
    """The tensors of a file held in memory, copied.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.
        device: where the tensors go, in Paddle's words: "cpu", "gpu:0"; "cuda:0" is known too.

    Raises:
        SafetensorError: a damaged file, or a type that Paddle does not have.
    """
    return _view2paddle(deserialize(data), device)


def load_file(
    filename: Path,
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
) -> Dict[str, paddle.Tensor]:
    """All tensors of a file.

    Args:
        filename: the file to read.
        device: as `load` has it; a number is that of a GPU.
        backend: as `safe_open` has it. The tensors are copies by both.
    """
    with safe_open(filename, framework="paddle", backend=backend) as f:
        if device == "cpu":
            return f.get_tensors()
        # One by one: what is on the device leaves no copy on the CPU.
        return {name: _to_device(f.get_tensor(name), device) for name in f.offset_keys()}


def _np2paddle(numpy_dict: Dict[str, np.ndarray], device: str = "cpu") -> Dict[str, paddle.Tensor]:
    """Copies; arrays of uint16 are taken for bfloat16, as Paddle has it."""
    result = {}
    for name, array in numpy_dict.items():
        code = "BF16" if array.dtype == np.uint16 else code_of(array)
        result[name] = _to_device(_copy(array, code), device)
    return result


def _paddle2np(paddle_dict: Dict[str, paddle.Tensor]) -> Dict[str, np.ndarray]:
    """As Paddle has it: bfloat16 as uint16, the types of 8 bits as int8."""
    return {name: tensor.numpy() for name, tensor in paddle_dict.items()}


def _getdtype(dtype_str: str) -> paddle.dtype:
    return _TYPES[dtype_str]


def _view2paddle(
    safeview: Sequence[Tuple[str, Mapping[str, Any]]], device: str
) -> Dict[str, paddle.Tensor]:
    """Copies of what `deserialize` returns."""
    result = {}
    for name, entry in safeview:
        code = entry["dtype"]
        if code not in _TYPES:
            refuse(code, "Paddle")
        carrier = _CARRIERS.get(code) or NPDTYPES[_TYPES[code]]
        array = np.frombuffer(entry["data"], dtype=carrier).reshape(entry["shape"])
        result[name] = _to_device(_copy(array, code), device)
    return result


def _from_file(array: np.ndarray, code: str) -> paddle.Tensor:
    return _copy(array, code)


def _copy(array: np.ndarray, code: str) -> paddle.Tensor:
    """A tensor of the array's values, or of the type that its bits carry."""
    # Paddle takes uint16 for bfloat16, and has no other type for it.
    if code not in _TYPES:
        refuse(code, "Paddle")
    if code in _CARRIERS:
        return paddle.to_tensor(array.view(_CARRIERS[code])).view(_TYPES[code])
    if code in ("U32", "U64"):
        # Only from memory of its own: Paddle 3.3 confuses the owners of two tensors at one address.
        return from_dlpack(array.copy().__dlpack__())
    return paddle.to_tensor(array)


def _to_device(tensor: paddle.Tensor, device: Union[str, int]) -> paddle.Tensor:
    if device == "cpu":
        return tensor
    return tensor.to(f"gpu:{device}" if isinstance(device, int) else device)


def _to_ndarray(tensor: paddle.Tensor, name: str) -> Tuple[np.ndarray, paddle.Tensor]:
    """The tensor's bytes, as a NumPy array of uint8, and the CPU tensor whose memory that is."""
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
    nbytes = count * _SIZE[tensor.dtype]
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8), tensor
    dense = tensor if tensor.place.is_cpu_place() else tensor.cpu()
    pointer = ctypes.cast(dense.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, shape=(nbytes,)), dense


def _flatten(
    tensors: Dict[str, paddle.Tensor], keep_alive_buffer: List[Any]
) -> Dict[str, TensorSpec]:
    """What `serialize` takes; the memory stays while `keep_alive_buffer` does."""
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
