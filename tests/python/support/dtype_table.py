"""The dtypes of the format and what each framework calls them."""

import math
from typing import NamedTuple


class Dtype(NamedTuple):
    """One dtype of the format."""

    name: str  # in a header
    bits: int
    spec: str | None  # TensorSpec's word for it, which is also PyTorch's name
    numpy: str | None  # NumPy's own name, or ml_dtypes' one
    needs_ml_dtypes: bool = False

    def nbytes(self, shape):
        """Returns the bytes of a tensor of `shape`; None if it does not end at a byte."""
        whole, rest = divmod(self.bits * math.prod(shape), 8)
        return None if rest else whole


# In the order in which upstream lays tensors out; it cannot save F6.
TABLE = [
    Dtype("U64", 64, "uint64", "uint64"),
    Dtype("I64", 64, "int64", "int64"),
    Dtype("F64", 64, "float64", "float64"),
    Dtype("C64", 64, "complex64", "complex64"),
    Dtype("F32", 32, "float32", "float32"),
    Dtype("U32", 32, "uint32", "uint32"),
    Dtype("I32", 32, "int32", "int32"),
    Dtype("BF16", 16, "bfloat16", "bfloat16", True),
    Dtype("F16", 16, "float16", "float16"),
    Dtype("U16", 16, "uint16", "uint16"),
    Dtype("I16", 16, "int16", "int16"),
    Dtype("F8_E5M2FNUZ", 8, "float8_e5m2fnuz", "float8_e5m2fnuz", True),
    Dtype("F8_E4M3FNUZ", 8, "float8_e4m3fnuz", "float8_e4m3fnuz", True),
    Dtype("F8_E8M0", 8, "float8_e8m0fnu", "float8_e8m0fnu", True),
    Dtype("F8_E4M3", 8, "float8_e4m3fn", "float8_e4m3fn", True),
    Dtype("F8_E5M2", 8, "float8_e5m2", "float8_e5m2", True),
    Dtype("I8", 8, "int8", "int8"),
    Dtype("U8", 8, "uint8", "uint8"),
    Dtype("F6_E3M2", 6, None, None),
    Dtype("F6_E2M3", 6, None, None),
    Dtype("F4", 4, "float4_e2m1fn_x2", "float4_e2m1fn", True),
    Dtype("BOOL", 8, "bool", "bool"),
]
BY_NAME = {dtype.name: dtype for dtype in TABLE}
SAVEABLE = [dtype.name for dtype in TABLE if dtype.spec]
NUMPY_NATIVE = [dtype.name for dtype in TABLE if dtype.numpy and not dtype.needs_ml_dtypes]
NUMPY_ML = [dtype.name for dtype in TABLE if dtype.needs_ml_dtypes]


def numpy_dtype(name):
    """Returns the NumPy dtype of a dtype of the format."""
    import numpy

    row = BY_NAME[name]
    if row.needs_ml_dtypes:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, row.numpy))
    return numpy.dtype(row.numpy)


def torch_dtype(name):
    """Returns the torch dtype of a dtype of the format."""
    import torch

    return getattr(torch, BY_NAME[name].spec)


def needs_torch_dtype(name):
    """Skips the test if this torch lacks the dtype: F8_E8M0 before 2.7, F4 before 2.8."""
    import pytest

    torch = pytest.importorskip("torch")
    if not hasattr(torch, BY_NAME[name].spec):
        pytest.skip(f"torch {torch.__version__} has no {BY_NAME[name].spec}")


def torch_shape(name, shape):
    """Returns the shape of a tensor in torch, whose F4 element holds two values."""
    shape = tuple(shape)
    return (*shape[:-1], shape[-1] // 2) if name == "F4" else shape
