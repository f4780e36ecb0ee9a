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

# The first word after the command that is no option is the path. Nothing of the line is evaluated.
_BASH = r"""
_safetensors_names() {
  local word path=
  for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
    [[ $word == -* ]] || { path=${word//[\\\"\']/}; break; }
  done
  [[ -n $path ]] || return
  "${COMP_WORDS[0]}" --complete-names "${path/#\~\//$HOME/}" "$1" 2>/dev/null
}
"""
_ZSH = r"""
_safetensors_names() {
  local word file=
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ $word == -* ]] || { file=${(Q)word}; break; }
  done
  [[ -n $file ]] || return 1
  compadd -- ${(f)"$(PROGRAM --complete-names "${file/#\~\//$HOME/}" "$PREFIX" 2>/dev/null)"}
}
"""
_FISH = r"""
function _safetensors_names
  set -l words (commandline -opc)
  for word in $words[3..]
    if not string match -q -- '-*' $word
      set -l file (string replace -r '^~/' "$HOME/" -- $word)
      PROGRAM --complete-names $file (commandline -ct) 2>/dev/null
      return
    end
  end
end
"""
_NAMES = {
    "bash": "_safetensors_names",
    "zsh": "_safetensors_names",
    "fish": "(_safetensors_names)",
    "preamble": {"bash": _BASH, "zsh": _ZSH, "fish": _FISH},
}
"""How shells complete names of tensors, those of the file that the line has before."""


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
    (names,) = (each for each in commands(top)["show"]._actions if each.dest == "names")
    names.complete = _NAMES  # type: ignore[attr-defined]
    script = shtab.complete(top, shell=arguments.shell)
    sys.stdout.write(script.replace("PROGRAM --complete-names", f"{program()} --complete-names"))
    return 0
