"""Write some tensors of a model to a file.

Glob patterns select the tensors: those that fit a --keep, or all without one, and no --drop.
"""

import argparse
import contextlib
import fnmatch
from collections.abc import Collection, Sequence

from .._near_names import suggestions
from . import writing
from .errors import CliError
from .model import add_choice, choice_of
from .opening import refuse_stdin
from .output import Output
from .source_model import ModelSource
from .text import clipped

EXAMPLES = """
safetensors extract model.safetensors vision.safetensors --keep 'vision.*'
safetensors extract shards small.safetensors --keep 'model.layers.[01].*' --drop '*.bias'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or an index")
    parser.add_argument("target", help="a file NAME.safetensors, or a folder NAME/")
    for option, text in (("--keep", "keep only tensors that fit"), ("--drop", "leave out")):
        parser.add_argument(
            option,
            metavar="PATTERN",
            action="append",
            default=[],
            help=f"{text}; may be given several times",
        )
    writing.add_dtype(parser)
    writing.add_options(parser, "blocks")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    refuse_stdin("extract", arguments.source, arguments.target)
    if not arguments.keep and not arguments.drop:
        raise CliError("extract: which tensors? --keep or --drop")
    with contextlib.closing(ModelSource(arguments.source, choice=choice_of(arguments))) as source:
        kept = _fitting(arguments.keep, source.placed) if arguments.keep else set(source.placed)
        kept -= _fitting(arguments.drop, source.placed)
        if not kept:
            raise CliError(f"{arguments.source}: no tensor is left")
        chosen = {name: placed for name, placed in source.placed.items() if name in kept}
        source.select(chosen, arguments.dtype)
        target = writing.target_of(arguments.target)
        writing.write_source(source, target, arguments, out)
    return 0


def _fitting(patterns: Sequence[str], names: Collection[str]) -> set[str]:
    """Returns the names that fit any pattern. Each pattern fits at least one."""
    fitting: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise CliError(f"no tensor fits {clipped(pattern)}{suggestions(pattern, names)}")
        fitting |= found
    return fitting
