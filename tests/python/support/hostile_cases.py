"""Reads the table tests/data/hostile.json, which tests/cpp reads too.

The first lines of the table describe its rows.
"""

import json
import struct
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parents[2] / "data" / "hostile.json"


class HostileCase(NamedTuple):
    """A file and the result of reading it: an ErrorCode, or "ok"."""

    name: str
    expect: str
    row: dict
    i: int = 0

    @property
    def heavy(self):
        """Whether the file has tens of megabytes."""
        return "heavy" in self.row

    def file(self):
        """Returns the bytes of the file."""
        row = self.row
        if "file" in row:
            return _part(row["file"], self.i)
        header = _part(row["header"], self.i)
        if "put" in row:
            at = self._number("at")
            header = header[:at] + _part(row["put"], self.i) + header[at:]
        length = self._number("length") if "length" in row else len(header)
        content = struct.pack("<Q", length) + header + bytes(self._number("data"))
        return content[: len(content) - self._number("cut")]

    def _number(self, field):
        value = self.row.get(field, 0)
        return self.i if value == "i" else value


def _each(part):
    text, count = part["each"].replace("'", '"'), part["count"]
    order = range(count - 1, -1, -1) if "reverse" in part else range(count)
    return ",".join(text.replace("{i}", str(i)).replace("{n}", str(i + 1)) for i in order)


def _part(part, i):
    if isinstance(part, str):
        return part.replace("'", '"').encode()
    if isinstance(part, list):
        return b"".join(_part(inner, i) for inner in part)
    if "hex" in part:
        return bytes.fromhex(part["hex"])
    if "byte" in part:
        return bytes([i if part["byte"] == "i" else part["byte"]])
    if "repeat" in part:
        return _part(part["repeat"], i) * (i if part["count"] == "i" else part["count"])
    return _each(part).encode()


def read():
    """Returns all cases. A row with `from` and `to` is a case for each number between them."""
    found = []
    for row in json.loads(TABLE.read_text())["rows"]:
        if "from" not in row:
            found.append(HostileCase(row["name"], row["expect"], row))
            continue
        for i in range(row["from"], row["to"] + 1):
            found.append(HostileCase(f"{row['name']}, {i}", row["expect"], row, i))
    return found


ALL = read()
LIGHT = [case for case in ALL if not case.heavy]
HEAVY = [case for case in ALL if case.heavy]
