"""The folders of tests/data/model_folders.txt, on disk and behind URLs."""

import json
import os
import pathlib
import re
from typing import NamedTuple
from xml.sax.saxutils import escape

from support import file_builder
from support.servers import Answer, RangeServer

TABLE = pathlib.Path(__file__).parents[2] / "data" / "model_folders.txt"


class Choice(NamedTuple):
    """What is chosen in a folder, and what the answer is."""

    arguments: dict
    files: list
    """Empty for an error."""
    is_warned: bool
    code: str
    """Of an error."""


class Folder(NamedTuple):
    """A row of the table."""

    title: str
    files: list
    """Those that exist, in the folder and below."""
    dead: list
    """Links to nothing."""
    indexes: dict
    """The files that each index names, as it spells them."""
    choices: list

    def contents(self):
        """Returns the bytes of each file. A tensor's name tells its file."""
        found = {}
        for name in self.files:
            if name in self.indexes:
                files = self.indexes[name]
                weight_map = {tensor_in(each): each for each in files}
                found[name] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
            elif name.endswith(".safetensors") and not name.startswith("."):
                info = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
                found[name] = file_builder.from_entries({tensor_in(name): info}, b"\0\0\x80\x3f")
            else:
                found[name] = b"{}"
        return found

    def make(self, path):
        """Makes the folder on disk."""
        for name, content in self.contents().items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        for name in self.dead:
            os.symlink("nowhere", path / name)
        path.mkdir(exist_ok=True)


def tensor_in(file):
    """Returns the name of the tensor in a file."""
    return "in " + file.removeprefix("./")


def files_of(tensors):
    """Returns the files of tensors, in the order of their names."""
    return sorted(name.removeprefix("in ") for name in tensors)


def expanded(text):
    """Returns the files that words stand for."""
    found = []
    for word in text.split():
        numbered = re.fullmatch(r"(.*)\*(-of-(\d+).*)", word)
        count = int(numbered[3]) if numbered else 0
        found += [f"{numbered[1]}{i + 1:05}{numbered[2]}" for i in range(count)] or [word]
    return found


def folders():
    """Returns the rows of the table."""
    rows = []
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            rows.append(Folder(line, [], [], {}, []))
            continue
        row = rows[-1]
        words, arrow, answer = line.partition("->")
        if arrow:
            row.choices.append(_choice(words, answer))
            continue
        names, _, named = line.partition(" = ")
        for name in expanded(names):
            (row.dead if name.startswith("@") else row.files).append(name.removeprefix("@"))
            if named:
                row.indexes[name] = expanded(named)
    return rows


def _choice(words, answer):
    arguments = dict(word.split("=") for word in words.split())
    files = expanded(answer)
    if files[0].startswith("k"):
        code = re.sub(r"(?<!^)([A-Z])", r"_\1", files[0][1:]).lower()
        return Choice(arguments, [], False, code)
    is_warned = files[-1] == "!"
    return Choice(arguments, sorted(files[: len(files) - is_warned]), is_warned, "")


class Bucket(RangeServer):
    """A server that also lists its files, as S3 does."""

    def content(self, request):
        """Returns a file, or the listing of a folder."""
        if "list-type=2" not in request.query:
            return super().content(request)
        prefix = re.search(r"prefix=([^&]*)", request.query)
        folder = request.path.rstrip("/") + "/" + (prefix[1].replace("%2F", "/") if prefix else "")
        names = [name for name in self.files if name.startswith(folder)]
        rows = "".join(
            f"<Contents><Key>{escape(name.split('/', 2)[2])}</Key><Size>1</Size>"
            "<LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>x</ETag></Contents>"
            for name in sorted(names)
            if "/" not in name.removeprefix(folder)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return Answer(200, {"Content-Type": "application/xml"}, body.encode())
