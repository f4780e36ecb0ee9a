"""Tells paths from URLs."""

from ._core import SafetensorError
from ._core import _is_url as is_url

__all__ = ["is_url", "refuse_url"]


def refuse_url(filename: object) -> None:
    """Raises SafetensorError if the file or folder to save to is a URL."""
    if is_url(filename):
        scheme = str(filename).partition("://")[0]  # the rest may have secrets in it
        raise SafetensorError(f"saving to a URL is not possible: {scheme}://...")
