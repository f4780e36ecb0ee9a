"""Files of NumPy arrays: loading and saving."""

from __future__ import annotations  # to evaluate them takes most of an import

import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _core
from ._core import TensorSpec, deserialize, safe_open, serialize, serialize_file
from ._typing import Buffer, Path, Progress

__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]

_DTYPES = _core._dtypes()

_TYPES: Dict[str, Any] = {
    code: np.dtype(row["numpy"]).type for code, row in _DTYPES.items() if row["numpy"]
}
"""From the type names of files to NumPy's own types."""
_TYPES["BOOL"] = bool  # as in upstream


def save(
    tensor_dict: Mapping[str, Union[np.ndarray, np.generic]],
    metadata: Optional[Dict[str, str]] = None,
) -> bytes:
    """A file of the arrays, as bytes.

    Args:
        tensor_dict: arrays of any layout and byte order: their values are saved. Types that NumPy
            has through ml_dtypes are taken too.
        metadata: text to go with them.

    Raises:
        SafetensorError: a type or a name that files cannot have.
    """
    return _core._save_numpy(_as_dict(tensor_dict), _prepare, metadata)


def save_file(
    tensor_dict: Mapping[str, Union[np.ndarray, np.generic]],
    filename: Path,
    metadata: Optional[Dict[str, str]] = None,
    *,
    fsync: bool = False,
    progress: Optional[Progress] = None,
) -> None:
    """Writes a file of the arrays: whole, or not at all, leaving an old file as it was.

    Args:
        tensor_dict: as `save` has it. The arrays may be mapped from the file that is replaced.
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
    _core._save_numpy_file(_as_dict(tensor_dict), _prepare, filename, metadata, fsync, progress)


def load(data: Buffer) -> Dict[str, np.ndarray]:
    """The arrays of a file held in memory, copied.

    Args:
        data: the file: bytes, or any object with a contiguous buffer.
    """
    return _core._load_numpy(data)


def load_file(filename: Path, *, backend: str = "mmap") -> Dict[str, np.ndarray]:
    """All arrays of a file.

    Args:
        filename: the file to read.
        backend: as `safe_open` has it. By "mmap" the arrays are views of the file's pages, which
            are read when they are used (once an eighth is used, a background thread reads
            ahead); writing to them does not change the file.
    """
    with safe_open(filename, framework="np", backend=backend) as f:
        arrays: Dict[str, np.ndarray] = f.get_tensors()
        _core._read_ahead(f)
    return arrays


def _as_dict(tensor_dict: Any) -> Dict[str, np.ndarray]:
    return tensor_dict if isinstance(tensor_dict, dict) else dict(tensor_dict.items())


def _getdtype(dtype_str: str) -> Any:
    row = _DTYPES.get(dtype_str)
    # F4 takes half a byte in a file and a whole byte in ml_dtypes.
    if row and row["ml_dtypes"] and dtype_str not in ("F4", *_TYPES):
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            return np.dtype(getattr(ml_dtypes, row["ml_dtypes"]))
    return _TYPES[dtype_str]


def _view2np(safeview: List[Tuple[str, Dict[str, Any]]]) -> Dict[str, np.ndarray]:
    """Arrays of what `deserialize` returns, over its memory."""
    return {
        name: np.frombuffer(
            entry["data"], dtype=np.dtype(_getdtype(entry["dtype"])).newbyteorder("<")
        ).reshape(entry["shape"])
        for name, entry in safeview
    }


def _is_little_endian(tensor: np.ndarray) -> bool:
    """Whether the elements are stored as files store them; single bytes always are."""
    order = tensor.dtype.byteorder
    if order == "=":
        return sys.byteorder == "little"
    if order in "<|":
        return True
    if order == ">":
        return False
    raise ValueError(f"Unexpected byte order {order} of {tensor.dtype}")


def _prepare(array: Any) -> Tuple[np.ndarray, str, Tuple[int, ...]]:
    """Memory that holds the array's values as files have them, their type there, and the shape."""
    if isinstance(array, np.generic):
        array = np.asarray(array)
    little_endian = _is_little_endian(array)
    if array.dtype.name == _DTYPES["F4"]["ml_dtypes"]:
        return _packed_f4(np.asarray(array)), "F4", array.shape
    # Raises the usual error for a type that files do not have.
    code = TensorSpec(dtype=array.dtype.name, shape=(), data_ptr=0, data_len=0).dtype
    shape = array.shape
    if not little_endian:
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array), code, shape


def _packed_f4(array: np.ndarray) -> np.ndarray:
    """Two elements to a byte, the first in the low half."""
    halves = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & 0x0F
    if halves.size % 2:
        halves = np.append(halves, np.uint8(0))  # the core refuses the odd count by its shape
    return halves[0::2] | (halves[1::2] << 4)


def _flatten(
    tensor_dict: Dict[str, np.ndarray], keep_alive_buffer: List[Any]
) -> Dict[str, TensorSpec]:
    """What `serialize` takes; the memory stays while `keep_alive_buffer` does."""
    specs = {}
    for name, original in tensor_dict.items():
        array, code, shape = _prepare(original)
        keep_alive_buffer.append(array)
        if code == "F4":  # TensorSpec takes the shape of pairs
            shape = (*shape[:-1], shape[-1] // 2)
        specs[name] = TensorSpec(
            dtype=_DTYPES[code]["torch"],
            shape=shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    return specs


def _tobytes(tensor: np.ndarray) -> bytes:
    """The array's bytes as files have them."""
    return _prepare(tensor)[0].tobytes()
