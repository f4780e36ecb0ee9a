"""Reads safetensors files, to merge or split them."""

from collections.abc import Mapping, Sequence

from .._dtypes import BITS, CASTABLE
from .._model_folder import BY_RULE, Choice
from .._saving.writer import SafeWriter
from . import text
from .dtypes import element_count
from .model import Model, Placed, refuse_repeated
from .reader import File
from .source import Copies, SourceTensor


class ModelSource(Copies):
    """The tensors of files, folders and indexes, together."""

    def __init__(self, *paths: str, choice: Choice = BY_RULE, lenient: bool = False) -> None:
        self.models: list[Model] = []
        self.placed: dict[str, Placed] = {}
        try:
            for path in paths:
                self.models.append(Model(path, choice, lenient=lenient))
                self.placed.update(self.models[-1].by_name())
            self.files = [file for model in self.models for file in model.files]
            refuse_repeated(self.files)
        except BaseException:
            self.close()
            raise
        self.paths = [file.path for file in self.files]
        self.metadata: dict[str, str] = {}
        for model in self.models:
            self.metadata = {**model.metadata(), **self.metadata}
        self.notes = [repair for model in self.models for repair in model.repairs]
        self.notes += [
            f"metadata `{text.clipped(key)}` of {file.path} is left out: another "
            "file has a different value"
            for file in self.files
            for key, value in (file.metadata or {}).items()
            if self.metadata[key] != value
        ]
        self.entries: list[SourceTensor] = []
        self.select(self.placed, None)

    def select(self, placed: Mapping[str, Placed], dtype: str | None) -> None:
        """Sets which tensors are written, under which names. With `dtype`, floating-point tensors
        are cast to it."""
        self.placed = dict(placed)
        self.entries = []
        wanted = dtype.upper() if dtype is not None else None
        for name in sorted(placed, key=text.natural_key):
            tensor = placed[name].tensor
            to = wanted if wanted is not None and tensor.dtype in CASTABLE else tensor.dtype
            nbytes = element_count(tensor.shape) * BITS[to] // 8
            self.entries.append(SourceTensor(name, to, tensor.shape, nbytes))

    def in_copy_order(self, names: Sequence[str]) -> dict[File, list[str]]:
        """Returns the names by file, in file order: neighbours are then copied together."""
        by_file: dict[File, list[str]] = {}
        for name in sorted(names, key=lambda name: self.placed[name].tensor.begin):
            by_file.setdefault(self.placed[name].file, []).append(name)
        return by_file

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        for file, found in self.in_copy_order(names).items():
            with file.handle() as handle:
                pairs = [(name, self.placed[name].tensor.name) for name in found]
                writer._copy(handle, pairs, True)

    def close(self) -> None:
        for model in self.models:
            model.close()
