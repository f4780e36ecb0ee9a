"""Reads safetensors files, to merge or split them."""

from collections.abc import Mapping, Sequence

from .._dtypes import BITS, CASTABLE
from .._model_folder import BY_RULE, Choice
from .._saving.writer import SafeWriter
from .._weight_models import is_weight_model
from . import layer_names, text
from .dtypes import element_count
from .errors import CliError
from .model import Model, Placed, refuse_repeated
from .reader import File
from .source import Copies, SourceTensor


class ModelSource(Copies):
    """The tensors of files, folders and indexes, together."""

    def __init__(self, *paths: str, choice: Choice = BY_RULE, lenient: bool = False) -> None:
        self._choice = choice
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
        described = [
            (file.path, file.metadata[layer_names.KEY])
            for file in self.files
            if file.metadata and layer_names.KEY in file.metadata
        ]
        if len({text for _, text in described}) > 1:
            self.metadata[layer_names.KEY] = layer_names.merged(described)
        self.notes = [repair for model in self.models for repair in model.repairs]
        self.notes += [
            f"metadata `{text.clipped(key)}` of {file.path} is left out: another "
            "file has a different value"
            for file in self.files
            for key, value in (file.metadata or {}).items()
            if self.metadata[key] != value and key != layer_names.KEY
        ]
        self.entries: list[SourceTensor] = []
        self.select(self.placed, None)

    def select(self, placed: Mapping[str, Placed], dtype: str | None) -> None:
        """Sets which tensors are written, under which names. With `dtype`, floating-point tensors
        are cast to it. Raises CliError if some of them may be codes of a quantised model."""
        if dtype is not None:
            self._refuse_codes()
        self.placed = dict(placed)
        self.entries = []
        wanted = dtype.upper() if dtype is not None else None
        for name in sorted(placed, key=text.natural_key):
            tensor = placed[name].tensor
            to = wanted if wanted is not None and tensor.dtype in CASTABLE else tensor.dtype
            nbytes = element_count(tensor.shape) * BITS[to] // 8
            self.entries.append(SourceTensor(name, to, tensor.shape, nbytes))

    def _refuse_codes(self) -> None:
        why = "its codes would be cast, not decoded: `safetensors convert --dtype` decodes them"
        for model in self.models:
            if is_weight_model(model.path, self._choice):
                raise CliError(f"{model.path} is quantised, and {why}")
        scaled = {_scaled_by(name) for name in self.placed if "scale" in name.rpartition(".")[2]}
        for name, (file, tensor) in self.placed.items():
            is_code = BITS[tensor.dtype] <= 8 and tensor.dtype in CASTABLE
            if is_code and not scaled.isdisjoint((name, name.rpartition(".")[0])):
                raise CliError(f"{file.path}: `{text.clipped(name)}` has scales, and {why}")

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

    def refuse_changed(self) -> None:
        for file in self.files:
            file.refuse_changed()

    def close(self) -> None:
        for model in self.models:
            model.close()


def _scaled_by(name: str) -> str:
    """Returns the tensor or the module that the name of a scale begins with."""
    module, _, leaf = name.rpartition(".")
    before = leaf.partition("_scale")[0] if "_scale" in leaf else ""
    return ".".join(filter(None, [module, before])) if before not in ("", "weight") else module
