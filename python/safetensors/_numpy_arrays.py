"""NumPy arrays as what files store, and back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core
from ._core import TensorSpec

_DTYPES = _core._dtypes()

_TYPES: dict[str, Any] = {
    code: np.dtype(row["numpy"]).type for code, row in _DTYPES.items() if row["numpy"]
}
"""Maps the format's dtype names to NumPy's built-in dtypes."""
_TYPES["BOOL"] = bool  # as in upstream

_ARRAYS = {np.ndarray}


def _as_dict(tensor_dict: Any) -> dict[str, np.ndarray]:
    """Returns the caller's arrays, those of MLX and others without NumPy's dtypes converted."""
    arrays = tensor_dict if isinstance(tensor_dict, dict) else dict(tensor_dict.items())
    if _ARRAYS.issuperset(map(type, arrays.values())):  # the usual case, in little time
        return arrays
    from ._saving.foreign_arrays import array_of

    return {
        name: array_of(name, tensor)
        if hasattr(tensor, "__dlpack__")
        and not isinstance(getattr(tensor, "dtype", None), np.dtype)
        else tensor
        for name, tensor in arrays.items()
    }


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


def _view2np(safeview: list[tuple[str, dict[str, Any]]]) -> dict[str, np.ndarray]:
    """Returns the arrays of `deserialize`'s result, as views of its memory."""
    return {
        name: np.frombuffer(
            entry["data"], dtype=np.dtype(_getdtype(entry["dtype"])).newbyteorder("<")
        ).reshape(entry["shape"])
        for name, entry in safeview
    }


def _is_little_endian(tensor: np.ndarray) -> bool:
    """Returns whether elements are little-endian; single bytes always are."""
    order = tensor.dtype.byteorder
    if order == "=":
        return sys.byteorder == "little"
    if order in "<|":
        return True
    if order == ">":
        return False
    raise ValueError(f"Unexpected byte order {order} of {tensor.dtype}")


def _refuse_others(name: object, array: Any) -> None:
    """Raises if a value is no array."""
    try:
        _ = array.dtype.byteorder
    except AttributeError as error:
        from ._errors import not_a_tensor

        raise not_a_tensor(name, array, "numpy.ndarray", error) from None


def _warn_of_mask(name: object, array: Any) -> None:
    """Warns if elements are masked. Upstream saves their values, so programs may count on it."""
    if np.ma.is_masked(array):
        from ._warn import warn

        warn(
            f"tensor `{name}` is a masked array, and files keep no masks: the values behind the "
            "mask are saved. Save `.filled(...)`, or `.data` and `.mask` as two tensors"
        )


def _code_of(name: object, array: Any) -> str:
    """Returns the format's name of an array's dtype."""
    try:
        return TensorSpec(dtype=array.dtype.name, shape=(), data_ptr=0, data_len=0).dtype
    except _core.SafetensorError as error:
        from ._errors import failure

        text = f"{error}. Tensor `{name}` is of this type"
        raise failure("unsupported_dtype", text, subject=name) from None


def _prepare(name: object, array: Any) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """Returns an array in C order and little-endian, the format's dtype name, and the shape.

    F4 elements, which take a byte each in NumPy, are packed: the array has half as many bytes.
    `name` is the tensor's, for errors.
    """
    _refuse_others(name, array)
    _warn_of_mask(name, array)
    if isinstance(array, np.generic):
        array = np.asarray(array)
    little_endian = _is_little_endian(array)
    code = _code_of(name, array)
    shape = array.shape
    if code == "F4":
        return _packed_f4(np.asarray(array)), code, shape
    if not little_endian:
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array), code, shape


def _stored_nbytes(name: object, array: Any) -> int:
    _refuse_others(name, array)
    is_f4 = array.dtype.name == _DTYPES["F4"]["ml_dtypes"]
    return (array.size + 1) // 2 if is_f4 else int(array.nbytes)


def _packed_f4(array: np.ndarray) -> np.ndarray:
    """Packs F4 elements, two to a byte; the first is in the low half."""
    halves = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & 0x0F
    if halves.size % 2:
        halves = np.append(halves, np.uint8(0))  # the core refuses the odd count by its shape
    return halves[0::2] | (halves[1::2] << 4)


def _flatten(
    tensor_dict: dict[str, np.ndarray], keep_alive_buffer: list[Any]
) -> dict[str, TensorSpec]:
    """Returns the argument of `serialize`.

    The specs point to memory that `keep_alive_buffer` owns once this function returns.
    """
    specs = {}
    for name, original in tensor_dict.items():
        array, _, shape = _prepare(name, original)
        keep_alive_buffer.append(array)
        specs[name] = TensorSpec(
            dtype=original.dtype.name,
            shape=shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    return specs


def _tobytes(tensor: np.ndarray) -> bytes:
    """Returns the array's bytes as the file stores them."""
    return _prepare("", tensor)[0].tobytes()
