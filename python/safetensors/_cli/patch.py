"""Apply patches to a model, and write the result as a new model.

A patch is what `diff --patch` writes. The model and the patches are checked; the output appears
when it is complete, or not at all.
"""

import argparse
import os

from .errors import CliError
from .opening import refuse_stdin
from .output import Output

EXAMPLES = """
safetensors patch model.safetensors 1.safetensors-patch --output new.safetensors
safetensors patch models/llama 1.safetensors-patch 2.safetensors-patch --output models/new
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="the model: a file, a folder or an index")
    parser.add_argument(
        "patches", metavar="patch", nargs="+", help="patches, in the order in which they follow"
    )
    parser.add_argument(
        "--output",
        metavar="OUT",
        required=True,
        help="a file; of a model of several files, a folder",
    )
    parser.add_argument(
        "--verify",
        choices=("blocks", "full", "whole"),
        default="full",
        help="what is compared with the patches: elements that change; also the digests of their "
        "tensors (default); also that of the whole model",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--fsync", action="store_true", help="wait until all data is on the disk")


def run(arguments: argparse.Namespace, out: Output) -> int:
    from ..delta import apply_file

    output = arguments.output
    refuse_stdin("patch", arguments.source, output, *arguments.patches)
    is_empty = os.path.isdir(output) and not os.listdir(output)
    if os.path.lexists(output) and not is_empty and not arguments.force:
        raise CliError(f"{output} exists; --force replaces it")
    apply_file(
        arguments.source, arguments.patches, output, verify=arguments.verify, fsync=arguments.fsync
    )
    if not out.quiet:
        count = len(arguments.patches)
        said = "the patch" if count == 1 else f"{count:,} patches"
        out.line(f"{output}: {arguments.source} after {said}")
    return 0
