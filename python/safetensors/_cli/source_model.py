"""Reads safetensors files, to merge or split them."""

from typing import Sequence

from .._writer import SafeWriter
from . import text
from .model import Model
from .reader import File
from .source import Entry


class ModelSource:
    """A file, a folder or an index of safetensors files."""

    def __init__(self, path: str) -> None:
        self._model = Model(path)
        try:
            self._placed = self._model.by_name()
        except BaseException:
            self._model.close()
            raise
        self.entries = [
            Entry(name, tensor.dtype, tensor.shape, tensor.nbytes)
            for name, (_, tensor) in sorted(
                self._placed.items(), key=lambda item: text.natural_key(item[0])
            )
        ]
        self.metadata = self._model.metadata()
        self.notes = [
            f"metadata `{text.clipped(key)}` of {file.path} is left out: another "
            "file has a different value"
            for file in self._model.files
            for key, value in (file.metadata or {}).items()
            if self.metadata[key] != value
        ]

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        by_file: dict[File, list[str]] = {}
        # In file order, so that neighbours are copied together.
        for name in sorted(names, key=lambda name: self._placed[name].tensor.begin):
            by_file.setdefault(self._placed[name].file, []).append(name)
        for file, found in by_file.items():
            with file.handle() as handle:
                writer._copy(handle, [(name, name) for name in found])

    def close(self) -> None:
        self._model.close()
