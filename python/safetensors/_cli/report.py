"""Write a page of HTML about a model: sizes, types, values, and how it differs from another.

The page is one file without scripts, and names files without their folders. It shows the names,
the metadata and the configuration of the model. Needs NumPy.
"""

import argparse

from .. import _core
from . import text
from .errors import need_numpy
from .model import add_choice
from .opening import refuse_stdin
from .output import Output
from .weight_model import MODEL, add_view
from .writing import refuse_existing

EXAMPLES = """
safetensors report model.safetensors -o report.html
safetensors report models/llama --against models/llama-tuned -o tuned.html
safetensors report --quick model.gguf -o report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help=MODEL)
    parser.add_argument(
        "--against", metavar="OTHER", help="another model: say which tensors differ, and how much"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the page to write, such as r.html"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="read up to 1,048,576 values of a tensor, spread over it, instead of all",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_choice(parser)
    add_view(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    need_numpy("report")
    from .report_page import page

    target = arguments.output
    refuse_stdin("report", arguments.path, arguments.against, target)
    refuse_existing(target, arguments.force)
    data = page(arguments, out).encode("utf-8", "backslashreplace")
    _core._write_file(target, data, False)
    if not out.quiet:
        out.line(f"{target}: {text.size(len(data))}")
    return 0
