"""Reads files that the core refuses although all of their tensors are there.

    file      [length][header][tensors, holes, more bytes]
                  |                 |
    reader    [length][header][tensors]      which the core reads, and checks, in its place

Nothing is guessed: names, types, shapes and places of the tensors are those that the header states,
and must agree with each other.
"""

import bisect
import json
import os
import shlex
from typing import Any, NamedTuple

from .. import SafetensorError
from .._reading import Version, read_some
from .._shards import ShardFile
from . import diagnose, text
from .errors import CliError
from .opening import open_regular, refuse_changed
from .reader import File, complaint

_MAX_NAMED = 5


class Piece(NamedTuple):
    """Bytes that the reader takes from the file."""

    begin: int
    """Their place for the reader."""
    at: int
    """Their place in the file."""
    nbytes: int


class Repair(NamedTuple):
    """What a damaged file is read as."""

    prologue: bytes
    pieces: list[Piece]
    remarks: list[str]
    version: Version
    """That of the file."""


def command(path: str) -> str:
    """Returns the command that repairs a file."""
    return f"safetensors convert --lenient {shlex.quote(path)} repaired.safetensors"


def open_lenient(path: str) -> tuple[File, list[str]]:
    """Opens a file, and returns what was repaired.

    Raises:
        CliError: the tensors are not all there, or more than one reading is possible.
        SafetensorError: the file cannot be read.
    """
    try:
        return File(path), []
    except SafetensorError as error:
        if diagnose.is_unreadable(error):
            raise
        refused = error
    try:
        repair = plan(path, diagnose.read_damaged(path))
    except CliError as error:
        raise CliError(f"{path}: {complaint(refused, path)}; not repaired: {error}") from None
    from .remote import open_all

    (file,) = open_all([ShardFile(path, reader=lambda: _Reader(path, repair))])
    return file, repair.remarks


def plan(path: str, damaged: "diagnose.DamagedHeader | None") -> Repair:
    """Returns what a file is read as. Raises CliError, which says why it cannot be repaired."""
    if damaged is None:
        raise CliError("the header cannot be read")
    for said in diagnose.repeated_names(damaged.pairs):
        raise CliError(said)
    remarks: list[str] = []
    header: dict[str, Any] = {}
    names = [name for name, _ in damaged.pairs if name != diagnose.METADATA]
    metadata = dict(damaged.pairs).get(diagnose.METADATA)
    if metadata is not None:
        header[diagnose.METADATA] = _as_text(metadata, remarks)
    entries = damaged.entries()
    readable = {entry.name for entry in entries if entry.needed is not None}
    for name in names:
        if name not in readable:
            raise CliError(f"the entry of tensor `{text.clipped(name)}` cannot be read")
    pieces: list[Piece] = []
    position = end = holes = 0
    for entry in entries:
        nbytes = entry.end - entry.begin
        for said in (diagnose.wrong_size(entry), diagnose.overlap(entry, end)):
            if said:
                raise CliError(said)
        if entry.end > damaged.data_nbytes:
            raise CliError(f"bytes of tensor `{text.clipped(entry.name)}` are missing")
        fields = dict(entry.fields)
        if len(fields) < len(entry.fields):
            raise CliError(f"tensor `{text.clipped(entry.name)}` states a field twice")
        header[entry.name] = {**fields, "data_offsets": [position, position + nbytes]}
        if nbytes:
            pieces.append(Piece(position, damaged.data_begin + entry.begin, nbytes))
            holes += entry.begin - end
            end = entry.end
        position += nbytes
    if holes:
        remarks.append(f"left out {text.count(holes, 'byte')} between tensors")
    if end < damaged.data_nbytes:
        left = text.count(damaged.data_nbytes - end, "byte")
        remarks.append(f"left out {left} after the last tensor")
    encoded = json.dumps(header).encode()
    prologue = len(encoded).to_bytes(8, "little") + encoded
    moved = [piece._replace(begin=len(prologue) + piece.begin) for piece in pieces]
    repair = Repair(prologue, moved, remarks or ["wrote the header anew"], damaged.version)
    _refuse_what_the_core_refuses(path, repair)
    return repair


def _refuse_what_the_core_refuses(path: str, repair: Repair) -> None:
    reader = _Reader(path, repair)
    try:
        from .._core import safe_open

        safe_open(reader, "np").close()
    except SafetensorError as error:
        raise CliError(complaint(error, path)) from None


def _as_text(metadata: Any, remarks: list[str]) -> dict[str, str]:
    """Returns metadata whose values are text: others become their JSON."""
    if not isinstance(metadata, diagnose.Pairs):
        raise CliError(f"`{diagnose.METADATA}` is not an object")
    found: dict[str, str] = {}
    changed: list[str] = []
    for key, value in metadata:
        new = value if isinstance(value, str) else _as_json(value)
        if found.setdefault(key, new) != new:
            raise CliError(f"metadata `{text.clipped(key)}` has two values")
        if not isinstance(value, str):
            changed.append(f"`{text.clipped(key)}`")
    if changed:
        named = ", ".join(changed[:_MAX_NAMED]) + (", ..." if len(changed) > _MAX_NAMED else "")
        remarks.append(f"wrote values of the metadata that were not text as JSON: {named}")
    return found


def _as_json(value: Any) -> str:
    """Returns the JSON of a value, with the keys of objects as often as they are there."""
    if isinstance(value, diagnose.Pairs):
        return "{" + ", ".join(f"{json.dumps(k)}: {_as_json(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """A RangeReader of a repaired file."""

    def __init__(self, path: str, repair: Repair) -> None:
        self.name = path
        self._file = open_regular(path)
        self._repair = repair

    def open(self, nbytes: int) -> tuple[int, bytes]:
        last = self._repair.pieces[-1] if self._repair.pieces else None
        size = len(self._repair.prologue) if last is None else last.begin + last.nbytes
        return size, self.read(0, min(nbytes, size))

    def read(self, offset: int, nbytes: int) -> bytes:
        pieces, found = self._repair.pieces, bytearray(self._repair.prologue[offset:][:nbytes])
        at = max(bisect.bisect_right(pieces, offset, key=lambda piece: piece.begin) - 1, 0)
        while len(found) < nbytes:
            piece = pieces[at]
            begin = offset + len(found) - piece.begin
            left = min(nbytes - len(found), piece.nbytes - begin)
            data = read_some(self._file, piece.at + begin, left) if left else b""
            if left and not data:
                raise CliError(f"{self.name}: the file became shorter while it was read")
            found += data
            at += len(data) == left
        refuse_changed(self.name, self._repair.version, os.fstat(self._file.fileno()))
        return bytes(found)

    def close(self) -> None:
        self._file.close()
