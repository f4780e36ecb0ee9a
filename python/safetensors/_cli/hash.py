"""Print digests of tensors and of the whole, independent of tensor order and sharding.

The digest of a tensor is the SHA-256 of its type and shape, as "F32 [2,3]" and a newline, followed
by its bytes. The digest of the whole is the SHA-256 of one line for each tensor, sorted by name:
its name as JSON, a space, its digest. Metadata is not part of a digest.
"""

import argparse
import json

from . import text
from .model import Model, Placed
from .output import Advance, Column, Output

EXAMPLES = """
safetensors hash model.safetensors
safetensors hash --whole models/llama
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", help="a file, a folder, or a .safetensors.index.json; - is standard input"
    )
    parser.add_argument("--whole", action="store_true", help="print only the digest of the whole")
    parser.add_argument("--json", action="store_true", help="print the digests as JSON")


def run(arguments: argparse.Namespace, out: Output) -> int:
    with Model(arguments.path) as model:
        placed = model.by_name()
        total = sum(each.tensor.nbytes for each in placed.values())
        digests = {}
        with out.progress("hashing", total) as advance:
            for name in sorted(placed):
                digests[name] = digest(placed[name], advance)
    whole = whole_digest(digests)
    if arguments.json:
        out.json({"algorithm": "sha256", "whole": whole, "tensors": digests})
    elif arguments.whole:
        out.line(whole)
    else:
        rows = [[digests[name], name] for name in sorted(digests, key=text.natural_key)]
        out.table([Column("sha256", "dim"), Column("name", "cyan")], rows)
        out.line()
        out.line((whole, "bold"), "  whole")
    return 0


def digest(placed: Placed, advance: Advance) -> str:
    """Returns the digest of one tensor."""
    import hashlib

    file, tensor = placed
    shape = ",".join(map(str, tensor.shape))
    state = hashlib.sha256(f"{tensor.dtype} [{shape}]\n".encode())
    for chunk in file.chunks(tensor):
        state.update(chunk)
        advance(len(chunk))
    return state.hexdigest()


def whole_digest(digests: dict[str, str]) -> str:
    """Returns the digest of a model whose tensors have these digests, by name."""
    import hashlib

    state = hashlib.sha256()
    for name in sorted(digests):
        state.update(f"{json.dumps(name)} {digests[name]}\n".encode())
    return state.hexdigest()
