"""Split a model into shards with an index.

On file systems such as btrfs and XFS, the shards of a file with the layout `blocks` take almost no
disk space: they share it with the source.
"""

import argparse
import contextlib

from . import writing
from .model import add_choice, choice_of
from .opening import refuse_stdin
from .output import Output
from .source_model import ModelSource

EXAMPLES = """
safetensors shard model.safetensors shards --max-shard-size 5GB
safetensors shard model.safetensors shards --max-shard-size 2GiB --dtype BF16 --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or an index")
    parser.add_argument("target", help="a folder; it is made if it does not exist")
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        default="5GB",
        help="the limit of a shard's tensors: 5GB, 500MB, 2GiB (default: 5GB)",
    )
    writing.add_dtype(parser)
    writing.add_options(parser, "blocks")
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    refuse_stdin("shard", arguments.source, arguments.target)
    target = writing.target_of(arguments.target, shard_size=arguments.max_shard_size)
    with contextlib.closing(ModelSource(arguments.source, choice=choice_of(arguments))) as source:
        source.select(source.placed, arguments.dtype)
        writing.write_source(source, target, arguments, out)
    return 0
