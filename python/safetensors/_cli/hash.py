"""Print digests of tensors and of the whole, independent of tensor order and sharding.

The digest of a tensor is the SHA-256 of its type and shape, as "F32 [2,3]" and a newline, followed
by its bytes. The digest of the whole is the SHA-256 of one line for each tensor, sorted by name:
its name as JSON, a space, its digest. Metadata is not part of a digest. --algorithm xxh3-128 is
several times as fast, and finds accidental damage only. Several threads hash, one tensor each.

Of a GGUF file or a quantised model, two digests of the whole are printed: of the tensors as stored,
and of their decoded values; --json has those of each tensor.

--write keeps the digests in a file beside the model, STEM.sums.json, and --check compares the
model with them: it lists damaged tensors and where they are damaged.
"""

import argparse

from .._checking import sums as _sums
from .._checking.sums import SHA256, XXH3
from .._paths import is_url
from . import hash_sums, text, weight_model
from .errors import CliError, need_numpy
from .model import add_choice
from .output import Column, Output

EXAMPLES = """
safetensors hash model.safetensors
safetensors hash --whole models/llama
safetensors hash model.gguf
safetensors hash models/llama --write
safetensors hash models/llama --check
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help=weight_model.MODEL_OR_STDIN)
    parser.add_argument(
        "--algorithm",
        choices=(XXH3, SHA256),
        help="the digests to print or to check (default: sha256; with --check: xxh3-128 if the "
        "sums have it); --write always writes xxh3-128, and sha256 on request",
    )
    parser.add_argument("--whole", action="store_true", help="print only the digest of the whole")
    parser.add_argument("--json", action="store_true", help="print the digests as JSON")
    parser.add_argument(
        "--files",
        action="store_true",
        help="with --write: also the SHA-256 of each whole file, which --check then compares",
    )
    sums = parser.add_mutually_exclusive_group()
    sums.add_argument("--write", action="store_true", help="write the sums beside the model")
    sums.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="SUMS",
        help="compare the model with the sums beside it, or with those in the file SUMS",
    )
    add_choice(parser)
    weight_model.add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    if arguments.files and not arguments.write:
        raise CliError("--files needs --write; --check compares them by itself")
    if arguments.whole and (arguments.write or arguments.check is not None):
        raise CliError("--whole goes with neither --write nor --check")
    if arguments.write:
        return hash_sums.write(arguments, out)
    if arguments.check is not None:
        return hash_sums.check(arguments, out)
    algorithm = arguments.algorithm or SHA256
    with weight_model.opened(arguments.path, arguments) as model:
        if isinstance(model, weight_model.WeightModel):
            need_numpy("hash of decoded values")
            from . import hash_weights

            return hash_weights.run(model, arguments, out)
        placed = model.by_name()
        total = sum(each.tensor.nbytes for each in placed.values())
        threads = 1 if is_url(arguments.path) else hash_sums.THREADS
        with out.progress("hashing", total) as advance:
            found = hash_sums.digests(placed, [algorithm], advance, threads)
    digests = {name: found[name][algorithm] for name in sorted(found)}
    whole = _sums.whole_digest(digests, algorithm)
    if arguments.json:
        out.json({"algorithm": algorithm, "whole": whole, "tensors": digests})
    elif arguments.whole:
        out.line(whole)
    else:
        rows = [[digests[name], name] for name in sorted(digests, key=text.natural_key)]
        out.table([Column(algorithm, "dim"), Column("name", "cyan")], rows)
        out.line()
        out.line((whole, "bold"), "  whole")
    return 0
