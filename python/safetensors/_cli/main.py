"""The parser, the commands, and how each of them ends."""

import argparse
import os
import sys
import warnings
from typing import NoReturn, Sequence

from .. import SafetensorError, __version__
from . import check, completion, convert, diff, hash, ls, meta, output, show
from .errors import TROUBLE, CliError
from .text import shown

_COMMANDS = (ls, show, meta, check, diff, hash, convert, completion)
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_STATUS = """status:
  0    done, and the answer is yes
  1    the answer is no: damaged, different, no such key, nothing matches
  2    it could not be done; standard error says why
  130  interrupted
  141  the reader of a pipe went away
"""


class _Parser(argparse.ArgumentParser):
    """Its errors are one line."""

    def error(self, message: str) -> NoReturn:
        # Shells put file names into the command line, which are a stranger's as well.
        self.exit(TROUBLE, f"{self.prog}: {shown(message)} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="safetensors",
        description="Look into safetensors files, and change them.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"safetensors {__version__}")
    added_to = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        name = command.__name__.rpartition(".")[2]
        text = (command.__doc__ or "").strip()
        added = added_to.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            epilog="examples:" + command.EXAMPLES.rstrip().replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(added)
        output.add_options(added)
        added.set_defaults(run=command.run)
    return top


def commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (action,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status: 0, 1 for an answer that is no, 2 for trouble."""
    try:
        arguments = parser().parse_args(argv)
        out = output.Output(arguments.color, arguments.quiet)
        warnings.showwarning = lambda message, *_, **__: out.note(str(message))
        status: int = arguments.run(arguments, out)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # Who read the output has seen enough.
        _drop_output()
        return _BROKEN_PIPE
    except Exception as error:
        if os.environ.get("SAFETENSORS_TRACEBACK"):
            output.show_traceback(error)
        return _fail(_described(error), TROUBLE)


def _described(error: Exception) -> str:
    if isinstance(error, (CliError, SafetensorError)):
        return str(error)
    if isinstance(error, OSError):
        if error.strerror and error.filename is not None:
            return f"{os.fsdecode(error.filename)}: {error.strerror}"
        return error.strerror or str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory. {error}".strip()
    return f"internal error, please report it: {type(error).__name__}: {error}"


def _fail(message: str, status: int) -> int:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_output()
    try:
        output.complain(message)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    return status


def _drop_output() -> None:
    """Python flushes at its end: let it write to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
