"""What is wrong with a file that the core refuses: a word for scripts, and details."""

import os
from typing import Any, NamedTuple

from .. import _json
from .._core import SafetensorError, _file_kind
from .._dtypes import BITS
from .._reading import LENGTH_NBYTES, Version, version_of
from . import text
from .dtypes import element_count
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

_UNREADABLE = ("io", "file_changed", "invalid_argument")

_MAX_HEADER_NBYTES = 8_000_000
"""Larger headers get the core's words only: entries of Python take more than their text."""
_PADDING = b" \t\r\n\0"
"""What stands around headers of other writers: the format has spaces after them only."""
METADATA = "__metadata__"
_MAX_DETAILS = 10
_MAX_AXES = 64  # a product of thousands of axes is a number of thousands of digits


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may repeat."""


class HeaderEntry(NamedTuple):
    """A tensor of a damaged header."""

    name: str
    begin: int
    end: int
    needed: int | None
    """Bytes by its shape and type, if these can be read."""
    fields: Pairs


class DamagedHeader(NamedTuple):
    """A header that need not be valid, but is JSON."""

    pairs: Pairs
    data_begin: int
    data_nbytes: int
    version: Version

    def entries(self) -> list[HeaderEntry]:
        """Returns the tensors whose place can be read, in the order of their places."""
        found = [each for name, value in self.pairs if (each := _entry(name, value)) is not None]
        return sorted(found, key=lambda entry: (entry.begin, entry.end))


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


def kind_in(error: SafetensorError) -> str:
    """Returns what the text of an error says about a file of another format, with its path; nothing
    if it says nothing. That its first bytes are no header length is then no news."""
    text = str(error)
    place = f" (in {error.path})"
    _, found, kind = text.removesuffix(place).partition(". This is ")
    if not found or error.code not in _CODES_OF_LENGTH or not text.endswith(place):
        return ""
    return f"{error.path}: this is {kind}"


def _kind_of(error: SafetensorError) -> str:
    if error.code == "incomplete_data":
        # The subject is a tensor whose bytes are missing.
        return "trailing-data" if error.subject is None else "truncated"
    return _KINDS[str(error.code)]


def is_unreadable(error: SafetensorError) -> bool:
    """Returns whether an error is one of reading, and not about what was read."""
    return isinstance(error, OSError) or error.code in _UNREADABLE


def read_damaged(path: str) -> DamagedHeader | None:
    """Reads the header of a file that the core refuses. Returns None if it is no JSON object."""
    if path == STDIN:
        return None  # it has been read
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        nbytes = status.st_size
        length = int.from_bytes(file.read(LENGTH_NBYTES), "little")
        if nbytes < LENGTH_NBYTES or length > min(_MAX_HEADER_NBYTES, nbytes - LENGTH_NBYTES):
            return None
        header = file.read(length)
    try:
        pairs = _json.loads(header.strip(_PADDING), path, object_of=Pairs)
    except (SafetensorError, ValueError, RecursionError):
        return None
    begin = LENGTH_NBYTES + length
    if not isinstance(pairs, Pairs):
        return None
    return DamagedHeader(pairs, begin, nbytes - begin, version_of(status))


def details(damaged: DamagedHeader | None) -> list[str]:
    """Everything that can be said of a damaged file's tensors, after the core's first complaint."""
    if damaged is None:
        return []
    found = repeated_names(damaged.pairs)
    found += [said for entry in damaged.entries() if (said := wrong_size(entry))]
    found += _holes_and_overlaps(damaged)
    if len(found) > _MAX_DETAILS:
        found[_MAX_DETAILS:] = [f"... and {len(found) - _MAX_DETAILS:,} more"]
    return found


def _entry(name: str, value: object) -> HeaderEntry | None:
    if name == METADATA or not isinstance(value, Pairs):
        return None
    fields = dict(value)
    offsets, shape = _sizes(fields.get("data_offsets")), _sizes(fields.get("shape"))
    dtype = fields.get("dtype")
    if offsets is None or len(offsets) != 2:
        return None
    needed = None
    if shape is not None and len(shape) <= _MAX_AXES and isinstance(dtype, str) and dtype in BITS:
        bits = element_count(shape) * BITS[dtype]
        needed = bits // 8 if bits % 8 == 0 else None
    return HeaderEntry(name, offsets[0], offsets[1], needed, value)


def _sizes(value: object) -> list[int] | None:
    if not isinstance(value, list) or isinstance(value, Pairs):
        return None
    return value if all(type(item) is int and 0 <= item < 1 << 64 for item in value) else None


def repeated_names(pairs: Pairs) -> list[str]:
    counts: dict[str, int] = {}
    for name, _ in pairs:
        counts[name] = counts.get(name, 0) + 1
    return [
        f"`{text.clipped(name)}` occurs {count} times in the header"
        for name, count in counts.items()
        if count > 1
    ]


def wrong_size(entry: HeaderEntry) -> str:
    """Returns what is wrong with the size of a tensor, or nothing."""
    if entry.needed is None or entry.needed == entry.end - entry.begin:
        return ""
    return (
        f"tensor `{text.clipped(entry.name)}` takes "
        f"{text.count(entry.needed, 'byte')} by its shape and type, "
        f"{entry.end - entry.begin:,} by its offsets"
    )


def overlap(entry: HeaderEntry, position: int) -> str:
    """Returns how far a tensor overlaps those before it, which end at a position, or nothing."""
    if entry.begin >= min(position, entry.end):
        return ""
    return (
        f"tensor `{text.clipped(entry.name)}` overlaps the one before by "
        f"{text.count(min(position, entry.end) - entry.begin, 'byte')}"
    )


def _holes_and_overlaps(damaged: DamagedHeader) -> list[str]:
    entries, data_nbytes = damaged.entries(), damaged.data_nbytes
    found, position = [], 0
    for entry in entries:
        if entry.begin > position:
            found.append(
                f"hole of {text.count(entry.begin - position, 'byte')} before tensor "
                f"`{text.clipped(entry.name)}`, at {position:,} of the data"
            )
        elif said := overlap(entry, position):
            found.append(said)
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
