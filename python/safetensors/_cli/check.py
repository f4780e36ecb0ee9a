"""Check whether files are complete and valid, and say what is wrong with those that are not.

The status is 0 if all are valid, 1 if one is not, 2 if one could not be read.
"""

import argparse
import contextlib
import os
from typing import Any, Iterator, NamedTuple

from .._shards import Shard
from . import diagnose, patches, text
from .errors import NEGATIVE, TROUBLE, CliError
from .model import Index, files_of, index_problems
from .opening import open_input
from .output import Output
from .reader import File, SafetensorError, complaint

EXAMPLES = """
safetensors check model.safetensors
safetensors check --read models/llama
safetensors check -q downloads/*.safetensors || echo damaged
"""

_MOST_PROBLEMS = 10
# Codes of errors of reading, not of what was read.
_UNREADABLE = ("io", "file_changed", "invalid_argument")


class _Verdict(NamedTuple):
    """The result for one path. `kind` is "ok", "unreadable", or one word for the fault."""

    path: str
    kind: str
    message: str
    details: list[str]


class _Damaged(Exception):
    """The core refuses the file."""

    def __init__(self, path: str, error: SafetensorError, start: bytes, details: list[str]) -> None:
        kind, message = diagnose.verdict_on(error, start, complaint(error, path))
        self.verdict = _Verdict(path, kind, message, details)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="path", nargs="+", help="files, folders, indexes; - is standard input"
    )
    parser.add_argument(
        "--read", action="store_true", help="also read all data, which finds bad disks"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(arguments: argparse.Namespace, out: Output) -> int:
    verdicts = []
    for path in arguments.paths:
        for verdict in _check(path, arguments.read, out):
            verdicts.append(verdict)
            if not arguments.json:
                _show(verdict, out)
    if arguments.json:
        out.json([verdict._asdict() for verdict in verdicts])
    kinds = {verdict.kind for verdict in verdicts}
    if "unreadable" in kinds:
        return TROUBLE
    return NEGATIVE if kinds - {"ok"} else 0


def _check(path: str, read: bool, out: Output) -> list[_Verdict]:
    try:
        shards, index = files_of(path)
    except (OSError, ImportError) as error:
        return [_Verdict(path, "unreadable", complaint(error, path), [])]
    except SafetensorError as error:
        kind = "unreadable" if error.code in _UNREADABLE else "index"
        return [_Verdict(path, kind, complaint(error, path), [])]
    except CliError as error:
        return [_Verdict(path, "index" if path.endswith(".json") else "unreadable", str(error), [])]
    files: list[File] = []
    try:
        verdicts = [_check_file(shard, index, read, files, out) for shard in shards]
        if index is not None:
            verdicts.append(_check_index(index, files, all(v.kind == "ok" for v in verdicts)))
        return verdicts
    finally:
        for file in files:
            file.close()


def _check_file(
    shard: Shard, index: Index | None, read: bool, files: list[File], out: Output
) -> _Verdict:
    path = shard.path
    try:
        # The check of an index later needs the headers, but not the open files.
        with _opened(shard) as file:
            if patches.is_patch(file):
                return _Verdict(path, *_verdict_on_patch(file), [])
            message = _summary(file)
            if read:
                _read_all(file, out)
    except _Damaged as damaged:
        return damaged.verdict
    except FileNotFoundError as error:
        if index is not None:
            return _Verdict(path, "missing", "the index names this file, but it does not exist", [])
        return _Verdict(path, "unreadable", complaint(error, path), [])
    except (OSError, SafetensorError, CliError, ImportError) as error:
        return _Verdict(path, "unreadable", complaint(error, path), [])
    if index is not None:
        files.append(file)
    return _Verdict(path, "ok", message, [])


@contextlib.contextmanager
def _opened(shard: Shard) -> Iterator[File]:
    """Opens a file, local or remote. Raises _Damaged for what the core refuses."""
    path = shard.path
    if shard.reader is None:
        with open_input(path) as opened:
            try:
                file = File(path, opened)
            except SafetensorError as error:
                if isinstance(error, OSError) or error.code in _UNREADABLE:
                    raise
                opened.seek(0)
                start = opened.read(diagnose.START_NBYTES) or b""
                raise _Damaged(path, error, start, diagnose.details(path)) from None
            yield file
        return
    from . import remote

    try:
        file = remote.RemoteFile(shard)
    except SafetensorError as error:
        if isinstance(error, OSError) or error.code in _UNREADABLE:
            raise
        raise _Damaged(path, error, remote.start_of(shard), []) from None
    with file:
        yield file


def _verdict_on_patch(file: File) -> tuple[str, str]:
    """Returns the kind and the message for a patch, all of which is read."""
    try:
        return "ok", patches.summary(file)
    except SafetensorError as error:
        if isinstance(error, OSError) or error.code in _UNREADABLE:
            raise
        return "patch", complaint(error, file.path).removeprefix(f"{file.path}: ")


def _summary(file: File) -> str:
    dtypes = sorted({tensor.dtype for tensor in file.tensors})
    words = [text.count(len(file.tensors), "tensor"), text.size(file.nbytes), *dtypes]
    return ", ".join(words)


def _read_all(file: File, out: Output) -> None:
    with out.progress(os.path.basename(file.path), file.nbytes) as advance:
        for tensor in file.tensors:
            for chunk in file.chunks(tensor):
                advance(len(chunk))


def _check_index(index: Index, files: list[File], complete: bool) -> _Verdict:
    if not complete:
        return _Verdict(index.path, "index", "some of its shards are missing or invalid", [])
    problems = index_problems(index, files)
    if not problems:
        shards = text.count(len(files), "shard")
        message = f"{text.count(len(index.weight_map), 'tensor')} in {shards}"
        return _Verdict(index.path, "ok", message, [])
    more = problems[1 : 1 + _MOST_PROBLEMS]
    if len(problems) > 1 + _MOST_PROBLEMS:
        more.append(f"... and {len(problems) - 1 - _MOST_PROBLEMS:,} more")
    return _Verdict(index.path, "index", problems[0], more)


def _show(verdict: _Verdict, out: Output) -> None:
    is_ok = verdict.kind == "ok"
    if is_ok and out.quiet:
        return
    kind: Any = (verdict.kind, "bold green" if is_ok else "bold red")
    out.line(f"{verdict.path}: ", kind, f": {verdict.message}")
    for detail in verdict.details:
        out.line(f"  {detail}")
