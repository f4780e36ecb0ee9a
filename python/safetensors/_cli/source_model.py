"""Reads safetensors files, to merge or split them."""

from . import text
from .atomic_file import AtomicFile
from .copying import copy_range
from .header_text import Entry
from .model import Model
from .output import Advance


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

    def write(self, name: str, target: AtomicFile, advance: Advance) -> None:
        file, tensor = self._placed[name]
        copy_range(file, tensor.begin, tensor.nbytes, target.fileno(), advance)

    def close(self) -> None:
        self._model.close()
