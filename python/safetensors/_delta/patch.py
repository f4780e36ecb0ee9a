"""Patch files: what is in one, and whether it is valid. docs/patches.md describes them."""

from __future__ import annotations

import bisect
import contextlib
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import _core, _json
from .._core import TensorMeta, safe_open
from .._errors import Code, failure_of
from .._paths import is_url
from .._pickling import NotPickled
from .._text import clipped
from .._typing import Source
from .errors import AlreadyAppliedError, PatchError, WrongBaseError

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".safetensors-patch"
FORMAT = "safetensors-patch"
VERSION = "1"
MAX_LABEL_NBYTES = 256
_FLAGS, _SUB_BYTE = 10, 2  # of a record
_CODES: Mapping[type[PatchError], Code] = {
    PatchError: "invalid_patch",
    WrongBaseError: "wrong_base",
    AlreadyAppliedError: "patch_applied",
}
_DIGEST = re.compile("xxh3-128:[0-9a-f]{32}|sha256:[0-9a-f]{64}")


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


class Change(NamedTuple):
    """The record of a tensor, checked, with its values."""

    patch: Patch
    name: str
    record: Any
    """A _PatchRecord."""
    values: bytes
    dtype: str
    """The dtype of the values. Of types below a byte, that of blocks is U8."""
    shape: tuple[int, ...]
    """The shape of the target's tensor. Empty if it is removed."""
    is_sub_byte: bool
    """Whether the record has the blocks of a type below a byte."""

    @property
    def kind(self) -> str:
        return str(self.record.kind)

    @property
    def label(self) -> str:
        return f"{self.patch.path}: tensor `{clipped(self.name)}`"


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
            self._read_metadata(self._file.metadata() or {})
            self._read_names(self._file.offset_keys())
            self._data_begin = _core._data_begin(self._file)
        except BaseException:
            self._file.close()
            raise

    def _read_metadata(self, found: dict[str, str]) -> None:
        if found.get("format") != FORMAT:
            self._fail(f"not a patch: its metadata has no `format` of `{FORMAT}`")
        if found.get("patch_version") != VERSION:
            self._fail(f"version {_quoted(found.get('patch_version'))} of patches is unknown")
        for key in ("base", "target"):
            if not _DIGEST.fullmatch(found.get(key, "")):
                self._fail(f"`{key}` is {_quoted(found.get(key))}, which is not a digest")
        self.base, self.target = found["base"], found["target"]
        self.algorithm = self.base.partition(":")[0]
        if self.target.partition(":")[0] != self.algorithm:
            self._fail("`base` and `target` are digests of two algorithms")
        for key in ("base_label", "target_label"):
            if len(found.get(key, "").encode()) > MAX_LABEL_NBYTES:
                self._fail(f"`{key}` has more than {MAX_LABEL_NBYTES} bytes")
        self.base_label, self.target_label = found.get("base_label"), found.get("target_label")
        self.metadata = None
        if "metadata" in found:
            self.metadata = _texts(found["metadata"], self.path)
            if self.metadata is None:
                self._fail("`metadata` is not a JSON object of strings")

    def _read_names(self, keys: list[str]) -> None:
        keys.sort()  # records and values are then two stretches of them
        records, values = (
            slice(bisect.bisect_left(keys, letter + "/"), bisect.bisect_left(keys, letter + "0"))
            for letter in "rv"
        )
        bare = operator.itemgetter(slice(2, None))
        self.names = list(map(bare, keys[records]))
        if len(self.names) + len(keys[values]) != len(keys):
            name = next(key for key in keys if key[:2] not in ("r/", "v/"))
            self._fail(f"entry `{clipped(name)}` is neither a record nor values", name)
        with_values = list(map(bare, keys[values]))
        if with_values != self.names:
            alone = set(with_values).difference(self.names)
            if alone:
                self._fail("it has values and no record", min(alone))

    def entry(self, name: str) -> Entry:
        """Returns what the patch says about a tensor. Raises PatchError if it is not valid."""
        change = self._change(name)
        record, nbytes = change.record, self._nbytes(name)
        units, changed = record.units, record.changed
        if change.kind == "whole":
            units = changed = len(change.values) // unit_of(change.dtype)
        is_there = change.kind != "removed"
        return Entry(
            kind=change.kind,
            dtype=change.dtype if is_there and not change.is_sub_byte else None,
            shape=change.shape if is_there else None,
            units=units,
            changed=changed,
            nbytes=nbytes,
            base=record.base,
            target=record.target,
            codes=dict(record.codes),
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

        change = self._change(name)
        record = change.record
        if change.kind == "removed":
            return np.zeros(0, np.int64), None
        if change.kind == "whole":
            values = np.frombuffer(change.values, np.uint8)
            indices = np.arange(values.size // unit_of(change.dtype))
        else:
            indices = np.empty(record.changed, np.int64)
            record.positions(indices)
            if record.codes.get("add8"):
                return indices, None
            values = np.empty(record.changed * record.unit, np.uint8)
            record.new_values(None, values)
        try:
            return indices, values.view(_getdtype(change.dtype))
        except KeyError:  # NumPy has no such type
            return indices, values.view(f"u{unit_of(change.dtype)}")

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
        count = len(self.names)
        changes = f"{count:,} tensor{'' if count == 1 else 's'}"
        return f"<Patch {self.path}: {changes}, {self.base} -> {self.target}>"

    def _repr_html_(self) -> str | None:
        from .._outline.views import of_patch

        return of_patch(self)

    def _change(self, name: str) -> Change:
        """Reads a record and its values, and checks them. Raises PatchError."""
        meta = self._file.get_tensor_meta("r/" + name)
        if meta.dtype != "U8" or len(meta.shape) != 1:
            self._fail(f"its record is {meta.dtype} {meta.shape}, not U8 [n]", name)
        raw = self._read(meta)
        values, dtype = b"", "U8"
        shape: tuple[int, ...] = ()
        has_values = "v/" + name in self._file
        if has_values:
            meta = self._file.get_tensor_meta("v/" + name)
            values, dtype, shape = self._read(meta), meta.dtype, tuple(meta.shape)
        label = f"{self.path}: tensor `{clipped(name)}`"
        # A path may have bytes that are not UTF-8.
        label = label.encode("utf-8", "backslashreplace").decode()
        with named(self.path, name):
            record = _core._PatchRecord(raw, values, dtype, self.algorithm, label)
        if has_values == (record.kind == "removed"):
            self._fail(
                f"its record says {record.kind}, and it has {'' if has_values else 'no '}values",
                name,
            )
        if record.kind != "blocks":
            return Change(self, name, record, values, dtype, shape, False)
        if len(shape) != 1:
            self._fail(f"its values have the shape {list(shape)}, not [n]", name)
        is_sub_byte = bool(raw[_FLAGS] & _SUB_BYTE)
        return Change(self, name, record, values, dtype, tuple(record.shape), is_sub_byte)

    def _read(self, meta: TensorMeta) -> bytes:
        begin, end = meta.data_offsets
        return _core._read_range(self._file, self._data_begin + begin, end - begin)

    def _nbytes(self, name: str) -> int:
        keys = ["r/" + name] + ["v/" + name] * ("v/" + name in self._file)
        places = [self._file.get_tensor_meta(key).data_offsets for key in keys]
        return sum(end - begin for begin, end in places)

    def _fail(self, what: str, name: str | None = None) -> NoReturn:
        where = "" if name is None else f"tensor `{clipped(name)}`: "
        raise error_of(PatchError, f"{self.path}: {where}{what}", self.path, name)


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
        from .._remote.redact import redact

        return redact(str(source))
    return os.fsdecode(source)


def error_of(
    kind: type[PatchError], text: str, path: str | None = None, name: str | None = None
) -> PatchError:
    """Returns an error with its fields."""
    return failure_of(kind, _CODES[kind], text, path=path, subject=name)


@contextlib.contextmanager
def named(path: str, name: str) -> Iterator[None]:
    """Adds the patch and the tensor to errors of the codec."""
    try:
        yield
    except PatchError as error:
        error.path, error.subject = path, name
        raise


def unit_of(dtype: str) -> int:
    """Returns the bytes that change together."""
    return max(1, int(_core._dtypes()[dtype]["bits"]) // 8)


def is_sub_byte(dtype: str) -> bool:
    return int(_core._dtypes()[dtype]["bits"]) % 8 != 0


def _quoted(value: object) -> str:
    return clipped(json.dumps(value))


def _texts(text: str, path: str) -> dict[str, str] | None:
    """Parses a JSON object of strings. Returns None if it is not one.

    Raises:
        PatchError: it exceeds a limit.
    """
    try:
        found = _json.loads(
            text,
            f"{path}: `metadata`",
            error=lambda why: error_of(PatchError, why, path, "metadata"),
        )
    except PatchError:
        raise
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return None
    return found
