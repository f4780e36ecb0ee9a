"""The types of the format, as in docs/format.md."""

from collections.abc import Sequence

from .._core import _dtypes

DTYPES = _dtypes()
BITS: dict[str, int] = {code: row["bits"] for code, row in DTYPES.items()}
"""Bits of an element. The order is the one in which writers group tensors."""


_ALIASES = {"double": "F64", "float": "F32", "half": "F16"}
_ALIASES.update({f"fp{bits}": f"F{bits}" for bits in (16, 32, 64)})


def normalized(name: str) -> str:
    """Returns the type of the format, in lower case, that torch, NumPy or ml_dtypes calls so; the
    name in lower case if there is none."""
    name = name.lower().removeprefix("torch.")
    for code, row in DTYPES.items():
        names = (row["torch"], row["ml_dtypes"], row["numpy"] and row["numpy"].lstrip("<|"))
        if name in names:
            return code.lower()
    return _ALIASES.get(name, name).lower()


def element_count(shape: Sequence[int]) -> int:
    """Returns the number of elements. An axis of 0 is handled first, before the product grows."""
    if 0 in shape:
        return 0
    product = 1
    for dim in shape:
        product *= dim
    return product
