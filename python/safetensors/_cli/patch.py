"""Apply patches to a model, and write the result as a new model or into its own files.

A patch is what `diff --patch` writes. The model and the patches are checked first. The output
appears when it is complete, or not at all. A change in place that was interrupted is completed by
`safetensors recover`; until then no reader accepts the files.
"""

import argparse
import os

from .errors import CliError
from .model import add_choice
from .opening import refuse_stdin
from .output import Output
from .writing import add_sums, refuse_existing

EXAMPLES = """
safetensors patch model.safetensors 1.safetensors-patch --output new.safetensors
safetensors patch models/llama 1.safetensors-patch 2.safetensors-patch --output models/new
safetensors patch models/llama 1.safetensors-patch --in-place
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="the model: a file, a folder or an index")
    parser.add_argument(
        "patches", metavar="patch", nargs="+", help="patches, in the order in which they follow"
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--output", metavar="OUT", help="a file; of a model of several files, a folder")
    to.add_argument("--in-place", action="store_true", help="change the files of the model")
    parser.add_argument(
        "--shared", action="store_true", help="with --in-place: also if others have the files open"
    )
    parser.add_argument(
        "--verify",
        choices=("blocks", "full", "whole"),
        default="full",
        help="what is compared with the patches: elements that change; also the digests of their "
        "tensors (default); also that of the whole model",
    )
    parser.add_argument(
        "--already",
        choices=("error", "skip"),
        default="error",
        help="what to do about patches that the model has: fail (default), or leave them out",
    )
    add_sums(parser)
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--fsync", action="store_true", help="wait until all data is on the disk")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    from ..delta import PatchError, apply_file

    if arguments.shared and not arguments.in_place:
        raise CliError("--shared needs --in-place")
    output = arguments.output
    refuse_stdin("patch", arguments.source, output, *arguments.patches)
    if output is None:
        output = arguments.source
    elif not os.path.isdir(output) or (os.listdir(output) and not arguments.force):
        refuse_existing(output, arguments.force)
    try:
        with out.reported("patching") as report:
            apply_file(
                arguments.source,
                arguments.patches,
                arguments.output,
                in_place=arguments.in_place,
                verify=arguments.verify,
                already=arguments.already,
                fsync=arguments.fsync,
                shared=arguments.shared,
                sums=arguments.sums,
                name=arguments.name,
                variant=arguments.variant,
                progress=report,
            )
    except PatchError:
        raise
    except ValueError as error:  # such as patches that need another output
        raise CliError(str(error)) from None
    if not out.quiet:
        count = len(arguments.patches)
        said = "the patch" if count == 1 else f"{count:,} patches"
        out.line(f"{output}: {arguments.source} after {said}")
    return 0
