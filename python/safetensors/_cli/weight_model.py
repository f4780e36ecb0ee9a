"""Opens GGUF files and quantised models by the weight layer, with the interface of Model."""

import argparse
import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._core import SafetensorError
from .._dtypes import BITS
from .._model_folder import Choice
from .._paths import is_url
from .._weight_models import is_gguf, is_weight_model, open_as_stored
from . import text
from .dtypes import element_count
from .errors import CliError, no_weight_layer
from .model import Model, choice_of
from .opening import CHUNK_NBYTES, STDIN
from .reader import File, Tensor

if TYPE_CHECKING:
    from ..weights import Weights, WeightTensor
    from .decode import Array

MODEL = "a file, a folder, an index or a GGUF model"
MODEL_OR_STDIN = f"{MODEL}; - is standard input"
"""What opened() takes, for the help of arguments."""

_VALUES = 1 << 20
"""The number of values that are decoded at a time, unless a row is longer."""


def add_view(parser: argparse.ArgumentParser) -> None:
    """Adds the options for which opened() looks."""
    view = parser.add_mutually_exclusive_group()
    view.add_argument(
        "--model",
        action="store_true",
        help="open by the weight layer: decoded values, canonical names; the default for GGUF "
        "files and quantised models",
    )
    view.add_argument(
        "--raw", action="store_true", help="show the tensors of the files as they are stored"
    )


def opened(path: str, arguments: argparse.Namespace) -> Model:
    """Opens a path as the options and the rule of is_weight_model() say."""
    return opened_together([path], arguments)[0]


def opened_together(paths: Sequence[str], arguments: argparse.Namespace) -> list[Model]:
    """Opens paths to compare them: all by the weight layer if it opens one of them, so that they
    have the same names, and the same order of rows."""
    choice = choice_of(arguments)
    with contextlib.ExitStack() as opening:
        if not any(is_wanted(path, arguments) for path in paths):
            files = [opening.enter_context(Model(path, choice)) for path in paths]
            opening.pop_all()
            return files
        models = [opening.enter_context(opened_as_asked(path, arguments)) for path in paths]
        if len({model.is_gguf for model in models}) > 1:
            for model in models:
                model.use_layout_of_checkpoints()
        opening.pop_all()
        return [*models]


def opened_as_asked(path: str, arguments: argparse.Namespace) -> "WeightModel":
    """Opens a path by the weight layer."""
    return WeightModel(path, choice_of(arguments), is_asked_for=arguments.model)


def is_wanted(path: str, arguments: argparse.Namespace) -> bool:
    """Returns whether the options or the rule of is_weight_model() want the weight layer."""
    if arguments.model or arguments.raw:
        return bool(arguments.model)
    try:
        return path != STDIN and is_weight_model(path, choice_of(arguments))
    except SafetensorError as error:
        raise CliError(f"{error}; --raw shows what is stored") from None


class WeightFile(File):
    """A model that the weight layer has opened, as one file. Raises WeightsError."""

    is_whole = False

    def __init__(self, path: str, choice: Choice, layout: str) -> None:
        self.path = path
        self.weights: Weights = open_as_stored(path, choice, layout=layout, cache_bytes=0)
        self.metadata = None
        self.data_begin = 0
        weights = self.weights
        names = [*weights, *weights.unmapped, *weights.extras]
        self.by_name = {name: weights[name] for name in names}
        self.tensors = [
            Tensor(each.name, type_of(each), each.shape, 0, each.nbytes)
            for each in self.by_name.values()
        ]
        self.nbytes = sum(os.path.getsize(file) for file in weights.files)
        self._decoded: tuple[str, int, int, Any] = ("", 0, 0, None)

    def close(self) -> None:
        self.weights.close()

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        """Yields the stored bytes; of a pack or scheme, those of its parts after each other."""
        packed = self.by_name[tensor.name].packed()
        for begin in range(0, len(packed), CHUNK_NBYTES):
            yield packed[begin : begin + CHUNK_NBYTES].tobytes()

    def why_no_values(self, tensor: Tensor) -> str:
        weight = self.by_name[tensor.name]
        if is_plain(weight):
            return super().why_no_values(tensor)
        if not weight.is_decoded:
            return f"the weight layer does not decode {weight.scheme or weight.type_name}"
        return ""

    def values(self, tensor: Tensor) -> "Iterator[tuple[Array, int]]":
        weight = self.by_name[tensor.name]
        if is_plain(weight):
            yield from super().values(tensor)
            return
        row = max(1, weight.shape[-1] if weight.shape else 1)
        rows = math.prod(weight.shape[:-1]) if element_count(weight.shape) else 0
        step = max(1, _VALUES // row)
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            done = tensor.nbytes * end // rows - tensor.nbytes * begin // rows
            yield weight.numpy(rows=slice(begin, end)).reshape(-1), done

    def values_between(self, tensor: Tensor, begin: int, end: int) -> "Array":
        """Decodes whole rows, and keeps the last ones: often they are asked for again."""
        weight = self.by_name[tensor.name]
        if is_plain(weight):
            return super().values_between(tensor, begin, end)
        row = weight.shape[-1] if weight.shape else 1
        first, last = begin // row, -(-end // row)
        if self._decoded[:3] != (tensor.name, first, last):
            rows = weight.numpy(rows=slice(first, last)).reshape(-1)
            self._decoded = (tensor.name, first, last, rows)
        values: Array = self._decoded[3][begin - first * row : end - first * row]
        return values

    def _bytes_of(self, tensor: Tensor, begin: int, end: int) -> bytes:
        return self.by_name[tensor.name].packed()[begin:end].tobytes()

    def about(self, tensor: Tensor) -> list[str]:
        weight = self.by_name[tensor.name]
        said = []
        if weight.storage != "raw" and element_count(weight.shape):
            bits = text.bits_per_weight(weight.nbytes, element_count(weight.shape))
            said = [f"{bits} bits per weight"]
        stored = weight._model.parts(weight.name)
        if len(stored) > 1:
            parts = [f"{role} {kind} {text.shape(shape)}" for role, _, kind, shape in stored]
            said.append(f"in the file: {weight.source} ({', '.join(parts)})")
        elif weight.source != weight.name:
            said.append(f"in the file: {weight.source}")
        return said

    def sources(self) -> dict[str, list[str]]:
        """Returns the names of the tensors that have a name of the file, or a part of that name."""
        found: dict[str, list[str]] = {}
        for name, weight in self.by_name.items():
            names = [weight.source, *(part[1] for part in weight._model.parts(name))]
            for source in dict.fromkeys(names):
                if source not in self.by_name:
                    found.setdefault(source, []).append(name)
        return found


class WeightModel(Model):
    """A model that the weight layer has opened."""

    def __init__(self, path: str, choice: Choice, *, is_asked_for: bool) -> None:
        if path == STDIN or is_url(path):
            raise CliError("the weight layer reads local files, neither standard input nor URLs")
        self._choice = choice
        self._hint = "" if is_asked_for or is_gguf(path, choice) else "; --raw shows what is stored"
        self.path = path
        self.file = self._opened_as("native")
        self.index = None
        self.files = [self.file]
        self.others = []
        self.is_clear = True
        self.repairs = []

    def _opened_as(self, layout: str) -> WeightFile:
        try:
            from ..weights import WeightsError
        except ImportError as error:
            raise no_weight_layer(error) from None
        try:
            return WeightFile(self.path, self._choice, layout)
        except WeightsError as error:
            raise CliError(f"{error}{self._hint}") from None

    def use_layout_of_checkpoints(self) -> None:
        """Gives rows the order that they have in checkpoints of Hugging Face: llama.cpp changes it
        for some tensors. Raises CliError if the order is not known for the architecture."""
        if self.is_gguf:
            self.file.close()
            self.file = self._opened_as("hf")
            self.files = [self.file]

    @property
    def is_gguf(self) -> bool:
        return self.weights.format == "gguf"

    @property
    def weights(self) -> "Weights":
        return self.file.weights

    def aliases(self) -> dict[str, list[str]]:
        return self.file.sources()

    def metadata(self) -> dict[str, str]:
        if self.is_gguf:
            return {key: text.value(each) for key, each in self.typed_metadata().items()}
        with Model(self.path, self._choice) as files:
            return files.metadata()

    def typed_metadata(self) -> dict[str, Any]:
        """Returns the metadata of a GGUF model: texts, numbers, truths and arrays of these."""
        return dict(self.weights.metadata) if self.is_gguf else {}


def is_plain(weight: "WeightTensor") -> bool:
    """Returns whether the values of a tensor are stored in a type of the format."""
    return weight.storage == "raw" and weight.type_name in BITS


def type_of(weight: "WeightTensor") -> str:
    """Returns the type by which tensors are listed: "Q4_K", "mlx_q4 g64"."""
    name = weight.type_name
    return name if weight.quant is None else f"{name} g{weight.quant.group_size}"
