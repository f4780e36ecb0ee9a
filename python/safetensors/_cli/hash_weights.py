"""Digests of the tensors of the weight layer: as stored, and decoded. Needs NumPy."""

import argparse
import hashlib
from collections.abc import Iterable, Sequence

from .._checking import sums as _sums
from .._checking.sums import SHA256
from .decode import can_decode
from .errors import CliError
from .output import Advance, Output
from .reader import Tensor
from .weight_model import WeightFile, WeightModel, is_plain

_KEPT = ("BOOL", "C64", "F64")
"""Types, besides integers, whose values float32 does not hold."""


def run(model: WeightModel, arguments: argparse.Namespace, out: Output) -> int:
    """Prints the digests of the whole, or with --json those of all tensors as well."""
    if arguments.algorithm not in (None, SHA256):
        raise CliError(
            f"{model.path}: decoded values are hashed by {SHA256}; "
            f"--raw hashes by {arguments.algorithm} what is stored"
        )
    file = model.file
    stored: dict[str, str] = {}
    decoded: dict[str, str] = {}
    with out.progress("hashing", 2 * sum(tensor.nbytes for tensor in file.tensors)) as advance:
        for tensor in file.tensors:
            name, shape = tensor.name, tensor.shape
            pieces = ((piece, len(piece)) for piece in file.chunks(tensor))
            stored[name] = _digest(tensor.dtype, shape, pieces, advance)
            if _is_kept(file, tensor):
                decoded[name] = stored[name]
                advance(tensor.nbytes)
            elif not file.why_no_values(tensor):
                values = ((v.astype("<f4").tobytes(), size) for v, size in file.values(tensor))
                decoded[name] = _digest("F32", shape, values, advance)
    whole = {"stored": _sums.whole_digest(stored), "decoded": _sums.whole_digest(decoded)}
    if arguments.json:
        tensors = {"stored": stored, "decoded": decoded}
        out.json({"algorithm": SHA256, "whole": whole, "tensors": tensors})
    else:
        for kind, digest in whole.items():
            out.line((f"{kind:7}  ", "dim"), (digest, "bold"))
    if left := len(stored) - len(decoded):
        out.note(f"{model.path}: {left:,} tensors that cannot be decoded are in `stored` only")
    return 0


def _is_kept(file: WeightFile, tensor: Tensor) -> bool:
    """Returns whether the values are hashed as they are stored."""
    is_float = tensor.dtype[0] not in "IU" and tensor.dtype not in _KEPT
    return is_plain(file.by_name[tensor.name]) and not (is_float and can_decode(tensor.dtype))


def _digest(
    dtype: str, shape: Sequence[int], pieces: "Iterable[tuple[bytes, int]]", advance: Advance
) -> str:
    """Returns the digest of a tensor as `hash` defines it for files."""
    hasher = hashlib.sha256(f"{dtype} [{','.join(map(str, shape))}]\n".encode())
    for data, nbytes in pieces:
        hasher.update(data)
        advance(nbytes)
    return hasher.hexdigest()
