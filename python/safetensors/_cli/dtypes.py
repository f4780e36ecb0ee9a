"""Types and shapes that a user or an untrusted file gives."""

from collections.abc import Sequence

from .._dtypes import DTYPES, code_of_name

_ALIASES = {"double": "F64", "float": "F32", "half": "F16"}
_ALIASES.update({f"fp{bits}": f"F{bits}" for bits in (16, 32, 64)})
_ALIASES.update({row["numpy"].lstrip("<|"): code for code, row in DTYPES.items() if row["numpy"]})


def normalized(name: str) -> str:
    """Returns the type of the format, in lower case, that torch, NumPy or ml_dtypes calls so; the
    name in lower case if there is none."""
    name = name.lower().removeprefix("torch.")
    return (code_of_name(name) or _ALIASES.get(name, name)).lower()


def element_count(shape: Sequence[int]) -> int:
    """Returns the number of elements. An axis of 0 is handled first, before the product grows."""
    if 0 in shape:
        return 0
    product = 1
    for dim in shape:
        product *= dim
    return product
