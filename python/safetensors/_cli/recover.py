"""Complete or undo saves, and changes in place, that a kill or a power failure interrupted.

Saving to the folder again does this first. Temporary files that single saves left are removed if
they are older than a minute.
"""

import argparse

from .._saving.recovery import recover
from .output import Output

EXAMPLES = """
safetensors recover models/llama
safetensors recover models/llama/model.safetensors.index.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a folder, or a file of the model")


def run(arguments: argparse.Namespace, out: Output) -> int:
    outcome = recover(arguments.path)
    if not out.quiet:
        out.line(f"{arguments.path}: {outcome}")
    return 0
