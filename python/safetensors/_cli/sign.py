"""Sign a file, or all files of a folder, by the standard OpenSSF Model Signing.

Writes model.sig in the folder, or FILE.sig beside a file. A model's sums (hash --write
--algorithm sha256) are compared with the model and signed first, in STEM.sums.sig: loads can verify
what they read by them. Needs the package model-signing, which also verifies what this signs.
"""

import argparse
import contextlib
import os
import sys

from .. import _core, _extra
from .._checking import sums as _sums
from .._model_folder import Choice, of_directory
from .._paths import visible
from ..signing import _package
from . import hash_sums, signatures
from .errors import NEGATIVE, CliError
from .opening import refuse_stdin
from .output import Output

EXAMPLES = """
safetensors sign models/llama --key private.pem
safetensors sign models/llama --key private.pem --certificate mine.pem --certificate-chain ca.pem
safetensors sign models/llama --sigstore
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a folder or a file")
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument("--key", metavar="KEY", help="sign by a private key, P-256 to P-521, in PEM")
    by.add_argument(
        "--sigstore", action="store_true", help="sign by an identity, with Sigstore's servers"
    )
    parser.add_argument(
        "--password-stdin",
        action="store_true",
        help="the key is encrypted: read its password from a line of standard input",
    )
    parser.add_argument(
        "--certificate", metavar="CERTIFICATE", help="sign by this certificate of the key, in PEM"
    )
    signatures.add_chain(parser, "a certificate that leads to a root")
    parser.add_argument(
        "--use-ambient-credentials",
        action="store_true",
        help="with --sigstore: the identity of the CI job or machine, without a browser",
    )
    signatures.add_options(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    path = arguments.path
    refuse_stdin("sign", path, arguments.key)
    for name in ("certificate", "certificate_chain", "password_stdin"):
        if getattr(arguments, name) and not arguments.key:
            raise CliError(f"--{name.replace('_', '-')} goes with --key")
    if bool(arguments.certificate_chain) != bool(arguments.certificate):
        raise CliError("--certificate and --certificate-chain go together")
    if arguments.certificate and arguments.password_stdin:
        raise CliError("model-signing takes no password for the key of a certificate")
    for name in ("use_ambient_credentials", "use_staging"):
        if getattr(arguments, name) and not arguments.sigstore:
            raise CliError(f"--{name.replace('_', '-')} goes with --sigstore")
    signature = signatures.place_of(path, arguments.signature)
    if arguments.signature is not None:
        signatures.refuse_other_file(signature)
    package = _package()
    signer = package.signer(
        key=arguments.key,
        password=_password() if arguments.password_stdin else None,
        certificate=arguments.certificate,
        certificate_chain=arguments.certificate_chain,
        use_ambient_credentials=arguments.use_ambient_credentials,
        use_staging=arguments.use_staging,
    )
    for sums in _sums_of(path):
        if not _has_sha256(sums):
            out.note(
                f"{sums}: not signed alone: not all digests in it are SHA-256; "
                "hash --write --algorithm sha256 adds them"
            )
        elif _compare(sums, out) != 0:
            return NEGATIVE
        else:
            where = signatures.place_of(sums, None)
            _extra._write_beside(where, package.sign(signer, sums), sums)
            out.line(where)
    ignored = [*arguments.ignore_paths, signature]
    made = package.sign(signer, path, ignored, arguments.allow_symlinks)
    if arguments.signature is not None:
        _core._write_file(signature, made, False)
    else:
        _extra._write_beside(signature, made, _first_file(path))
    out.line(signature)
    return 0


def _first_file(path: str) -> "str | None":
    """Returns a file that is signed, one with tensors if there is any, of a folder or a file."""
    if not os.path.isdir(path):
        return path
    names = sorted(visible(os.listdir(path)), key=lambda name: not name.endswith(".safetensors"))
    files = (os.path.join(path, name) for name in names)
    return next(filter(os.path.isfile, files), None)


def _password() -> bytes:
    if sys.stdin is None:
        raise CliError("standard input is closed")
    return sys.stdin.buffer.readline().rstrip(b"\r\n")


def _sums_of(path: str) -> list[str]:
    """Returns the files of sums that are signed with a folder or file."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(_sums.SUFFIX))
        return [os.path.join(path, name) for name in names]
    sums = path.removesuffix(".safetensors") + _sums.SUFFIX
    return [sums] if path.endswith(".safetensors") and os.path.isfile(sums) else []


def _has_sha256(path: str) -> bool:
    sums = _sums.read(path)
    headers = all(_sums.SHA256 in file.header for file in sums.files.values())
    return headers and _sums.SHA256 in sums.whole()


def _compare(sums: str, out: Output) -> int:
    """Compares a model with its sums: who signs them vouches for them."""
    path, choice = _model_of(sums)
    options = argparse.Namespace(
        path=path, check=sums, algorithm=_sums.SHA256, json=False, **choice._asdict()
    )
    return hash_sums.check(options, out)


def _model_of(sums: str) -> tuple[str, Choice]:
    """Returns the folder of sums, and which of its models they are about: one of their name, or one
    of a variant. Sums of a folder without a single model are about all files."""
    folder, file = os.path.split(sums)
    name = file.removesuffix(_sums.SUFFIX)
    plain, _, variant = name.rpartition(".")
    for choice in (Choice(name), Choice(plain, variant)):
        with contextlib.suppress(FileNotFoundError):
            of_directory(folder or ".", choice)
            return folder or ".", choice
    return folder or ".", Choice()
