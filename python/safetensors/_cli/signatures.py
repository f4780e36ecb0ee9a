"""What `sign` and `verify` share: options, and where signatures are."""

import argparse
import os
from typing import Any

from .. import _extra
from ..signing import _signature_of
from .errors import CliError

_FOLDERS = "model.sig"
"""The signature of a folder, in it. The name is model-signing's."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signature",
        metavar="FILE",
        help=f"the signature (default: {_FOLDERS} in the folder; of a file: FILE.sig, and of "
        "STEM.sums.json: STEM.sums.sig)",
    )
    parser.add_argument(
        "--ignore-paths",
        metavar="PATH",
        action="append",
        default=[],
        help="a file or folder that the signature leaves out; git's files are always left out",
    )
    parser.add_argument(
        "--allow-symlinks", action="store_true", help="follow symbolic links, instead of refusing"
    )
    parser.add_argument(
        "--use-staging", action="store_true", help="use Sigstore's servers for tests"
    )


def add_chain(group: Any, what: str) -> None:
    group.add_argument(
        "--certificate-chain",
        metavar="FILE",
        action="append",
        default=[],
        help=f"{what}, in PEM; may be given several times",
    )


def place_of(path: str, signature: "str | None") -> str:
    """Returns the path of a signature. Raises CliError for an index, OSError if nothing exists."""
    parsed = _extra._parse_model_file_name(os.path.basename(path))
    if parsed is not None and parsed[0] == "index":
        raise CliError(f"{path}: the signature of an index covers no weights: name the folder")
    os.stat(path)
    if signature is not None:
        return signature
    if os.path.isdir(path):
        return os.path.join(path, _FOLDERS)
    return _signature_of(path)
