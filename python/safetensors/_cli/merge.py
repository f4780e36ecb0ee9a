"""Merge the tensors of several files or models into one file.

Each tensor name occurs once. If metadata differ, the first value is kept, and a note says so.
"""

import argparse
import contextlib

from . import writing
from .model import add_choice, choice_of
from .opening import refuse_stdin
from .output import Output
from .source_model import ModelSource

EXAMPLES = """
safetensors merge shards model.safetensors
safetensors merge base.safetensors adapter.safetensors both.safetensors --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="+", help="files, folders or indexes")
    parser.add_argument("target", help="a file NAME.safetensors, or a folder NAME/")
    writing.add_dtype(parser)
    writing.add_options(parser, "blocks")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    refuse_stdin("merge", *arguments.source, arguments.target)
    with contextlib.closing(ModelSource(*arguments.source, choice=choice_of(arguments))) as source:
        source.select(source.placed, arguments.dtype)
        target = writing.target_of(arguments.target)
        writing.write_source(source, target, arguments, out)
    return 0
