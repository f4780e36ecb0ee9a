"""The small files of a model's folder: configuration, tokenizer, licence."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .. import _extra, _json
from .._core import SafetensorError
from .._errors import failure
from .._paths import open_at_once, visible
from .._typing import Path

QUANTISATION = ("quantization_config", "quantization")
"""Entries of config.json about quantised tensors: Hugging Face's, and MLX's."""
_CONFIG = "config.json"
_DTYPES = ("torch_dtype", "dtype")
_MAX_NBYTES = 64 << 20
_MAX_NAMES = 10
"""How many files an error names."""


class Files(Protocol):
    """A model that is being saved."""

    def add_companion(self, name: str, data: bytes) -> None: ...


Fail = Callable[[str, str], Exception]


def _failure(text: str, path: str) -> SafetensorError:
    return failure("invalid_argument", text, path=path)


class Companions:
    """The files of a source's folder that the result needs, too; none if the source is a file."""

    def __init__(
        self,
        src: Path,
        is_decoded: bool = False,
        dtype: str | None = None,
        error: Fail = _failure,
    ) -> None:
        """Finds the files, and reads config.json if the result has decoded tensors.

        Args:
            src: a folder, or an index, which stands for its folder.
            is_decoded: whether quantised tensors are decoded: config.json loses what describes
                them.
            dtype: if decoded, a type such as "bfloat16" that replaces the one in config.json.
            error: makes the error for a file that is not what it should be from a text and the
                path.

        Raises:
            SafetensorError, or what `error` makes: config.json is not a JSON object.
        """
        self._folder = os.fsdecode(src)
        self._error = error
        self._config: bytes | None = None
        self.names: list[str] = []
        self.notes: list[str] = []
        if self._folder.endswith(".json"):
            self._folder = os.path.dirname(self._folder) or "."
        elif not os.path.isdir(self._folder):
            self._folder = ""
            return
        self._real_folder = os.path.realpath(self._folder)
        names = visible(os.listdir(self._folder))
        if is_decoded:
            names = [name for name in names if not _extra._describes_quantised(name)]
        self.names = [name for name in names if self._is_one(name)]
        if is_decoded and _CONFIG in self.names:
            path = os.path.join(self._folder, _CONFIG)
            self._config = _plain_config(self._stored(_CONFIG), dtype, path, error)

    def _is_one(self, name: str) -> bool:
        if not _extra._is_companion_name(name):
            return False
        if not self._is_inside(os.path.realpath(os.path.join(self._folder, name))):
            self.notes.append(f"`{name}` is left out: it is a link to a file outside of the folder")
            return False
        try:
            found = os.stat(os.path.join(self._folder, name))
        except OSError as error:
            self.notes.append(f"`{name}` is left out: {error.strerror}")
            return False
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_size > _MAX_NBYTES:
            self.notes.append(
                f"`{name}` is left out: it has {found.st_size:,} bytes, more than {_MAX_NBYTES:,}"
            )
            return False
        return True

    def _is_inside(self, path: str) -> bool:
        """Returns whether a path without links is one of the folder, or of a Hugging Face cache:
        snapshots/REVISION/NAME is a link to ../../blobs/DIGEST."""
        folder, parent = self._real_folder, os.path.dirname(path)
        snapshots = os.path.dirname(folder)
        blobs = os.path.join(os.path.dirname(snapshots), "blobs")
        is_cached = os.path.basename(snapshots) == "snapshots" and parent == blobs
        return is_cached or os.path.commonpath([folder, parent]) == folder

    def are_in(self, folder: str) -> bool:
        """Returns whether the source is this folder."""
        if not self._folder or not os.path.exists(folder):
            return False
        return os.path.samefile(folder, self._folder)

    def refuse_to_replace(self, folder: str, option: str) -> None:
        """Raises if the folder of the result has files of these names, which may be the user's own.
        `option` is what makes the caller replace them."""
        paths = [os.path.join(folder, name) for name in self.names]
        found = [path for path in paths if os.path.lexists(path)]
        if not found:
            return
        said = ", ".join(found[:_MAX_NAMES])
        if len(found) > _MAX_NAMES:
            said += f" and {len(found) - _MAX_NAMES:,} more"
        one = len(found) == 1
        raise self._error(
            f"{said} {'exists' if one else 'exist'}; {option} replaces {'it' if one else 'them'}",
            found[0],
        )

    def add_to(self, files: Files) -> None:
        """Adds the files to a model that is being saved: they are replaced together."""
        for name in self.names:
            data = self._config if name == _CONFIG else None
            files.add_companion(name, self._stored(name) if data is None else data)

    def _stored(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise self._error(f"{path} is not a regular file any more", path)
            if not self._is_inside(_place_of(file.fileno(), path)):
                raise self._error(f"{path} became a link to a file outside of the folder", path)
            data = file.read(_MAX_NBYTES + 1)
        if len(data) > _MAX_NBYTES:
            raise self._error(f"{path}: grew to more than {_MAX_NBYTES:,} bytes", path)
        return data


def _place_of(fd: int, path: str) -> str:
    """Returns the path of an open file without links. The system's answer (Linux) is right even if
    somebody changes links meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.path.realpath(path)


def _plain_config(data: bytes, dtype: str | None, path: str, fail: Fail) -> bytes:
    """Returns config.json without what describes quantised tensors, and with this dtype."""
    try:
        config = _json.loads(data, path, error=lambda why: fail(why, path), object_of=dict)
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, found {type(config).__name__}")
        changed = _make_plain(config, dtype)
        return (json.dumps(config, indent=2) + "\n").encode() if changed else data
    except (ValueError, RecursionError) as error:
        raise fail(f"{path} is not a configuration: {error}", path) from None


def tables_of(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a config.json and the configurations of parts in it, such as its `text_config`, at any
    depth."""
    yield config
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, dict):
            yield from tables_of(value)


def _make_plain(config: dict[str, Any], dtype: str | None) -> bool:
    """Removes the entries of quantisation, and changes the types. Returns whether there were
    any."""
    changed = False
    for table in tables_of(config):
        changed |= bool([table.pop(key) for key in QUANTISATION if key in table])
        for key in _DTYPES:
            if dtype and isinstance(table.get(key), str):
                changed |= table[key] != dtype
                table[key] = dtype
    return changed
