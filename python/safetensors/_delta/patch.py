"""Patch files: what is in one. The core reads and checks them; docs/patches.md describes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _extra
from .._core import safe_open
from .._dtypes import BITS
from .._errors import Code, failure_of
from .._paths import is_url
from .._pickling import NotPickled
from .._text import count
from .._typing import Source
from .errors import AlreadyAppliedError, PatchError, WrongBaseError

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".safetensors-patch"
RECORD: str = _extra._RECORD_PREFIX
"""What the name of the entry with the record of a tensor begins with."""
VALUES: str = _extra._VALUES_PREFIX
_CODES: Mapping[type[PatchError], Code] = {
    PatchError: "invalid_patch",
    WrongBaseError: "wrong_base",
    AlreadyAppliedError: "patch_applied",
}
Change = _extra._PatchChange


class Entry(NamedTuple):
    """What a patch says about a tensor."""

    kind: str
    """"blocks": some of its units change. "whole": it is new, or has another dtype or shape.
    "removed": the target does not have it."""
    dtype: str | None
    """The dtype of the target's tensor; None if it is removed, and for types below a byte."""
    shape: tuple[int, ...] | None
    """The shape of the target's tensor; None if it is removed."""
    units: int
    """How many units the tensor has: its elements, or the bytes of types below a byte."""
    changed: int
    """How many units it lists."""
    nbytes: int
    """The bytes of its record and its values."""
    base: str | None
    """The digest of the base's tensor; None if it has none of this name."""
    target: str | None
    """The digest of the target's tensor; None if it is removed."""
    codes: dict[str, int]
    """How many blocks have each code."""


class Patch(NotPickled):
    """A patch file, open. Several threads may use one.

    A context manager: leaving it closes the file.
    """

    _why_not_pickled = "its file is open in this process. Pass the path to open_patch there"

    path: str
    """The file, as errors name it."""
    base: str
    """The digest of the model before, such as "xxh3-128:99aa..."."""
    target: str
    """The digest of the model after."""
    base_label: str | None
    target_label: str | None
    metadata: dict[str, str] | None
    """The metadata of the target's file, if the patch has it."""
    algorithm: str
    """The algorithm of all digests: "xxh3-128" or "sha256"."""
    names: list[str]
    """The tensors that are not as before, sorted."""

    def __init__(self, file: safe_open, path: str) -> None:
        """Takes an open file, which it closes. Raises PatchError if it is not a patch."""
        self._file, self.path = file, path
        try:
            found = _extra._read_patch(file)
        except BaseException:
            file.close()
            raise
        self.base, self.target, self.base_label, self.target_label, self.metadata = found[:5]
        self.algorithm, self.names = found[5:]

    def entry(self, name: str) -> Entry:
        """Returns what the patch says about a tensor. Raises PatchError if it is not valid."""
        change = self._change(name)
        return Entry(
            kind=change.kind,
            dtype=change.dtype,
            shape=None if change.kind == "removed" else change.shape,
            units=change.units,
            changed=change.changed,
            nbytes=change.nbytes,
            base=change.base,
            target=change.target,
            codes=change.codes,
        )

    def changed(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns which elements of a tensor change, and to what. Needs NumPy.

        The values are None where the patch has differences, for which one needs the base:
        `diff(..., values="set")` makes patches without them. Of types below a byte, the elements
        are bytes.

        Returns:
            The indices in the flattened tensor, ascending int64; and the new values, or None. A
            whole tensor has all indices, a removed one none.
        """
        import numpy as np

        from .._numpy_arrays import _getdtype

        indices: Any
        values: Any
        change = self._change(name)
        if change.kind == "removed":
            return np.zeros(0, np.int64), None
        if change.kind == "whole":
            values = np.frombuffer(change.values(), np.uint8)
            indices = np.arange(change.units)
        else:
            indices = np.empty(change.changed, np.int64)
            change.positions(indices)
            if change.codes.get("add8"):
                return indices, None
            values = np.empty(change.changed * change.unit, np.uint8)
            change.new_values(None, values)
        dtype = change.dtype or "U8"
        try:
            return indices, values.view(_getdtype(dtype))
        except KeyError:  # NumPy has no such type
            return indices, values.view(f"u{unit_of(dtype)}")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _alone(self, name: str) -> Patch:
        """Returns this open patch as one of a single tensor."""
        alone = object.__new__(Patch)
        vars(alone).update(vars(self), names=[name])
        return alone

    def __repr__(self) -> str:
        changes = count(len(self.names), "tensor")
        return f"<Patch {self.path}: {changes}, {self.base} -> {self.target}>"

    def _repr_html_(self) -> str | None:
        from .._outline.views import of_patch

        return of_patch(self)

    def _nbytes(self, name: str) -> int:
        """Returns the bytes of a tensor's record and values, and reads neither."""
        stored = [key for key in (RECORD + name, VALUES + name) if key in self._file]
        return sum(self._file.get_tensor_meta(key).nbytes for key in stored)

    def _change(self, name: str) -> Change:
        """Reads a record and its values, and checks them. Raises PatchError."""
        return Change(self._file, name, self.algorithm)


class InMemory:
    """A file in memory, as a RangeReader."""

    name = "patch in memory"

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def open(self, nbytes: int) -> tuple[int, memoryview]:
        return len(self._data), self._data[:nbytes]

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self._data[offset : offset + nbytes]


def open_patch(path: Source) -> Patch:
    """Opens a patch, and checks its metadata and the names of its entries.

    A record is checked completely before it is used, so that opening takes no longer than opening
    the file.

    Args:
        path: a path, a URL, or a `RangeReader`.

    Raises:
        PatchError: it is not a patch, or of another version.
        SafetensorError, OSError: as `safe_open`.
    """
    return Patch(safe_open(path, "np", backend="pread"), _name_of(path))


def _name_of(source: Source) -> str:
    if not isinstance(source, (str, bytes, os.PathLike)):
        return source.name
    if is_url(source):
        from .._redact import redact

        return redact(str(source))
    return os.fsdecode(source)


def error_of(
    kind: type[PatchError], text: str, path: str | None = None, name: str | None = None
) -> PatchError:
    """Returns an error with its fields."""
    return failure_of(kind, _CODES[kind], text, path=path, subject=name)


def unit_of(dtype: str) -> int:
    """Returns the bytes that change together."""
    return max(1, BITS[dtype] // 8)


def is_sub_byte(dtype: str) -> bool:
    return BITS[dtype] % 8 != 0
