"""Tells paths from URLs."""

from ._core import SafetensorError


def is_url(filename: object) -> bool:
    """Returns whether an argument is a URL and no path: a str with "://"."""
    return isinstance(filename, str) and "://" in filename


def refuse_url(filename: object) -> None:
    """Raises SafetensorError if the file or folder to save to is a URL."""
    if is_url(filename):
        scheme = str(filename).partition("://")[0]  # the rest may have secrets in it
        raise SafetensorError(f"saving to a URL is not possible: {scheme}://...")
