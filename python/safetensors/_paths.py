"""Tells paths from URLs, files of a model from hidden ones, and targets that are files from those
that are folders."""

import os
from collections.abc import Iterable
from typing import Any

from ._core import SafetensorError
from ._errors import Path, failure
from ._extra import _is_url as is_url

__all__ = [
    "absolute",
    "is_folder_target",
    "is_model",
    "is_url",
    "open_at_once",
    "refuse_url",
    "visible",
    "without_secrets",
]

_OTHER_FORMATS = (
    *(".bin", ".ckpt", ".gguf", ".h5", ".json", ".keras", ".mar", ".msgpack", ".npy", ".npz"),
    *(".onnx", ".pb", ".pdparams", ".pickle", ".pkl", ".pt", ".pth", ".pt2", ".tar", ".tflite"),
    *(".torchscript", ".zip"),
)


def absolute(path: Path) -> str:
    """Returns an absolute path without ".", and without a separator at its end.

    It leads where `path` does. `os.path.abspath` removes ".." with the name before it, which may be
    a link.
    """
    typed = os.fsdecode(path)
    if os.name == "nt":
        return os.path.abspath(typed)  # as the system itself does
    parts = os.path.join(os.getcwd(), typed).split("/")
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def refuse_url(filename: object) -> None:
    """Raises SafetensorError if the file or folder to save to is a URL."""
    if is_url(filename):
        scheme = str(filename).partition("://")[0]  # the rest may have secrets in it
        raise failure("invalid_argument", f"saving to a URL is not possible: {scheme}://...")


def without_secrets(filenames: Any) -> Any:
    """Returns `filenames` for a pickle: URLs have "..." instead of a query, and no user.

    Such a URL is refused when it is to be read. Other entries are returned as they are.
    """
    if isinstance(filenames, (list, tuple)):
        return [without_secrets(each) for each in filenames]
    if not (isinstance(filenames, str) and is_url(filenames)):
        return filenames
    from ._redact import redact
    from ._remote.urls import Url

    try:
        return Url.parse(filenames).without_query()
    except SafetensorError:  # no URL that is read, but one that may have secrets
        return redact(filenames)


def is_model(source: str, is_gguf: bool) -> bool:
    """Returns whether the source of a conversion is a model, not just a file of tensors: a folder,
    an index or a GGUF file."""
    return is_gguf or os.path.isdir(source) or source.endswith(".json")


def is_folder_target(path: str, of_model: bool, is_sharded: bool = False) -> bool:
    """Returns whether the target of a conversion is a folder; else it is a file.

    What exists tells, a slash at the end, and the ending `.safetensors`. Any other name is a folder
    if the source is a model.

    Args:
        of_model: whether the source is a model: see is_model().
        is_sharded: whether the result may have several files.

    Raises:
        ValueError: the name has the ending of another format, or could be either.
    """
    if is_sharded or os.path.isdir(path) or path.endswith(("/", os.sep)):
        return True
    if path.endswith(".safetensors") or os.path.lexists(path):
        return False
    ending = os.path.splitext(path)[1].lower()
    if ending in _OTHER_FORMATS:
        raise ValueError(
            f"{path}: the result is in safetensors, and {ending} is the ending of another format"
        )
    if of_model:
        return True
    raise ValueError(f"{path}: a folder ({path}/) or a file ({path}.safetensors)?")


def visible(names: Iterable[str]) -> list[str]:
    """Returns the names of a directory without hidden ones, sorted.

    Other programs leave hidden files behind: "._model.safetensors" is a file manager's.
    """
    return sorted(name for name in names if not name.startswith("."))


def open_at_once(path: str, flags: int) -> int:
    """Opens a file that may be a stranger's: the argument `opener` of open().

    Without O_NONBLOCK, opening a pipe would wait for a writer. What is read has to be a regular
    file, which the caller checks.
    """
    try:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except BlockingIOError:
        # Not a pipe: another process holds a lease on the file and will release it soon.
        return os.open(path, flags)
