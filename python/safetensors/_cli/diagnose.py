"""What is wrong with a file that the core refuses: a word for scripts, and details."""

from typing import Any, NamedTuple

from .. import _json
from .._core import SafetensorError, _file_kind
from . import text
from .dtypes import BITS, element_count
from .opening import STDIN

# From the code of each error of the core about a header to a kind.
_KINDS = {
    "header_too_small": "truncated",
    "invalid_header_length": "truncated",
    "header_too_large": "no-safetensors",
    "invalid_header_utf8": "header",
    "invalid_header_json": "header",
    "duplicate_name": "duplicate",
    "invalid_offset": "layout",
    "invalid_tensor_info": "tensor",
    "overflow": "tensor",
    "misaligned_slice": "tensor",
}
# A file of another format has no header length that fits.
_CODES_OF_LENGTH = ("header_too_small", "invalid_header_length", "header_too_large")
# Other formats that are a kind of their own.
_FORMATS = (
    "git-lfs-pointer", "zip", "pickle", "gguf", "npy", "hdf5", "compressed", "html", "json",
)  # fmt: skip

START_NBYTES = 64
"""So many bytes tell the format of a file."""

_LENGTH_NBYTES = 8
_MOST_HEADER_NBYTES = 8_000_000
"""Larger headers get the core's words only: entries of Python take more than their text."""
_MOST_DETAILS = 10
_MOST_AXES = 64  # a product of thousands of axes is a number of thousands of digits


class _Entry(NamedTuple):
    name: str
    begin: int
    end: int
    needed: int | None
    """Bytes by its shape and type, if these can be read."""


def verdict_on(error: SafetensorError, start: bytes, complaint: str) -> tuple[str, str]:
    """Returns the kind of damage and a message about it, given the file's first bytes.

    The message is the complaint, but for a file of another format: that its first bytes are no
    header length is then no news.
    """
    found = _file_kind(start) if error.code in _CODES_OF_LENGTH else None
    kind = _kind_of(error)
    if found is None:
        return kind, complaint
    name, description = found
    return name if name in _FORMATS else kind, f"this is {description}"


def _kind_of(error: SafetensorError) -> str:
    if error.code == "incomplete_data":
        # The subject is a tensor whose bytes are missing.
        return "trailing-data" if error.subject is None else "truncated"
    return _KINDS[str(error.code)]


def details(path: str) -> list[str]:
    """Everything that can be said of a damaged file's tensors, after the core's first complaint."""
    if path == STDIN:
        return []  # it has been read
    with open(path, "rb") as file:
        nbytes = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_NBYTES), "little")
        if nbytes < _LENGTH_NBYTES or length > min(_MOST_HEADER_NBYTES, nbytes - _LENGTH_NBYTES):
            return []
        header = file.read(length)
    try:
        pairs = _json.loads(header, path, object_of=_Pairs)
    except (SafetensorError, ValueError, RecursionError):
        return []
    if not isinstance(pairs, _Pairs):
        return []
    entries = [entry for entry in (_entry(name, value) for name, value in pairs) if entry]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    found = _repeated_names(pairs)
    found += _wrong_sizes(entries)
    found += _holes_and_overlaps(entries, nbytes - _LENGTH_NBYTES - length)
    if len(found) > _MOST_DETAILS:
        found[_MOST_DETAILS:] = [f"... and {len(found) - _MOST_DETAILS:,} more"]
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object whose keys may repeat."""


def _entry(name: str, value: object) -> _Entry | None:
    if name == "__metadata__" or not isinstance(value, _Pairs):
        return None
    fields = dict(value)
    offsets, shape = _sizes(fields.get("data_offsets")), _sizes(fields.get("shape"))
    dtype = fields.get("dtype")
    if offsets is None or len(offsets) != 2:
        return None
    needed = None
    if shape is not None and len(shape) <= _MOST_AXES and isinstance(dtype, str) and dtype in BITS:
        bits = element_count(shape) * BITS[dtype]
        needed = bits // 8 if bits % 8 == 0 else None
    return _Entry(name, offsets[0], offsets[1], needed)


def _sizes(value: object) -> list[int] | None:
    if not isinstance(value, list) or isinstance(value, _Pairs):
        return None
    return value if all(type(item) is int and 0 <= item < 1 << 64 for item in value) else None


def _repeated_names(pairs: _Pairs) -> list[str]:
    counts: dict[str, int] = {}
    for name, _ in pairs:
        counts[name] = counts.get(name, 0) + 1
    return [
        f"`{text.clipped(name)}` occurs {count} times in the header"
        for name, count in counts.items()
        if count > 1
    ]


def _wrong_sizes(entries: list[_Entry]) -> list[str]:
    return [
        f"tensor `{text.clipped(entry.name)}` takes "
        f"{text.count(entry.needed, 'byte')} by its shape and type, "
        f"{entry.end - entry.begin:,} by its offsets"
        for entry in entries
        if entry.needed is not None and entry.needed != entry.end - entry.begin
    ]


def _holes_and_overlaps(entries: list[_Entry], data_nbytes: int) -> list[str]:
    found, position = [], 0
    for entry in entries:
        if entry.begin > position:
            found.append(
                f"hole of {text.count(entry.begin - position, 'byte')} before tensor "
                f"`{text.clipped(entry.name)}`, at {position:,} of the data"
            )
        elif entry.begin < min(position, entry.end):
            found.append(
                f"tensor `{text.clipped(entry.name)}` overlaps the one before by "
                f"{text.count(min(position, entry.end) - entry.begin, 'byte')}"
            )
        position = max(position, entry.end)
    if position > data_nbytes:
        whole = sum(entry.end <= data_nbytes for entry in entries)
        found.append(
            f"missing at the end: {text.count(position - data_nbytes, 'byte')}; "
            f"whole tensors: {whole:,} of {len(entries):,}"
        )
    elif position < data_nbytes:
        found.append(f"after the last tensor: {text.count(data_nbytes - position, 'byte')}")
    return found
