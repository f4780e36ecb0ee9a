"""``python -m safetensors``, and the program ``safetensors``."""

import sys


def main() -> int:
    """Runs a command and returns its exit status."""
    if sys.argv[1:2] == ["--complete-names"]:  # for shells, which wait: see _cli/names.py
        from ._cli.names import main as run
    else:
        from ._cli.main import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
