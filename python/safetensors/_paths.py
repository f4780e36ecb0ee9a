"""Tells paths from URLs, and files of a model from hidden ones."""

from typing import Iterable, List

from ._core import SafetensorError
from ._core import _is_url as is_url

__all__ = ["is_url", "refuse_url", "visible"]


def refuse_url(filename: object) -> None:
    """Raises SafetensorError if the file or folder to save to is a URL."""
    if is_url(filename):
        scheme = str(filename).partition("://")[0]  # the rest may have secrets in it
        raise SafetensorError(f"saving to a URL is not possible: {scheme}://...")


def visible(names: Iterable[str]) -> List[str]:
    """Returns the names of a directory without hidden ones, sorted.

    Other programs leave hidden files behind: "._model.safetensors" is a file manager's.
    """
    return sorted(name for name in names if not name.startswith("."))
