"""``python -m safetensors_cpp PROGRAM``: runs a program for which `safetensors` is this package.

The program is run by a new interpreter with `_children` in PYTHONPATH, as are its Python children.
"""

import os
import subprocess
import sys

from . import _HERE

_USAGE = """usage: python [OPTION ...] -m safetensors_cpp PROGRAM [ARGUMENT ...]
       python [OPTION ...] -m safetensors_cpp -m MODULE [ARGUMENT ...]
       python [OPTION ...] -m safetensors_cpp -c CODE [ARGUMENT ...]
"""


def _options(arguments: list[str]) -> list[str]:
    """Returns the options that this interpreter was started with."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    # They end with -m safetensors_cpp, which may be one word, and the m may follow other letters.
    last = options.pop().removesuffix("safetensors_cpp") or options.pop()
    last = last.removesuffix("m")
    return options if last == "-" else [*options, last]


def main() -> int:
    """Replaces this process by the program. Returns the exit status where that is impossible."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    if not arguments or (arguments[0][:1] == "-" and arguments[0] not in ("-m", "-c", "-")):
        sys.stderr.write(_USAGE)
        return 2
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.stderr.write(
            "safetensors_cpp: with -E, -I or -S, Python ignores PYTHONPATH or sitecustomize, which "
            "this needs; `safetensors-cpp enable` works with -E and -I\n"
        )
        return 2
    command = [sys.executable, *_options(arguments), *arguments]
    others = os.environ.get("PYTHONPATH")
    children = os.path.join(_HERE, "_children")
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([children, others] if others else [children])
    if os.name == "nt":  # execve of Windows returns to the shell before the program has ended
        return subprocess.run(command, env=environment, check=False).returncode
    return os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main())
