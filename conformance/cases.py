"""Makes the files that cases.json describes, and says what to expect of each; see README.md.

python cases.py FOLDER
"""

import hashlib
import json
import math
import struct
import sys
from pathlib import Path
from typing import NamedTuple

TABLE = json.loads((Path(__file__).resolve().parent / "cases.json").read_text(encoding="utf-8"))
NARROW = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits of the types narrower than a byte
BYTES = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1, "BOOL": 1}
BYTES |= {"U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
BYTES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8}


class Case(NamedTuple):
    """A file and the result of reading it: an ErrorCode, or "ok"."""

    name: str
    expect: str
    row: dict
    i: int = 0

    @property
    def heavy(self):
        """Whether the file has tens of megabytes."""
        return "heavy" in self.row

    @property
    def verdict(self):
        """Returns "must accept", "must reject" or "may"."""
        return TABLE["rules"][self.row["rule"]]["verdict"]

    def file(self):
        """Returns the bytes of the file."""
        row = self.row
        if "file" in row:
            return part(row["file"], self.i)
        header = part(row["header"], self.i)
        if "put" in row:
            at = self._number("at")
            header = header[:at] + part(row["put"], self.i) + header[at:]
        length = self._number("length") if "length" in row else len(header)
        content = struct.pack("<Q", length) + header + bytes(self._number("data"))
        return content[: len(content) - self._number("cut")]

    def _number(self, field):
        value = self.row.get(field, 0)
        return self.i if value == "i" else value


def part(value, i=0):
    """Returns the bytes of a part."""
    if isinstance(value, str):
        return value.replace("'", '"').encode()
    if isinstance(value, list):
        return b"".join(part(inner, i) for inner in value)
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    if "byte" in value:
        return bytes([i if value["byte"] == "i" else value["byte"]])
    if "repeat" in value:
        return part(value["repeat"], i) * (i if value["count"] == "i" else value["count"])
    text, count = value["each"].replace("'", '"'), value["count"]
    order = range(count - 1, -1, -1) if "reverse" in value else range(count)
    return ",".join(text.replace("{i}", str(k)).replace("{n}", str(k + 1)) for k in order).encode()


def reads():
    """Returns all cases. A row with `from` and `to` is a case for each number between them."""
    found = []
    for row in TABLE["reads"]:
        if "from" not in row:
            found.append(Case(row["name"], row["expect"], row))
            continue
        for i in range(row["from"], row["to"] + 1):
            found.append(Case(f"{row['name']}, {i}", row["expect"], row, i))
    return found


def nbytes(dtype, shape):
    """Returns the bytes of a tensor; None if they are not whole, or the type is not known."""
    bits = math.prod(shape) * (NARROW.get(dtype) or 8 * BYTES.get(dtype, math.nan))
    return bits // 8 if bits % 8 == 0 else None


def _unique(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def contents(file):
    """Returns what a valid file holds: ({name: [dtype, shape, bytes]}, metadata).

    Raises ValueError if the file is not valid. It is meant for files of the table that are
    accepted, and for files that a subject has written; it does not check everything.
    """
    if len(file) < 8 or int.from_bytes(file[:8], "little") > min(len(file) - 8, 100_000_000):
        raise ValueError("the header's length is wrong")
    start = 8 + int.from_bytes(file[:8], "little")
    text = file[8:start].decode()
    if not text.startswith("{") or not text.rstrip(" ").endswith("}"):
        raise ValueError("the header does not start with { or does not end with } and spaces")
    entries = json.loads(text, object_pairs_hook=_unique)
    metadata = entries.pop("__metadata__", None) or {}
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata has a value that is not a string")
    found, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if begin != end or stop - begin != nbytes(dtype, shape):
            raise ValueError(f"the range of tensor {name!r} is wrong")
        found[name], end = [dtype, shape, file[start + begin : start + stop]], stop
    if start + end != len(file):
        raise ValueError("the data is longer or shorter than the tensors")
    return found, metadata


def digest(data):
    """Returns the digest of a tensor's bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def values(file):
    """Returns what a valid file holds, in the form of a subject's answer. Raises as contents()."""
    tensors, metadata = contents(file)
    found = {name: [dtype, shape, digest(data)] for name, (dtype, shape, data) in tensors.items()}
    return {"tensors": found, "metadata": metadata}


def _row(name, row, files, part=(), answer=None):
    """Returns a row of expected.json; `answer` is left out where there is none to compare with."""
    verdict = TABLE["rules"][row["rule"]]["verdict"]
    found = {"name": name, "rule": row["rule"], "verdict": verdict, "files": files, "part": part}
    return found if answer is None or verdict == "must reject" else {**found, "answer": answer}


def write_read(folder, stem, case):
    """Writes the file of a case of `reads`, and returns its row."""
    path, data = folder / f"{stem}.safetensors", case.file()
    path.write_bytes(data)
    answer = values(data) if case.expect == "ok" and not case.heavy else None
    return _row(case.name, case.row, [path.name], answer=answer)


def _write_spec(folder, stem, row):
    path = folder / f"{stem}.json"
    spec = {key: row[key] for key in ("tensors", "metadata") if key in row}
    path.write_text(json.dumps(spec), encoding="utf-8")
    tensors = {
        t["name"]: [t["dtype"], t["shape"], digest(bytes.fromhex(t["bytes"]))]
        for t in row["tensors"]
    }
    answer = {"tensors": tensors, "metadata": row.get("metadata", {})}
    return _row(row["name"], row, [path.name, f"{stem}.out"], answer=answer)


def _slice(row):
    part, answer = [row["tensor"], row["index"]], None
    if "shape" in row:
        answer = {"shape": row["shape"], "digest": digest(bytes.fromhex(row["bytes"]))}
    return _row("{}[{}]".format(*part), row, ["slices.safetensors"], part, answer)


def write(folder, match=""):
    """Writes the files of all cases with `match` in their name, except the heavy ones.

    Returns the content of expected.json.
    """
    light = enumerate(case for case in reads() if not case.heavy)
    writes, slices = enumerate(TABLE["writes"]), map(_slice, TABLE["slices"]["rows"])
    file = Case("slices", "ok", TABLE["slices"]["file"]).file()
    (folder / "slices.safetensors").write_bytes(file)
    found = {
        "read": [write_read(folder, f"{i:04}", case) for i, case in light if match in case.name],
        "write": [_write_spec(folder, f"{i:04}", row) for i, row in writes if match in row["name"]],
        "slice": [row for row in slices if match in row["name"]],
    }
    return {"rules": TABLE["rules"], "cases": found}


def main():
    """Writes the files and expected.json to a folder, and prints a line for each file to read."""
    if len(sys.argv) != 2:
        print("usage: python cases.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    expected = write(folder)
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    for row in expected["cases"]["read"]:
        print(*row["files"], row["verdict"], row["rule"], row["name"], sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
