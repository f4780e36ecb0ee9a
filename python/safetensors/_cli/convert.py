"""Convert PyTorch, NumPy, GGUF and quantised models to safetensors; merge and split models.

The target is a file if its name ends with .safetensors, and a folder if it exists as one, ends with
a slash, or --max-shard-size is given. Another name is a folder if the source is a folder, an index
or a GGUF file; a folder also gets the configuration, tokenizer and licence of the source's folder.
Of PyTorch's .bin and .pt only weights are loaded: code in them does not run.

GGUF files are decoded, and with --dtype also quantised models of safetensors files. At the end, a
report says what was read, written and left out, and what to run next.
"""

import argparse
import contextlib
import os

from .. import SafetensorError, _extra, _model_folder
from .._model_folder import Choice
from .._paths import is_model, visible
from .._saving.companions import Companions
from .._weight_models import is_gguf, is_weight_model
from . import convert_report, writing
from .errors import CliError
from .model import add_choice, choice_of, files_of
from .opening import open_regular, refuse_stdin
from .output import Output
from .reader import complaint
from .source import Source
from .writing import Target, target_of, write_source

EXAMPLES = """
safetensors convert pytorch_model.bin model.safetensors
safetensors convert checkpoint.pt model.safetensors --key state_dict
safetensors convert model.safetensors shards --max-shard-size 5GB
safetensors convert shards merged.safetensors
safetensors convert model-4bit model-bf16/ --dtype bf16 --max-shard-size 5GB --verify
safetensors convert model.gguf model-f16/ --dtype f16
safetensors convert --lenient damaged.safetensors repaired.safetensors
"""

_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or an index")
    parser.add_argument("target", help="a file NAME.safetensors, or a folder")
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        help="split into shards of at most this size: 5GB, 500MB, 2GiB",
    )
    parser.add_argument("--key", help="the dict to convert, if a checkpoint has several")
    parser.add_argument(
        "--skip-others", action="store_true", help="leave out entries that are not tensors"
    )
    # There is one format so far, so nothing reads this: scripts may name it.
    parser.add_argument(
        "--to", choices=("safetensors",), help="the format of the target (default: safetensors)"
    )
    writing.add_dtype(
        parser,
        ("bf16", "f16", "f32", "keep"),
        "decode quantised tensors, and cast other floating-point tensors to this type; keep: "
        "quantised ones become bf16, others keep theirs (default for GGUF)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read the target back and compare it with the source"
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="also read safetensors files that are damaged but whole: bytes between and after the "
        "tensors are left out, and metadata that is not text becomes its JSON",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    writing.add_options(parser, "canonical")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    refuse_stdin("convert", arguments.source, arguments.target)
    has_blocks = is_gguf(arguments.source, choice_of(arguments))
    if arguments.dtype is not None and not has_blocks and _found(arguments)[1] != "safetensors":
        raise CliError("--dtype applies to safetensors and GGUF files only")
    if arguments.dtype is not None or has_blocks:
        _refuse_torch_options(arguments)
        if arguments.lenient:
            raise CliError("--lenient copies tensors: repair the file first, then decode or cast")
        from .source_weights import convert

        arguments.dtype = arguments.dtype or "keep"
        convert(arguments, _target(arguments, has_blocks), out)
        return 0
    if arguments.verify:
        raise CliError("--verify needs --dtype, or a GGUF file as source")
    with contextlib.closing(_open_source(arguments)) as source:
        try:
            if is_weight_model(arguments.source, choice_of(arguments)):
                source.notes.append("quantised tensors are copied: --dtype bf16 would decode them")
        except SafetensorError as error:
            source.notes.append(str(error))
        to = _target(arguments, False)
        written = write_source(source, to, arguments, out, Companions(arguments.source))
        convert_report.show(source, written, arguments, out)
    return 0


def _target(arguments: argparse.Namespace, is_gguf: bool) -> Target:
    of_model = is_model(arguments.source, is_gguf)
    return target_of(arguments.target, of_model, arguments.max_shard_size)


def _found(arguments: argparse.Namespace) -> tuple[str, str]:
    """Returns the path of the file, folder or index that the source means, and its format."""
    path, choice = arguments.source, choice_of(arguments)
    if os.path.isdir(path):
        path = _torch_index(path, choice) or path
        return path, _kind(path)
    kind = _kind(path)
    try:
        choice.refuse_for(path)
    except ValueError as error:
        raise CliError(str(error)) from None
    return path, kind


def _torch_index(folder: str, choice: Choice) -> str | None:
    """Returns the index of a folder's pickled model; None if it has none, or safetensors files.

    The rule of safetensors files chooses: the names of both differ only in the ending.
    """
    if _extra._has_model_files(folder):
        return None
    indexes: dict[str, str] = {}
    for name in visible(os.listdir(folder)):
        stem, found, rest = name.rpartition(".bin.")
        twin = f"{stem}.safetensors.{rest}"
        parsed = _extra._parse_model_file_name(twin)
        if found and parsed is not None and parsed[0] == "index":
            indexes[twin] = name
    if not indexes:
        return None
    try:
        model = _model_folder.choose(
            folder, indexes, choice, lambda twin: [twin], indexes.__contains__
        )
    except SafetensorError as error:
        said = complaint(error, folder).replace(".safetensors", ".bin")
        raise CliError(f"{folder}: {said}") from None
    return os.path.join(folder, indexes[model.index_file])


def _open_source(arguments: argparse.Namespace) -> Source:
    # Imported only when needed, so that the other commands start faster.
    path, kind = _found(arguments)
    if arguments.lenient and kind != "safetensors":
        raise CliError("--lenient applies to safetensors files only")
    if kind == "torch":
        from .source_torch import TorchSource

        shards, index = files_of(path)
        paths = [shard.path for shard in shards]
        return TorchSource(paths, index, arguments.key, arguments.skip_others)
    if kind == "npz":
        from .source_npz import NpzSource

        source: Source = NpzSource(path)
    else:
        from .source_model import ModelSource

        source = ModelSource(path, choice=choice_of(arguments), lenient=arguments.lenient)
    try:
        _refuse_torch_options(arguments)
    except CliError:
        source.close()
        raise
    return source


def _refuse_torch_options(arguments: argparse.Namespace) -> None:
    if arguments.key is not None or arguments.skip_others:
        raise CliError("--key and --skip-others apply to PyTorch files only")


def _kind(path: str) -> str:
    """Returns the source's format by its content: a .bin file may be anything."""
    if os.path.isdir(path):
        return "safetensors"
    if path.endswith(".json"):
        shards, _ = files_of(path)
        is_torch = all(shard.path.endswith(_TORCH_SUFFIXES) for shard in shards)
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
