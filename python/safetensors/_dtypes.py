"""The types of the format, by their names in files."""

from . import _core

DTYPES = _core._dtypes()
"""In the order in which writers group tensors."""
BITS: dict[str, int] = {code: row["bits"] for code, row in DTYPES.items()}
"""Bits of an element."""
CASTABLE = tuple(code for code, row in DTYPES.items() if row["castable"])
"""The types that are cast, and to which."""
_CODES = {
    name: code
    for code, row in DTYPES.items()
    for name in (code, row["torch"], row["ml_dtypes"])
    if name
}


def code_of_name(name: str) -> str | None:
    """Returns the format's name of a type that the format, torch, NumPy or ml_dtypes calls so; None
    if there is none."""
    return _CODES.get(name)
