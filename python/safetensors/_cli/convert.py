"""Convert PyTorch's .bin and .pt and NumPy's .npz to safetensors; merge and split models.

The target is a file. It is a folder if it exists as one, ends with a slash, or --max-shard-size is
given. Only weights are loaded from pickles: code in them does not run.
"""

import argparse
import contextlib
import json
import os
from typing import Sequence

from . import text
from .atomic_file import AtomicFile
from .errors import CliError
from .header_text import Entry, file_order, prologue
from .model import read_index
from .opening import STDIN, open_regular
from .output import Advance, Output
from .reader import File
from .source import Source

EXAMPLES = """
safetensors convert pytorch_model.bin model.safetensors
safetensors convert checkpoint.pt model.safetensors --key state_dict
safetensors convert model.safetensors shards --max-shard-size 5GB
safetensors convert shards merged.safetensors
"""

_INDEX = "model.safetensors.index.json"
_TORCH_INDEX = ".bin.index.json"
_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or an index")
    parser.add_argument("target", help="a file, or a folder for shards")
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        help="split into shards of at most this size: 5GB, 500MB, 2GiB",
    )
    parser.add_argument("--key", help="the dict to convert, if a checkpoint has several")
    parser.add_argument(
        "--skip-others", action="store_true", help="leave out entries that are not tensors"
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--fsync", action="store_true", help="wait until all data is on the disk")


def run(arguments: argparse.Namespace, out: Output) -> int:
    target: str = arguments.target
    if STDIN in (arguments.source, target):
        raise CliError("convert takes files, not standard input or output")
    most = None
    if arguments.max_shard_size is not None:
        most = text.parse_size(arguments.max_shard_size)
        if target.endswith(".safetensors"):
            raise CliError("--max-shard-size needs a folder as target")
    to_folder = most is not None or os.path.isdir(target) or target.endswith(("/", os.sep))
    with contextlib.closing(_open_source(arguments)) as source:
        for note in source.notes:
            out.note(note)
        shards = _planned(source.entries, most)
        names = _shard_names(len(shards)) if to_folder else [os.path.basename(target)]
        folder = target if to_folder else os.path.dirname(target)
        _refuse_to_replace(folder, names, to_folder, arguments.force)
        if to_folder:
            os.makedirs(folder, exist_ok=True)
        total = sum(entry.nbytes for entry in source.entries)
        written: list[str] = []
        try:
            with out.progress("converting", total) as advance:
                for name, shard in zip(names, shards, strict=True):
                    path = os.path.join(folder, name)
                    existed = os.path.lexists(path)
                    _write(path, shard, source, arguments.fsync, advance)
                    if not existed:
                        written.append(path)
            if len(shards) > 1:
                _write_index(folder, names, shards, arguments.fsync)
        except BaseException:
            # Shards without an index are not a model.
            for path in written:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
    said = f"{text.count(len(source.entries), 'tensor')}, {text.size(total)}"
    if len(shards) > 1:
        said += f", {text.count(len(shards), 'shard')}"
    if not out.quiet:
        out.line(f"{target}: {said}")
    return 0


def _open_source(arguments: argparse.Namespace) -> Source:
    path: str = arguments.source
    if os.path.isdir(path):
        names = os.listdir(path)
        indexes = [name for name in names if name.endswith(_TORCH_INDEX)]
        if len(indexes) == 1 and not any(name.endswith(".safetensors") for name in names):
            path = os.path.join(path, indexes[0])
    # Imported only when needed, so that the other commands start faster.
    kind = _kind(path)
    if kind == "torch":
        from .source_torch import TorchSource

        return TorchSource(_torch_files(path), arguments.key, arguments.skip_others)
    if kind == "npz":
        from .source_npz import NpzSource

        source: Source = NpzSource(path)
    else:
        from .source_model import ModelSource

        source = ModelSource(path)
    if arguments.key is not None or arguments.skip_others:
        source.close()
        raise CliError("--key and --skip-others apply to PyTorch files only")
    return source


def _kind(path: str) -> str:
    """Returns the source's format by its content: a .bin file may be anything."""
    if os.path.isdir(path):
        return "safetensors"
    if path.endswith(".json"):
        names = read_index(path).file_names()
        is_torch = all(name.endswith(_TORCH_SUFFIXES) for name in names)
        return "torch" if is_torch else "safetensors"
    with open_regular(path) as file:
        start = file.read(len(_ZIP))
    if start.startswith(_PICKLE) and not path.endswith(".safetensors"):
        return "torch"
    if start != _ZIP:
        return "safetensors"
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise CliError(f"{path}: a damaged zip archive: {error}") from None
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    return "npz"


def _torch_files(path: str) -> list[str]:
    if not path.endswith(".json"):
        return [path]
    index = read_index(path)
    return [os.path.join(index.folder(), name) for name in index.file_names()]


def _planned(entries: list[Entry], most: int | None) -> list[list[Entry]]:
    """Assigns consecutive entries to shards of at most `most` bytes.

    An entry that is larger than `most` gets its own shard.
    """
    shards: list[list[Entry]] = [[]]
    room = most
    for entry in entries:
        if room is not None and most is not None:
            if entry.nbytes > room and shards[-1]:
                shards.append([])
                room = most
            room -= entry.nbytes
        shards[-1].append(entry)
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def _refuse_to_replace(folder: str, names: list[str], to_folder: bool, force: bool) -> None:
    ours = {*names, _INDEX} if len(names) > 1 else set(names)
    if to_folder and os.path.isdir(folder):
        there = sorted(name for name in os.listdir(folder) if ".safetensors" in name)
    else:
        there = sorted(name for name in ours if os.path.lexists(os.path.join(folder, name)))
    others = [name for name in there if name not in ours]
    if others:
        path = os.path.join(folder, others[0])
        raise CliError(
            f"{path} exists: two models in one folder get mixed up, choose another folder"
        )
    if there and not force:
        path = os.path.join(folder, there[0])
        raise CliError(f"{path} exists; --force replaces it")


def _write(
    path: str, entries: Sequence[Entry], source: Source, fsync: bool, advance: Advance
) -> None:
    ordered = file_order(entries)
    with AtomicFile(path) as target:
        target.write(prologue(ordered, source.metadata))
        for entry in ordered:
            source.write(entry.name, target, advance)
        File(target.temporary).close()  # raises if the core does not accept the file
        target.commit(fsync)


def _write_index(folder: str, names: list[str], shards: list[list[Entry]], fsync: bool) -> None:
    total = sum(entry.nbytes for shard in shards for entry in shard)
    weight_map = {
        entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard
    }
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    with AtomicFile(os.path.join(folder, _INDEX)) as target:
        target.write((json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode())
        target.commit(fsync)
