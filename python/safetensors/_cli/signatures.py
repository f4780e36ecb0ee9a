"""What `sign` and `verify` share: options, and where signatures are."""

import argparse
import os
from typing import Any

from .. import SafetensorError, _extra, _json
from ..signing import _signature_of
from .errors import CliError
from .opening import open_regular

_FOLDERS = "model.sig"
"""The signature of a folder, in it. The name is model-signing's."""

_BUNDLE = "application/vnd.dev.sigstore.bundle"
"""The media types of signatures begin with it."""


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


def refuse_other_file(path: str) -> None:
    """Raises CliError if a file that is no signature is where a user wants a new one."""
    if not os.path.exists(path):
        return
    with open_regular(path) as file:
        data = file.read(_json.MAX_NBYTES + 1) or b""
    try:
        found = _json.loads(data, path) if data else {"mediaType": _BUNDLE}
    except (SafetensorError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not str(found.get("mediaType")).startswith(_BUNDLE):
        raise CliError(f"{path} exists and is no signature: sign replaces only signatures")
