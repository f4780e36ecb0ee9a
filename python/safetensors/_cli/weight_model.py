"""Opens GGUF files and quantised models by the weight layer, with the interface of Model."""

import argparse
import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _json
from .._core import SafetensorError, _parse_model_file_name
from .._model_folder import BY_RULE, Choice
from .._paths import is_url
from .._reading import MAX_HEADER_NBYTES
from . import text
from .dtypes import BITS, element_count
from .errors import CliError
from .model import Model, choice_of
from .opening import CHUNK_NBYTES, STDIN, open_regular
from .reader import File, Tensor

if TYPE_CHECKING:
    from ..weights import Weights, WeightTensor
    from .decode import Array

_KEYS = ("quantization_config", "quantization")
"""Entries of config.json: Hugging Face's, and MLX's."""
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
    if is_wanted(path, arguments):
        return opened_as_asked(path, arguments)
    return Model(path, choice_of(arguments))


def opened_both(arguments: argparse.Namespace) -> tuple[Model, Model]:
    """Opens the paths `a` and `b`: both by the weight layer if it opens one of them, so that they
    have the same names, and the same order of rows."""
    paths, choice = (arguments.a, arguments.b), choice_of(arguments)
    with contextlib.ExitStack() as opening:
        if not any(is_wanted(path, arguments) for path in paths):
            a, b = (opening.enter_context(Model(path, choice)) for path in paths)
            opening.pop_all()
            return a, b
        x, y = (opening.enter_context(opened_as_asked(path, arguments)) for path in paths)
        if x.is_gguf != y.is_gguf:
            for model in (x, y):
                model.use_layout_of_checkpoints()
        opening.pop_all()
        return x, y


def opened_as_asked(path: str, arguments: argparse.Namespace) -> "WeightModel":
    """Opens a path by the weight layer."""
    return WeightModel(path, choice_of(arguments), is_asked_for=arguments.model)


def is_wanted(path: str, arguments: argparse.Namespace) -> bool:
    """Returns whether the options or the rule of is_weight_model() want the weight layer."""
    if arguments.model or arguments.raw:
        return bool(arguments.model)
    return is_weight_model(path, choice_of(arguments))


def is_weight_model(path: str, choice: Choice) -> bool:
    """Returns whether a local path is a GGUF file or part of one, a folder with a GGUF model, or a
    safetensors model whose config.json says that it is quantised.

    A shard alone is none, neither are patches and other files, nor what does not open.
    """
    if path == STDIN or is_url(path) or not os.path.exists(path):
        return False
    return is_gguf(path, choice) or _is_quantised(path)


def is_gguf(path: str, choice: Choice = BY_RULE) -> bool:
    """Returns whether open_weights() opens a local path as GGUF."""
    if choice != BY_RULE or path == STDIN:
        return False  # only safetensors models of a folder are chosen
    try:
        from .. import _weights  # all of ..weights takes longer to import
    except ImportError:
        return False  # a build without the weight layer
    try:
        return _weights.detect_format(path) == "gguf"
    except (_weights.WeightsError, OSError, ValueError):
        return False


def _is_quantised(path: str) -> bool:
    folder = path
    if not os.path.isdir(path):
        folder, file = os.path.split(path)
        parsed = _parse_model_file_name(file)
        if parsed is None or parsed[0] not in ("single", "index"):
            return False
    config_path = os.path.join(folder, "config.json")
    try:
        with open_regular(config_path) as opened:
            config = _json.loads(opened.read(MAX_HEADER_NBYTES), config_path)
    except (OSError, ValueError, SafetensorError, CliError):
        return False  # no model of the weight layer
    if not isinstance(config, dict):
        return False
    inner = config.get("text_config")
    tables = [config, inner] if isinstance(inner, dict) else [config]
    return any(table.get(key) for table in tables for key in _KEYS)


class WeightFile(File):
    """A model that the weight layer has opened, as one file. Raises WeightsError."""

    is_whole = False

    def __init__(self, path: str, choice: Choice, layout: str = "native") -> None:
        from ..weights import open_weights

        self.path = path
        # Types and bytes are those of the file, not those of a kernel.
        self.weights: Weights = open_weights(
            path, layout=layout, bf16="keep", scales="keep", cache_bytes=0, **choice._asdict()
        )
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
        self._row: tuple[str, int, Any] = ("", 0, None)

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

    def value_at(self, tensor: Tensor, index: int) -> Any:
        weight = self.by_name[tensor.name]
        row, column = divmod(index, weight.shape[-1] if weight.shape else 1)
        if self._row[:2] != (tensor.name, row):
            self._row = (tensor.name, row, self._decoded_row(weight, row))
        return self._row[2][column].item()

    def _decoded_row(self, weight: "WeightTensor", row: int) -> "Array":
        if not is_plain(weight):
            return weight.numpy(rows=slice(row, row + 1)).reshape(-1)
        from .decode import decoded

        packed = weight.packed()
        nbytes = len(packed) // math.prod(weight.shape[:-1])
        return decoded(packed[row * nbytes : (row + 1) * nbytes].tobytes(), weight.type_name)

    def about(self, tensor: Tensor) -> list[str]:
        weight = self.by_name[tensor.name]
        said = []
        if weight.storage != "raw" and element_count(weight.shape):
            said = [f"{8 * weight.nbytes / element_count(weight.shape):.2f} bits per weight"]
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
            raise CliError(f"this build has no weight layer: {error}") from None
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
