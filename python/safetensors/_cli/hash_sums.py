"""Writes the sums of a model, and compares a model with its sums: for `hash`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._checking import digests as _digests
from .._checking import sums as _sums
from .._checking.digests import Found
from .._checking.sums import SHA256, XXH3, Digests, Sums
from .._paths import is_url
from .._reading import LENGTH_NBYTES, MAX_HEADER_NBYTES
from ..sums import Place, _make
from . import text
from .errors import CliError
from .model import Index, Placed, choice_of, files_of
from .opening import STDIN, open_regular
from .output import Advance, Output
from .reader import File, SafetensorError, Tensor, complaint

_BLOCK_NBYTES = 8
THREADS = 8 if hasattr(os, "pread") else 1
"""Of local files: without `pread`, a file has one position that all threads share."""


def digests(
    placed: Mapping[str, Placed], algorithms: Sequence[str], advance: Advance, threads: int
) -> dict[str, Digests]:
    """Returns the digests of tensors."""
    found: dict[str, Digests] = {}
    tasks = _digests.Tasks(advance)
    for name, (file, tensor) in placed.items():

        def done(result: _digests.Found, name: str = name) -> None:
            found[name] = result.digests

        tasks.add_tensor(_job(file, tensor), algorithms, 0, done)
    tasks.run(threads)
    return found


def _job(file: File, tensor: Tensor) -> _digests.Job:
    return _digests.Job(
        tensor.name, tensor.dtype, tensor.shape, tensor.begin, tensor.nbytes, file.read
    )


def write(arguments: argparse.Namespace, out: Output) -> int:
    """Writes the sums beside a model, and prints their path and the digest of the whole."""
    _refuse_streams(arguments.path)
    choice = choice_of(arguments)
    algorithm = arguments.algorithm or XXH3
    with out.reported("hashing") as report:
        made = _make(arguments.path, algorithm, arguments.files, choice, report)
    made.write(fsync=False)
    whole = made.sums.whole()
    if arguments.json:
        out.json({"sums": made.place.sums, "whole": whole})
    else:
        out.line(f"{made.place.sums}: {algorithm}:{whole[algorithm]}")
    return 0


def check(arguments: argparse.Namespace, out: Output) -> int:
    """Compares a model with its sums, and prints what differs."""
    _refuse_streams(arguments.path)
    shards, index = files_of(arguments.path, choice_of(arguments))
    paths = [shard.path for shard in shards]
    place = Place.of(arguments.path, shards)
    where = arguments.check or place.existing()
    sums = _sums.read(where)
    checker = _Checker(sums, _algorithm(sums, where, arguments.algorithm))
    by_name = {place.name_of(path): path for path in paths}
    total = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    with out.progress("checking", total) as advance:
        for name in sorted(sums.files.keys() | by_name.keys()):
            checker.check_file(name, by_name.get(name) or place.path_of(name), advance)
    if index is not None:
        checker.check_index(index, place)
    if arguments.json:
        damaged = [each._asdict() for each in checker.damaged]
        out.json({"sums": where, "damaged": damaged, "problems": checker.problems})
        return 1 if damaged or checker.problems else 0
    for problem in checker.problems:
        out.line((problem, "red"))
    for each in checker.damaged:
        out.line((each.line(), "red"))
    for path in sorted({each.file for each in checker.damaged}):
        if os.path.getmtime(path) > os.path.getmtime(where):
            out.note(f"{path} is newer than its sums: if it was written anew, write new sums")
    if checker.damaged or checker.problems:
        return 1
    said = text.count(len(sums.tensors), "tensor")
    out.line(f"{arguments.path}: {said} as in {where} ({checker.algorithm})")
    return 0


class _DamagedRange(NamedTuple):
    tensor: str
    file: str
    begin: int
    """The first byte of the file that may be damaged."""
    end: int

    def line(self) -> str:
        return (
            f"{self.file}: tensor `{text.clipped(self.tensor)}` is damaged between bytes "
            f"{self.begin:,} and {self.end:,} of the file"
        )


class _Checker:
    """Compares files with sums, and collects what differs."""

    def __init__(self, sums: Sums, algorithm: str) -> None:
        self.algorithm = algorithm
        self.damaged: list[_DamagedRange] = []
        self.problems: list[str] = []
        self._sums = sums
        self._present: set[str] = set()
        self._names: dict[str, set[str]] = {file: set() for file in sums.files}
        for name, each in sums.tensors.items():
            self._names[each.file].add(name)

    def check_file(self, name: str, path: str, advance: Advance) -> None:
        """Checks a file and its tensors. Other files than the sums are of are a problem."""
        problem = self._file_problem(name, path)
        if problem:
            self.problems.append(f"{path}: {problem}")
            return
        try:
            with File(path) as file:
                found = self._digests_of(name, file, advance)
                for tensor in file.tensors:
                    self._check_tensor(file, tensor, found)
                names = {tensor.name for tensor in file.tensors}
                self._present |= names
        except SafetensorError as error:
            self.problems.append(f"{path}: {complaint(error, path)}")
            return
        for missing in sorted(self._names[name] - names):
            self.problems.append(f"{path}: tensor `{text.clipped(missing)}` is not in the file")

    def check_index(self, index: Index, place: Place) -> None:
        """Compares which tensors an index puts into which files."""
        file_of = {path: place.name_of(path) for path in set(index.weight_map.values())}
        for name in sorted(self._sums.tensors.keys() | index.weight_map.keys()):
            path, wanted = index.weight_map.get(name), self._sums.tensors.get(name)
            said = f"{index.path}: tensor `{text.clipped(name)}`"
            if path is None:
                self.problems.append(f"{said} is not in the index")
            elif wanted is not None and file_of[path] != wanted.file:
                self.problems.append(f"{said} is in {text.clipped(wanted.file)} by the sums")
            elif wanted is None and name not in self._present:
                self.problems.append(f"{said} is in no file")

    def _file_problem(self, name: str, path: str) -> str | None:
        wanted = self._sums.files.get(name)
        if wanted is None:
            return "the sums have no such file"
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return "the file is missing"
        with file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != wanted.nbytes:
                return f"the sums are of another file: of {wanted.nbytes:,} bytes, not {nbytes:,}"
            start = file.read(LENGTH_NBYTES) or b""
            length = int.from_bytes(start, "little")
            if length <= min(nbytes, MAX_HEADER_NBYTES):
                start += file.read(length) or b""
        digests = _digests.of_header(start)
        if any(digests[algorithm] != wanted.header[algorithm] for algorithm in wanted.header):
            return "the sums are of another file, or the header is damaged"
        return None

    def _digests_of(self, name: str, file: File, advance: Advance) -> dict[str, Found]:
        """Returns the digests of the tensors that have one in the sums. Compares the file's own."""
        found: dict[str, Found] = {}
        tasks = _digests.Tasks(advance)
        for tensor in file.tensors:
            wanted = self._sums.tensors.get(tensor.name)
            if wanted is None or wanted.file != name:
                continue

            def done(result: Found, name: str = tensor.name) -> None:
                found[name] = result

            block_size = self._sums.block_size if wanted.blocks is not None else 0
            tasks.add_tensor(_job(file, tensor), [self.algorithm], block_size, done)
        whole = self._sums.files[name].sha256
        if whole is not None:

            def compare(sha256: str) -> None:
                if sha256 != whole:
                    self.problems.append(f"{file.path}: the SHA-256 of the file is {sha256}")

            tasks.add_file(file.read, file.nbytes, compare)
        tasks.run(THREADS)
        return found

    def _check_tensor(self, file: File, tensor: Tensor, found: Mapping[str, Found]) -> None:
        said = f"{file.path}: tensor `{text.clipped(tensor.name)}`"
        if tensor.name not in found:
            self.problems.append(f"{said} has no digest")
            return
        wanted = self._sums.tensors[tensor.name]
        digests, blocks = found[tensor.name]
        is_same = digests[self.algorithm] == wanted.digests[self.algorithm]
        if wanted.blocks is None:
            if not is_same:
                end = tensor.begin + tensor.nbytes
                self.damaged.append(_DamagedRange(tensor.name, file.path, tensor.begin, end))
        elif is_same != (blocks == wanted.blocks) or len(blocks) != len(wanted.blocks):
            self.problems.append(f"{said}: its digest and its blocks in the sums disagree")
        elif not is_same:
            self._add_blocks(file.path, tensor, blocks, wanted.blocks)

    def _add_blocks(self, path: str, tensor: Tensor, blocks: bytes, wanted: bytes) -> None:
        """Adds the byte ranges of the blocks that differ. Adjacent blocks are one range."""
        size = self._sums.block_size
        last = -1
        for number in range(len(blocks) // _BLOCK_NBYTES):
            at = slice(number * _BLOCK_NBYTES, (number + 1) * _BLOCK_NBYTES)
            if blocks[at] == wanted[at]:
                continue
            begin = tensor.begin + number * size
            end = tensor.begin + min((number + 1) * size, tensor.nbytes)
            if last == number - 1 and last >= 0:
                begin = self.damaged.pop().begin
            self.damaged.append(_DamagedRange(tensor.name, path, begin, end))
            last = number


def _algorithm(sums: Sums, where: str, wanted: "str | None") -> str:
    """Returns the algorithm to check by, which all tensors have."""
    found: Any = sums.whole()
    algorithm = wanted or (XXH3 if XXH3 in found else SHA256)
    if algorithm not in found:
        raise CliError(f"{where}: not all tensors have a digest by {algorithm}")
    return algorithm


def _refuse_streams(path: str) -> None:
    if path == STDIN or is_url(path):
        raise CliError("sums are of files, not of standard input or URLs")
