"""Check whether files are complete and valid, and say what is wrong with those that are not.

The status is 0 if all are valid, 1 if one is not, 2 if one could not be read.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _extra
from .._model_folder import BY_RULE, SUFFIX, Choice, all_files, all_indexes
from .._shards import ShardFile
from .._weight_models import gguf_models, is_gguf
from . import diagnose, patches, repair, text, weight_model
from .errors import NEGATIVE, TROUBLE, CliError
from .model import Index, choice_of, files_of, index_problems
from .opening import STDIN, open_input
from .output import Output
from .reader import File, SafetensorError, complaint

EXAMPLES = """
safetensors check model.safetensors
safetensors check --read models/llama
safetensors check -q downloads/*.safetensors || echo damaged
"""

_MAX_PROBLEMS = 10


class Verdict(NamedTuple):
    """The result for one path. `kind` is "ok", "unreadable", or one word for the fault."""

    path: str
    kind: str
    message: str
    details: list[str]
    nbytes: int | None = None
    """The size of a valid file."""


class _Refused(Exception):
    """The core refuses the file."""

    def __init__(self, path: str, error: SafetensorError, start: bytes, details: list[str]) -> None:
        kind, message = diagnose.verdict_on(error, start, complaint(error, path))
        self.verdict = Verdict(path, kind, message, details)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="path", nargs="+", help=weight_model.MODEL_OR_STDIN)
    parser.add_argument(
        "--read", action="store_true", help="also read all data, which finds bad disks"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    weight_model.add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    verdicts = []
    for path in arguments.paths:
        for verdict in verdicts_on(path, arguments, arguments.read, out):
            verdicts.append(verdict)
            if not arguments.json:
                _show(verdict, out)
    if arguments.json:
        out.json([verdict._asdict() for verdict in verdicts])
    elif len(verdicts) > 1 and not out.quiet:
        _show_total(verdicts, out)
    kinds = {verdict.kind for verdict in verdicts}
    if "unreadable" in kinds:
        return TROUBLE
    return NEGATIVE if kinds - {"ok"} else 0


def verdicts_on(path: str, arguments: argparse.Namespace, read: bool, out: Output) -> list[Verdict]:
    """Checks files, and after those of a quantised model how they fit together.

    Args:
        arguments: those of add_view(), and of add_choice() if the command has them. Of a folder,
            only the files of the chosen model are checked; all of them if none is chosen.
        read: whether all data is read.
    """
    verdicts, choice = [], choice_of(arguments)
    # What is called a safetensors file is checked to be one.
    is_files = path == STDIN or path.endswith(SUFFIX) or not is_gguf(path, choice)
    if arguments.raw or is_files:
        if path != STDIN and os.path.isdir(path) and choice == BY_RULE:
            verdicts = _check_folder(path, read, out)
        else:
            verdicts = _check_model(path, read, out, {}, choice)
        try:
            if any(v.kind != "ok" for v in verdicts) or not weight_model.is_wanted(path, arguments):
                return verdicts
        except CliError as error:
            return [*verdicts, Verdict(path, "model", str(error), [])]
    if os.path.isdir(path) and choice == BY_RULE and is_gguf(path, choice):
        found = gguf_models(path)
        if len(found) > 1:
            return [*verdicts, *(_check_weights(each, arguments, read, out) for each in found)]
    return [*verdicts, _check_weights(path, arguments, read, out)]


def _check_weights(path: str, arguments: argparse.Namespace, read: bool, out: Output) -> Verdict:
    """Returns the verdict of the weight layer, which compares tensors with the configuration."""
    try:
        with weight_model.opened_as_asked(path, arguments) as model:
            if model.is_gguf and read:
                _read_all(model.file, out)
            for warning in model.weights.warnings:
                out.note(f"{path}: {warning}")
            nbytes = model.file.nbytes if model.is_gguf else None
            return Verdict(path, "ok", _summary(model.file), [], nbytes)
    except CliError as error:
        return Verdict(path, "model", str(error).removesuffix(f" (in {path})"), [])


def _check_folder(path: str, read: bool, out: Output) -> list[Verdict]:
    """Checks all files and all indexes of a folder, also those that are no part of its model."""
    try:
        _extra._refuse_interrupted(path)
        indexes, files = all_indexes(path), all_files(path)
    except (OSError, SafetensorError) as error:
        return [_failed(path, error)]
    if not indexes and not files:
        said = "No .safetensors files in the directory"
        if below := _extra._models_below(path):
            said += f"; {below}"
        return [Verdict(path, "unreadable", said, [])]
    verdicts: list[Verdict] = []
    checked: dict[str, File | None] = {}
    for name in [*indexes, *files]:
        each = os.path.join(path, name)
        if each not in checked:
            verdicts += _check_model(each, read, out, checked)
    return verdicts


def _check_model(
    path: str,
    read: bool,
    out: Output,
    checked: "dict[str, File | None]",
    choice: Choice = BY_RULE,
) -> list[Verdict]:
    """Checks what a path names: a file, an index with its files, or a remote folder.

    Args:
        checked: the files that were checked, which are not checked again. Those of an index are
            closed, and None if they are not valid.
    """
    try:
        shards, index = files_of(path, choice)
    except (OSError, SafetensorError, CliError, ImportError) as error:
        return [_failed(path, error)]
    verdicts = []
    for shard in shards:
        if shard.path not in checked:
            verdict, file = _check_file(shard, index, read, out)
            checked[shard.path] = file if index is not None else None
            verdicts.append(verdict)
    if index is not None:
        found = [checked[shard.path] for shard in shards]
        valid = [file for file in found if file is not None]
        verdicts.append(_check_index(index, valid, len(valid) == len(found)))
    return verdicts


def _failed(path: str, error: Exception) -> Verdict:
    """Returns the verdict on a path whose files were not found."""
    kind = "unreadable"
    if isinstance(error, CliError):
        return Verdict(path, "index" if path.endswith(".json") else kind, str(error), [])
    if isinstance(error, SafetensorError) and not diagnose.is_unreadable(error):
        kind = "index"
    return Verdict(path, kind, complaint(error, path), [])


def _check_file(
    shard: ShardFile, index: Index | None, read: bool, out: Output
) -> tuple[Verdict, File | None]:
    """Returns the verdict, and the closed file, whose header the check of an index needs; None if
    it is not valid."""
    path = shard.path
    try:
        with _opened(shard) as file:
            if patches.is_patch(file):
                return Verdict(path, *_verdict_on_patch(file), []), None
            message = _summary(file)
            if read:
                _read_all(file, out)
    except _Refused as refused:
        return refused.verdict, None
    except FileNotFoundError as error:
        said = complaint(error, path), "unreadable"
        if index is not None:
            said = "the index names this file, but it does not exist", "missing"
        return Verdict(path, said[1], said[0], []), None
    except (OSError, SafetensorError, CliError, ImportError) as error:
        return Verdict(path, "unreadable", complaint(error, path), []), None
    return Verdict(path, "ok", message, [], file.nbytes), file


@contextlib.contextmanager
def _opened(shard: ShardFile) -> Iterator[File]:
    """Opens a file, local or remote. Raises _Refused for what the core refuses."""
    path = shard.path
    if shard.reader is None:
        with open_input(path) as opened:
            try:
                file = File(path, opened)
            except SafetensorError as error:
                if diagnose.is_unreadable(error):
                    raise
                opened.seek(0)
                start = opened.read(diagnose.START_NBYTES) or b""
                raise _Refused(path, error, start, _details(path)) from None
            yield file
        return
    from . import remote

    try:
        (file,) = remote.open_all([shard])
    except SafetensorError as error:
        if diagnose.is_unreadable(error):
            raise
        raise _Refused(path, error, remote.start_of(shard), []) from None
    with file:
        yield file


def _details(path: str) -> list[str]:
    """Returns what is wrong with the tensors of a local file, and what repairs it."""
    damaged = diagnose.read_damaged(path)
    details = diagnose.details(damaged)
    with contextlib.suppress(CliError):
        repair.plan(path, damaged)
        details.append(f"`{repair.command(path)}` repairs it")
    return details


def _verdict_on_patch(file: File) -> tuple[str, str]:
    """Returns the kind and the message for a patch, all of which is read."""
    try:
        return "ok", patches.summary(file)
    except SafetensorError as error:
        if diagnose.is_unreadable(error):
            raise
        return "patch", complaint(error, file.path).removeprefix(f"{file.path}: ")


def _summary(file: File) -> str:
    dtypes = sorted({tensor.dtype for tensor in file.tensors})
    words = [text.count(len(file.tensors), "tensor"), text.size(file.nbytes), *dtypes]
    return ", ".join(words)


def _read_all(file: File, out: Output) -> None:
    nbytes = sum(tensor.nbytes for tensor in file.tensors)
    with out.progress(os.path.basename(file.path), nbytes) as advance:
        for tensor in file.tensors:
            for chunk in file.chunks(tensor):
                advance(len(chunk))


def _check_index(index: Index, files: list[File], complete: bool) -> Verdict:
    if not complete:
        return Verdict(index.path, "index", "some of its shards are missing or invalid", [])
    problems = index_problems(index, files)
    if not problems:
        shards = text.count(len(files), "shard")
        message = f"{text.count(len(index.weight_map), 'tensor')} in {shards}"
        return Verdict(index.path, "ok", message, [])
    more = problems[1 : 1 + _MAX_PROBLEMS]
    if len(problems) > 1 + _MAX_PROBLEMS:
        more.append(f"... and {len(problems) - 1 - _MAX_PROBLEMS:,} more")
    return Verdict(index.path, "index", problems[0], more)


def _show_total(verdicts: list[Verdict], out: Output) -> None:
    sizes = [verdict.nbytes for verdict in verdicts if verdict.nbytes is not None]
    faults = sum(verdict.kind != "ok" for verdict in verdicts)
    said = f"{text.count(len(sizes), 'file')} ok, {text.size(sum(sizes))}"
    out.line(said if not faults else f"{said}; {text.count(faults, 'fault')}")


def _show(verdict: Verdict, out: Output) -> None:
    is_ok = verdict.kind == "ok"
    if is_ok and out.quiet:
        return
    kind: Any = (verdict.kind, "bold green" if is_ok else "bold red")
    out.line(f"{verdict.path}: ", kind, f": {verdict.message}")
    for detail in verdict.details:
        out.line(f"  {detail}")
