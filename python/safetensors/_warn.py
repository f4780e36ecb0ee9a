"""Warns on the line that called the package."""

import os
import sys
import warnings

_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Warns, with the position of the innermost frame that is not the package's.

    Filters and the count of warnings go by that position: one in the package would make all callers
    one.
    """
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, stacklevel=depth)
