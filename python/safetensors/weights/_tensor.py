"""One tensor of a model: packed bytes, and decoded values."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

from safetensors import _core, _weights
from safetensors._pickling import NotPickled

from ._config import QuantParams, SchemeParams

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from safetensors._torch import torch

Rows = slice | SupportsIndex | None


class WeightTensor(NotPickled):
    """A tensor of a model. Its data is read when values or bytes are requested.

    Two objects are equal if they are the same tensor of the same open model. The object keeps the
    model's files open.
    """

    _why_not_pickled = (
        "its file is open in this process. Pass its numpy(), or the path and the name"
    )
    __slots__ = (
        "_model",
        "_scales_code",
        "code",
        "is_decoded",
        "name",
        "nbytes",
        "quant",
        "scheme",
        "scheme_params",
        "shape",
        "source",
        "storage",
        "type_name",
    )

    def __init__(self, model: _weights.Model, name: str) -> None:
        described = model.describe(name)
        self._model = model
        self.name: str = described[0]  #: canonical, or the source's if no rule maps it
        self.source: str = described[1]  #: the name in the file
        self.shape: tuple[int, ...] = described[2]  #: in values, not bytes; the slowest axis first
        self.storage: str = described[3]  #: "raw", "mlx_pack", "ggml_block", "scheme"
        self.code: int = described[4]  #: effective type: docs/quantisation.md
        self.type_name: str = described[5]  #: such as "mlx_q4", "Q4_K" or "F16"
        self.quant: QuantParams | None = (
            None if described[6] is None else QuantParams(*described[6])
        )
        self.nbytes: int = described[7]  #: in the file, with the parts of a pack or scheme
        self._scales_code: int = described[8]
        #: False for the codes of a quantisation scheme that is not decoded
        self.is_decoded: bool = described[9]
        #: the quantisation scheme, such as "fp8", where `storage` is "scheme"; else None
        self.scheme: str | None = described[10]
        self.scheme_params: SchemeParams | None = (
            None if described[11] is None else SchemeParams(*described[11])
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightTensor):
            return NotImplemented
        return self._model is other._model and self.name == other.name

    def __hash__(self) -> int:
        return hash((id(self._model), self.name))

    def __repr__(self) -> str:
        return f"<WeightTensor {self.name} {self.type_name} {list(self.shape)}>"

    def _repr_html_(self) -> str | None:
        from safetensors._outline.views import of_weight_tensor

        return of_weight_tensor(self)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def packed(self, *, aligned: bool = False) -> numpy.typing.NDArray[numpy.uint8]:
        """Returns the bytes for a kernel, read-only; see `Weights.get_tensor`."""
        return as_aligned(array_of(self._model.get_tensor(self.name)), aligned)

    def sections(self, *, aligned: bool = False) -> tuple[numpy.typing.NDArray[Any], ...]:
        """Returns the parts of an MLX pack as read-only views; for other tensors, their bytes.

        For a tensor of a scheme, returns its `parts()`, without the names, in one buffer.

            mode       words    scales               third part
            "affine"   uint32   float16              biases, float16
            others     uint32   uint8                global scale, float32 (empty if none)

        In mode "affine" and with `scales="keep"`, scales and biases have the stored dtype instead;
        BF16 is returned as its bits in uint16. With `aligned`, parts that do not start at a
        multiple of 64 bytes are copied.
        """
        import numpy

        if self.storage == "scheme":
            buffer = self._model.get_tensor(self.name)
            rest = array_of(buffer)
            arrays = []
            stored = self._model.parts(self.name)
            for nbytes, (_, _, stored_as, shape) in zip(buffer.sections, stored, strict=False):
                # A weight may have some rows of a part only, such as the gate of gate_up.
                own = (*self.shape[:-1], *shape[len(self.shape) - 1 :])
                array = _typed(rest[:nbytes], stored_as, shape, own)
                arrays.append(as_aligned(array, aligned))
                rest = rest[nbytes:]
            return tuple(arrays)
        if self.quant is None:
            return (self.packed(aligned=aligned),)
        buffer = self._model.get_tensor(self.name)
        whole = array_of(buffer)
        words, scales = buffer.sections[:2]
        leading, inner = self.shape[:-1], self.shape[-1]
        groups = (*leading, inner // self.quant.group_size)
        kind = numpy.dtype(_SCALE_TYPES[self._scales_code])
        third = whole[words + scales :]
        parts = (
            whole[:words].view(numpy.uint32).reshape(*leading, inner * self.quant.bits // 32),
            whole[words : words + scales].view(kind).reshape(groups),
            third.view(kind).reshape(groups)
            if self.quant.mode == "affine"
            else third.view(numpy.float32),
        )
        return tuple(as_aligned(part, aligned) for part in parts)

    def parts(self) -> dict[str, numpy.typing.NDArray[Any]]:
        """Returns the tensors of the file that make up this one, as stored, by role.

        Arrays are read-only views of the file, or newly read. A role is the last component of the
        name: "weight" and "weight_scale_inv" of FP8, "weight", "scales" and "biases" of an MLX
        pack. Most tensors have one part. Types that NumPy lacks come as their bits: BF16 as uint16,
        8-bit floats and smaller ones as uint8.
        """
        arrays = {}
        for index, (role, _, stored_as, shape) in enumerate(self._model.parts(self.name)):
            data = array_of(self._model.get_part(self.name, index))
            arrays[role] = _typed(data, stored_as, shape)
        return arrays

    def _rows(self, rows: Rows) -> tuple[int, int, tuple[int, ...]]:
        """Returns the first row, the number of rows (-1: all), and the shape of the result."""
        if rows is None:
            return 0, -1, self.shape
        count = math.prod(self.shape[:-1])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(count)
            if step != 1:
                raise ValueError(f"rows of {self.name}: a step of {step} is not supported")
            stop = max(start, stop)
            return start, stop - start, (stop - start, *(self.shape[-1:] or (1,)))
        # Older NumPy takes its own bool for an index, with a warning.
        is_bool = isinstance(rows, bool) or str(getattr(rows, "dtype", "")) == "bool"
        if is_bool or not hasattr(rows, "__index__"):
            raise TypeError(f"rows must be an integer or a slice, not {type(rows).__name__}")
        index = operator.index(rows)
        first = index + count if index < 0 else index
        if not 0 <= first < count:
            raise IndexError(f"row {index} of {self.name}, which has {count}")
        return first, 1, self.shape[-1:]

    def _codes(self, stored: str) -> numpy.typing.NDArray[Any]:
        """Returns a view of the stored integers as a matrix: the last axis is a row."""
        import numpy

        kind = numpy.dtype(stored).newbyteorder("<")
        flat = numpy.frombuffer(memoryview(self._model.get_stored(self.name)), kind)
        count = math.prod(self.shape[:-1])
        return flat.reshape(count, flat.size // max(count, 1))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.typing.NDArray[Any]:
        """Decodes the values for `numpy.asarray` and functions that call it, as numpy() does.

        Raises:
            ValueError: `copy` is False: each call decodes anew.
            WeightsError: as numpy().
        """
        if copy is False:
            raise ValueError(f"{self.name} is decoded, which makes a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def numpy(
        self,
        dtype: Any = None,
        rows: Rows = None,
        out: numpy.typing.NDArray[Any] | None = None,
    ) -> numpy.typing.NDArray[Any]:
        """Returns the decoded values.

        Args:
            dtype: "float32" (default), "float16", or "bfloat16" (needs the package ml_dtypes). If
                it is the stored integer dtype, the integers are returned unchanged, and so are the
                words of a pack with "uint32". This is the default where `is_decoded` is False:
                codes of a scheme that is not decoded are never returned as values.
            rows: a row or a slice of rows without a step; None for all. Rows are numbered over all
                leading axes together, so that one expert or a part of a vocabulary can be decoded
                alone.
            out: an array to write to, in C order, with the dtype and shape of the result. Reusing
                an array saves the page faults of new memory.

        Raises:
            ValueError: `dtype`, the step of `rows`, or `out` does not fit.
            IndexError, TypeError: `rows` is out of range, or neither an integer nor a slice.
            WeightsError: the tensor cannot be read or decoded.
        """
        import numpy

        stored = "uint32" if self.storage == "mlx_pack" else _INTEGERS.get(self.type_name)
        if dtype is None:
            dtype = "float32" if self.is_decoded or stored is None else stored
        row0, count, shape = self._rows(rows)
        codes = None
        if stored is not None and str(dtype) != "bfloat16" and numpy.dtype(dtype) == stored:
            codes = self._codes(stored)[row0 : None if count < 0 else row0 + count]
            shape = (*shape[:-1], codes.shape[-1]) if shape else ()
        kind = _numpy_dtype(dtype) if codes is None else numpy.dtype(stored)
        if out is None:
            out = numpy.empty(shape, dtype=kind)
        elif out.dtype != kind or out.shape != shape or not out.flags.c_contiguous:
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}, but {self.name} needs {kind} {list(shape)}"
                " in C order"
            )
        if codes is None:
            self._model.dequantize(self.name, _room(out), kind.name, row0, count)
        else:
            out[...] = codes.reshape(shape)
        return out

    def torch(
        self,
        dtype: torch.dtype | str | None = None,
        rows: Rows = None,
        device: Any = None,
    ) -> torch.Tensor:
        """Returns the decoded values as a torch tensor that owns its memory.

        Args:
            dtype: torch.float32 (default), torch.float16 or torch.bfloat16, or its name.
            rows: as for `numpy`.
            device: the device of the tensor; values are decoded on the CPU and copied there.
        """
        from safetensors._torch import torch

        kind = "float32" if dtype is None else str(dtype)
        name = _TORCH_NAMES.get(kind, kind)
        if name not in _TORCH_NAMES.values():
            raise ValueError(f"{kind} is none of float32, float16, bfloat16")
        row0, count, shape = self._rows(rows)
        tensor = torch.empty(shape, dtype=getattr(torch, name))
        bits = torch.int32 if name == "float32" else torch.int16
        self._model.dequantize(self.name, _room(tensor.view(bits).numpy()), name, row0, count)
        return tensor if device is None else tensor.to(device)


def array_of(buffer: _weights.Buffer) -> numpy.typing.NDArray[numpy.uint8]:
    """Returns the bytes as a read-only array, which keeps the buffer alive."""
    import numpy

    return numpy.frombuffer(memoryview(buffer), dtype=numpy.uint8)


def _typed(
    data: numpy.typing.NDArray[numpy.uint8], kind: str, *shapes: tuple[int, ...]
) -> numpy.typing.NDArray[Any]:
    """Returns the bytes as an array of a type of safetensors, in the first shape that fits."""
    import numpy

    found = _TYPES.get(kind)
    if found is None:  # 4 or 6 bits, or a block of GGUF
        return data
    values: numpy.typing.NDArray[Any] = data.view(numpy.dtype(found).newbyteorder("<"))
    return values.reshape(next(shape for shape in shapes if math.prod(shape) == values.size))


def as_aligned(array: numpy.typing.NDArray[Any], wanted: bool) -> numpy.typing.NDArray[Any]:
    """Returns the array, or a copy at a multiple of 64 bytes if `wanted` and it is not at one."""
    import numpy

    if not wanted or array.ctypes.data % 64 == 0:
        return array
    room = numpy.empty(array.nbytes + 63, numpy.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


# Names in NumPy by those in the format; of those that NumPy lacks, the integers of their bits.
_TYPES: dict[str, str] = {
    code: row["torch"] if row["numpy"] else f"uint{row['bits']}"
    for code, row in _core._dtypes().items()
    if row["bits"] % 8 == 0
}
_INTEGERS = {code: kind for code, kind in _TYPES.items() if code[0] in "IU"}
# Of scales, by the code of their effective type.
_SCALE_TYPES = {0: _TYPES["F32"], 1: _TYPES["F16"], 30: _TYPES["BF16"], 201: _TYPES["U8"]}
_TORCH_NAMES = {
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


def _numpy_dtype(dtype: Any) -> Any:
    import numpy

    if str(dtype) == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("NumPy arrays of bfloat16 need the package ml_dtypes") from error
        return numpy.dtype(ml_dtypes.bfloat16)
    kind = numpy.dtype(dtype)
    if kind.name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"{kind} is none of float32, float16, bfloat16")
    return kind


def _room(array: numpy.typing.NDArray[Any]) -> Any:
    """Returns the bytes of an array in C order, because bfloat16 arrays export no buffer."""
    import numpy

    return array.reshape(-1).view(numpy.uint8)
