"""Tells paths from URLs, and files of a model from hidden ones."""

from typing import Any, Iterable, List

from ._core import SafetensorError
from ._core import _is_url as is_url

__all__ = ["is_url", "refuse_url", "visible", "without_secrets"]


def refuse_url(filename: object) -> None:
    """Raises SafetensorError if the file or folder to save to is a URL."""
    if is_url(filename):
        scheme = str(filename).partition("://")[0]  # the rest may have secrets in it
        raise SafetensorError(f"saving to a URL is not possible: {scheme}://...")


def without_secrets(filenames: Any) -> Any:
    """Returns `filenames` for a pickle: URLs have "..." instead of a query, and no user.

    Such a URL is refused when it is to be read. Other entries are returned as they are.
    """
    if isinstance(filenames, (list, tuple)):
        return [without_secrets(each) for each in filenames]
    if not (isinstance(filenames, str) and is_url(filenames)):
        return filenames
    from ._remote.redact import redact
    from ._remote.urls import Url

    try:
        return Url.parse(filenames).without_query()
    except SafetensorError:  # no URL that is read, but one that may have secrets
        return redact(filenames)


def visible(names: Iterable[str]) -> List[str]:
    """Returns the names of a directory without hidden ones, sorted.

    Other programs leave hidden files behind: "._model.safetensors" is a file manager's.
    """
    return sorted(name for name in names if not name.startswith("."))
