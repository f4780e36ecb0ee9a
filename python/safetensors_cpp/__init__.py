"""Makes every later `import safetensors` of this process import this project's package.

    import safetensors_cpp
    import safetensors

It must be imported before `safetensors` is. Upstream's package stays installed and unchanged.
`python -m safetensors_cpp PROGRAM` does the same for a program and its Python children, and
`safetensors-cpp enable` for an environment.
"""

import os
import re
import sys
import warnings
from importlib import metadata

__version__ = "1.0.0"

_UPSTREAM = "0.8.0"  # the version of upstream whose interface the package has
_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.join(_HERE, "_package")  # holds the folder `safetensors`, and nothing else


def _release(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []


def _upstream_version() -> str | None:
    """Returns the version of the installed distribution `safetensors`."""
    try:
        return metadata.version("safetensors")
    except metadata.PackageNotFoundError:
        return None


def _newer_upstream() -> str | None:
    """Returns a sentence if upstream's version is newer than its interface that we have."""
    version = _upstream_version()
    if version is None or _release(version) <= _release(_UPSTREAM):
        return None
    return (
        f"safetensors {version} is installed, and safetensors_cpp {__version__} has only the "
        f"interface of safetensors {_UPSTREAM}"
    )


def _switch() -> None:
    loaded = sys.modules.get("safetensors")
    if loaded is not None:
        origin = os.path.abspath(getattr(loaded, "__file__", None) or "unknown")
        if not origin.startswith(os.path.join(_PACKAGE, "")):
            raise ImportError(
                "safetensors_cpp must be imported before safetensors, which this process has "
                f"already imported from {origin}"
            )
    # Children that multiprocessing spawns get this path, too.
    sys.path[:] = [_PACKAGE, *(entry for entry in sys.path if entry != _PACKAGE)]
    text = _newer_upstream()
    program = os.path.basename("".join(getattr(sys, "argv", [])[:1]))
    # The command says it in a line of its own: see _command.
    if text is not None and not program.startswith("safetensors-cpp"):
        warnings.warn(text, stacklevel=3)


_switch()
