"""NumPy arrays as what files store and back, and arrays of other frameworks as NumPy's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from ._core import SafetensorError, TensorSpec
from ._errors import failure

_DTYPES = _core._dtypes()

_TYPES: dict[str, Any] = {
    code: np.dtype(row["numpy"]).type for code, row in _DTYPES.items() if row["numpy"]
}
"""Maps the format's dtype names to NumPy's built-in dtypes."""
_TYPES["BOOL"] = bool  # as in upstream


def _as_dict(tensor_dict: Any) -> dict[str, Any]:
    """Returns the caller's mapping as a dict."""
    return tensor_dict if isinstance(tensor_dict, dict) else dict(tensor_dict.items())


def _read_all(tensor_dict: Any) -> dict[str, Any]:
    """Returns a new dict of the caller's arrays, each as _prepare() would read it."""
    return {name: _read(name, array) for name, array in tensor_dict.items()}


def _read(name: Any, array: Any) -> Any:
    """Returns an array of MLX or another framework without NumPy's dtypes as one of NumPy."""
    is_other = hasattr(array, "__dlpack__") and not isinstance(
        getattr(array, "dtype", None), np.dtype
    )
    return array_of(name, array) if is_other else array


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
    except SafetensorError as error:
        text = f"{error}. Tensor `{name}` is of this type"
        raise failure("unsupported_dtype", text, subject=name) from None


def _prepare(name: object, array: Any) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """Returns an array in C order and little-endian, the format's dtype name, and the shape.

    F4 elements, which take a byte each in NumPy, are packed: the array has half as many bytes.
    `name` is the tensor's, for errors.
    """
    array = _read(name, array)
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


def _flatten(tensor_dict: Mapping[str, Any], keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """Returns the argument of `serialize`.

    The specs point to memory that `keep_alive_buffer` owns once this function returns.
    """
    specs = {}
    for name, original in _read_all(tensor_dict).items():
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


def array_of(name: str, tensor: Any) -> Any:
    """Returns an array of NumPy for a tensor of another framework that NumPy can read.

    Tensors of torch are returned as they are.

    Raises:
        SafetensorError: there is no such array.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor
    array = handed_out(name, tensor)
    if torch is not None and isinstance(array, torch.Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise failure(
            "unsupported_dtype",
            f"Error while serializing: tensor `{name}`, a {kind} of type {tensor.dtype}, has no "
            "array of NumPy without ml_dtypes: safe_create saves tensors of any framework",
            subject=name,
        )
    return array


def handed_out(name: str, tensor: Any) -> Any:
    """Returns an object with `__dlpack__` as an array of NumPy or a tensor of torch.

    Raises:
        SafetensorError: the framework of the tensor does not hand out its bytes.
    """
    try:
        return _read_by_framework(tensor)
    except SafetensorError as error:
        raise failure(
            "invalid_argument", f"Error while serializing: tensor `{name}`: {error}", subject=name
        ) from error
    # What JAX, MLX and others raise: BufferError is what DLPack asks for.
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise failure(
            "invalid_argument",
            f"Error while serializing: tensor `{name}`, a {kind} of type "
            f"{getattr(tensor, 'dtype', None)}, cannot be read by NumPy or torch: {error}",
            subject=name,
        ) from error


def _read_by_framework(tensor: Any) -> Any:
    """Returns a tensor of another framework as an array of NumPy, or as a tensor of torch."""
    # DLPack has bfloat16, but NumPy reads no such arrays; ml_dtypes gives it the types.
    mlx = sys.modules.get("mlx.core")
    if mlx is not None and isinstance(tensor, mlx.array):
        return of_mlx(tensor)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return np.asarray(tensor)
    torch = sys.modules.get("torch")
    return np.from_dlpack(tensor) if torch is None else torch.from_dlpack(tensor)


def of_mlx(array: Any) -> np.ndarray:
    """Returns an array of MLX as one of NumPy. For bfloat16, that needs ml_dtypes."""
    mx = sys.modules["mlx.core"]
    if isinstance(array, mx.array) and array.dtype == mx.bfloat16:
        return np.asarray(array.view(mx.uint16)).view(_bfloat16())
    return np.asarray(array)


def _bfloat16() -> Any:
    try:
        return _getdtype("BF16")
    except KeyError:
        raise failure(
            "unsupported_dtype",
            "Dtype not understood: BF16: NumPy has no such type of its own: install ml_dtypes "
            "(pip install ml_dtypes)",
        ) from None
