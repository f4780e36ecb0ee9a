"""Verify the signature of a file or of all files of a folder, made by `sign` or model-signing.

The status is 0 if the signature is genuine and the files are those that were signed, 1 if not. Then
the files that were added, removed or changed are listed. Needs the package model-signing.
"""

import argparse
import contextlib
import io

from ..signing import _package
from . import signatures, text
from .errors import NEGATIVE, CliError
from .opening import refuse_stdin
from .output import Output

EXAMPLES = """
safetensors verify models/llama --key public.pem
safetensors verify models/llama --certificate-chain root.pem
safetensors verify models/llama --identity me@example.org --identity-provider https://example.org
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a folder or a file")
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument("--key", metavar="KEY", help="the public key of the signer, in PEM")
    by.add_argument("--identity", help="the identity that signed with Sigstore")
    signatures.add_chain(by, "a root certificate that you trust, or one that leads to it")
    parser.add_argument(
        "--identity-provider",
        "--issuer",
        metavar="URL",
        help="with --identity: who vouches for the identity",
    )
    signatures.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print what differs as JSON")


def run(arguments: argparse.Namespace, out: Output) -> int:
    path = arguments.path
    refuse_stdin("verify", path, arguments.key)
    if (arguments.identity is None) != (arguments.identity_provider is None):
        raise CliError("--identity and --identity-provider go together")
    if arguments.use_staging and arguments.identity is None:
        raise CliError("--use-staging goes with --identity")
    signature = signatures.place_of(path, arguments.signature)
    package = _package()
    # The package prints warnings to standard output.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        verifier = package.verifier(
            key=arguments.key,
            identity=arguments.identity,
            issuer=arguments.identity_provider or "",
            certificate_chain=arguments.certificate_chain,
            use_staging=arguments.use_staging,
        )
        verdict = package.verify(
            verifier, path, signature, arguments.ignore_paths, arguments.allow_symlinks
        )
    for line in printed.getvalue().splitlines():
        out.note(line)
    if arguments.json:
        out.json({"signature": signature, **verdict._asdict()})
        return NEGATIVE if verdict.problem else 0
    if not verdict.problem:
        signed = text.count(verdict.files, "file")
        out.line(f"{path}: {signed} as signed in {signature}")
        return 0
    out.line((f"{path}: not as signed in {signature}: {verdict.problem}", "red"))
    for sign, paths in (
        ("+ {} (added)", verdict.added),
        ("- {} (removed)", verdict.removed),
        ("! {} (changed)", verdict.changed),
    ):
        for each in paths:
            out.line("  " + sign.format(path if each == "." else each))
    return NEGATIVE
