"""Print a script that completes commands, options and paths in a shell. Needs shtab."""

import argparse
import sys

from .errors import CliError
from .output import Output
from .text import BESIDE, program

EXAMPLES = """
safetensors completion bash > ~/.local/share/bash-completion/completions/safetensors
safetensors completion zsh > ~/.zfunc/_safetensors
safetensors completion fish > ~/.config/fish/completions/safetensors.fish
"""

_SHELLS = ("bash", "zsh", "fish")
_PATHS = {"path", "paths", "a", "b", "source", "target", "patches"}
"""Arguments that shells complete with file names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def run(arguments: argparse.Namespace, _out: Output) -> int:
    try:
        import shtab
    except ImportError:
        raise CliError("completion needs shtab: pip install shtab") from None
    from .main import commands, parser, subcommands

    top = parser()
    if program() == BESIDE:
        for name in ("enable", "disable", "status"):  # its own: see safetensors_cpp
            subcommands(top).add_parser(name, help=f"see {BESIDE} --help")
    for command in commands(top).values():
        for action in command._actions:
            if not action.option_strings and action.dest in _PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(top, shell=arguments.shell))
    return 0
