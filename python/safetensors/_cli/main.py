"""The argument parser, and the exit status of each command."""

import argparse
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import SafetensorError, __version__
from .._near_names import suggestions
from .._paths import is_url
from .._redact import redact
from . import (
    check,
    completion,
    convert,
    diagnose,
    diff,
    extract,
    hash,
    ls,
    merge,
    meta,
    output,
    patch,
    recover,
    rename,
    report,
    shard,
    show,
    sign,
    verify,
)
from .errors import TROUBLE, CliError
from .text import BESIDE, program, shown

_COMMANDS = (
    ls,
    show,
    meta,
    check,
    diff,
    hash,
    report,
    patch,
    convert,
    shard,
    merge,
    extract,
    rename,
    recover,
    sign,
    verify,
    completion,
)
_READ_URLS = (ls, show, meta, check, diff, hash, completion)
_PATHS = ("path", "source", "target", "against")
_LEAST_LIKE = 0.5
"""How much alike two commands are, so that one is suggested: `sl` and `ls` are."""
_OTHER_WORDS = {
    **dict.fromkeys(["info", "inspect", "list", "tree"], "ls"),
    **dict.fromkeys(["cat", "dump", "print", "stats"], "show"),
    **dict.fromkeys(["header", "metadata"], "meta"),
    **dict.fromkeys(["validate", "lint", "test"], "check"),
    **dict.fromkeys(["compare", "cmp"], "diff"),
    **dict.fromkeys(["checksum", "digest", "sha256", "sums"], "hash"),
    **dict.fromkeys(["dequantize", "decode", "cast"], "convert"),
    **dict.fromkeys(["split"], "shard"),
    **dict.fromkeys(["concat", "join"], "merge"),
    **dict.fromkeys(["filter", "select"], "extract"),
    **dict.fromkeys(["undo"], "recover"),
}
"""Words for which other programs have commands, and ours."""
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_STATUS = """status:
  0    the command is done, and the answer is yes
  1    the answer is no: damaged, different, no such key, nothing matches
  2    the command failed; standard error says why
  130  Ctrl-C interrupted the command
  141  the reader of a pipe closed it
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        # Shells expand patterns to file names, which are untrusted text as well.
        # Only this message is written without output.py.
        self.exit(TROUBLE, f"{self.prog}: {shown(message)} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        said = f"{program()} {__version__}"
        if program() == BESIDE:
            from safetensors_cpp import __version__ as own

            said = f"{program()} {own}, with the interface of safetensors {__version__}"
        print(said)
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    top = _Parser(
        prog=program(),
        description="Inspect, check, compare and convert safetensors files and GGUF models.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", nargs=0, action=_Version, help="print the version and exit")
    added_to = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        name = command.__name__.rpartition(".")[2]
        text = (command.__doc__ or "").strip()  # python -OO removes it
        added = added_to.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            epilog="examples:" + _examples(command.EXAMPLES).replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(added)
        output.add_options(added)
        added.set_defaults(run=command.run)
    return top


def _examples(text: str) -> str:
    """Returns examples with the name of this program."""
    return re.sub(r"(^|\| )safetensors ", rf"\1{program()} ", text.rstrip(), flags=re.MULTILINE)


def subcommands(top: argparse.ArgumentParser) -> "argparse._SubParsersAction[_Parser]":
    """Returns what has the parsers of the commands."""
    (action,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    return action


def commands(top: argparse.ArgumentParser) -> dict[str, _Parser]:
    """Returns the parser of each command, by name."""
    return dict(subcommands(top).choices)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status (see _STATUS)."""
    _replace_closed_streams()
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        top = parser()
        if not words:
            top.print_help(sys.stderr)
            return TROUBLE
        if words[0] == "help":  # as of other programs: `help COMMAND`
            words = [*words[1:2], "--help"]
        _refuse_unknown(words[0], top)
        arguments, others = top.parse_known_args(words)
        if others:  # top would not say of which command
            commands(top)[arguments.command].error(f"unrecognized arguments: {' '.join(others)}")
        out = output.Output(arguments.color, arguments.quiet)
        warnings.showwarning = lambda message, *_, **__: out.note(str(message))
        if arguments.run not in [command.run for command in _READ_URLS]:
            _refuse_urls(arguments)
        status: int = arguments.run(arguments, out)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended.
        _drop_output()
        return _BROKEN_PIPE
    except Exception as error:
        if os.environ.get("SAFETENSORS_TRACEBACK", "").strip().lower() in ("1", "on"):
            output.show_traceback(error)
        return _fail(_described(error), TROUBLE)


def _refuse_unknown(command: str, top: argparse.ArgumentParser) -> None:
    """Ends the program if the first word is neither a command nor an option."""
    known = [*commands(top), "help"]
    if command in known or command.startswith("-"):
        return
    if command in _OTHER_WORDS:
        top.error(f"there is no command {command}; did you mean `{_OTHER_WORDS[command]}`?")
    top.error(f"there is no command {command}{suggestions(command, known, like=_LEAST_LIKE)}")


def _replace_closed_streams() -> None:
    """Gives standard streams that the caller has closed (`>&-`) to nowhere: Python has None there.
    The exit status is still the answer."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _refuse_urls(arguments: argparse.Namespace) -> None:
    for name in _PATHS:
        value = getattr(arguments, name, None)
        for path in value if isinstance(value, list) else [value]:
            if is_url(path):
                raise CliError(f"{arguments.command} takes files, not URLs: {redact(str(path))}")


def _described(error: Exception) -> str:
    weights = sys.modules.get("safetensors._weights")
    if weights is not None and isinstance(error, weights.WeightsError):
        return str(error)
    if isinstance(error, SafetensorError) and (kind := diagnose.kind_in(error)):
        return kind
    # An ImportError names the package that a URL needs.
    if isinstance(error, (CliError, SafetensorError, ImportError)):
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
    """Redirects standard output to nowhere: Python flushes it at exit, which would fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
