"""What a conversion to safetensors writes: pure planning, from headers."""

import math
from types import TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Type

from safetensors._specs import nbytes_of
from safetensors._typing import Path
from safetensors._weights import WeightsError

from ._companions import Companions
from ._hf_names import HfNames
from ._model import Weights, open_weights
from ._tensor import WeightTensor

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32", "keep": None}
"""The values of `dtype`: the type of the results."""
DECODED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CASTABLE = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""Plain types that `dtype` changes. Others, such as integers, are kept."""
NBYTES = {"F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "F32": 4, "F16": 2, "BF16": 2}
_UNIT_VALUES = 1 << 19
_MOST_ROW = 1 << 25
"""Values of the longest row that is decoded: 128 MiB of F32."""
_MOST_STORED = 256 << 20
"""Bytes of the largest GGUF tensor that is not decoded."""


class Output(NamedTuple):
    """A tensor of the result."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    source: str
    """The name by which the weight layer has it."""
    row0: int
    """Its first row in the source."""
    how: str
    """ "decode", "copy" (a safetensors tensor, unchanged) or "stored" (a GGUF one)."""

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * NBYTES[self.dtype]


class Unit(NamedTuple):
    """Rows of an output."""

    output: Output
    begin: int
    rows: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.output.columns * NBYTES[self.output.dtype]

    @property
    def offset(self) -> int:
        """Its first byte in the output."""
        return self.begin * self.output.columns * NBYTES[self.output.dtype]


class Plan:
    """What a conversion writes. Reads headers only; nothing is decoded before `write`."""

    def __init__(self, src: Path, dtype: str = "keep") -> None:
        """Opens the model.

        Raises:
            WeightsError: the model cannot be opened, or one of its tensors not be decoded.
            ValueError: `dtype` is none of DTYPES.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, not one of {', '.join(DTYPES)}")
        self._wanted = DTYPES[dtype]
        self.notes: List[str] = []
        self.weights = self._open(src)
        try:
            self.outputs: List[Output] = []
            self._find_outputs()
            self.companions = Companions(src)
            self.metadata = {"format": str(self.weights.metadata.get("format", "pt"))}
        except BaseException:
            self.close()
            raise

    def _open(self, src: Path) -> Weights:
        options: Dict[str, Any] = {"mmap": False, "bf16": "keep", "scales": "keep"}
        try:
            weights = open_weights(src, layout="hf", **options)
        except WeightsError as error:
            if error.code != "unsupported":
                raise
            weights = open_weights(src, **options)
            self._renames = False
            self.notes.append(
                f"values are as the GGUF file stores them, under canonical names: {error}"
            )
        else:
            self._renames = weights.format == "gguf"
        self.notes += weights.warnings
        return weights

    def close(self) -> None:
        self.weights.close()

    def __enter__(self) -> "Plan":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def specs(self) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
        return {each.name: (each.dtype, each.shape) for each in self.outputs}

    def sizes(self) -> Dict[str, int]:
        """Returns the bytes of each output."""
        return nbytes_of([(name, *spec) for name, spec in self.specs.items()])

    # Planning

    def _find_outputs(self) -> None:
        weights = self.weights
        names = None
        if self._renames and HfNames.is_known(weights.config.architecture):
            names = HfNames(weights.config.architecture, weights)
        elif self._renames:
            self.notes.append(
                f"tensors get canonical names: those of Hugging Face are not known for "
                f"`{weights.config.architecture}`"
            )
        left_out, unnamed = [], []
        for name in [*weights, *weights.unmapped]:
            tensor = weights[name]
            if names is None:
                new = tensor.source if weights.format != "gguf" else name
                self._add(tensor, new, False)
                continue
            found = names.of(name)
            if found is not None and not (found.is_stack and len(tensor.shape) != 3):
                self._add(tensor, found.name, found.is_stack)
            elif names.is_left_out(name):
                left_out.append(name)
            else:
                unnamed.append(name)
                self._add(tensor, name, False)
        self._note("left out, because checkpoints have them in config.json", left_out)
        self._note(
            "kept under their names in the source, because Hugging Face's are not known", unnamed
        )
        self._refuse_twice()

    def _note(self, what: str, names: Sequence[str]) -> None:
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self.notes.append(f"`{names[0]}`{more}: {what}")

    def _add(self, tensor: WeightTensor, new: str, is_stack: bool) -> None:
        dtype, how = self._type_of(tensor)
        self._check_readable(tensor, how)
        shape = tensor.shape
        if not is_stack:
            self.outputs.append(Output(new, dtype, shape, tensor.name, 0, how))
            return
        experts, rows, columns = shape
        for expert in range(experts):
            name = new.replace("{}", str(expert))
            place = Output(name, dtype, (rows, columns), tensor.name, expert * rows, how)
            self.outputs.append(place)

    def _type_of(self, tensor: WeightTensor) -> Tuple[str, str]:
        """Returns the type of the result, and how it is made."""
        stored = tensor.type_name
        if tensor.storage != "raw" or not tensor.is_decoded:
            return self._wanted or "BF16", "decode"
        wanted = self._wanted if self._wanted and stored in _CASTABLE else stored
        if self.weights.format != "gguf":
            return wanted, "copy" if wanted == stored else "decode"
        return wanted, "decode" if wanted in DECODED else "stored"

    def _check_readable(self, tensor: WeightTensor, how: str) -> None:
        """Raises WeightsError if the tensor cannot be read in bounded memory, or not at all."""
        columns = tensor.shape[-1] if tensor.shape else 1
        if how == "decode" and columns > _MOST_ROW:
            raise self.error(
                "unsupported",
                tensor.name,
                f"a row of {columns:,} values; rows of up to {_MOST_ROW:,} are converted",
            )
        if how == "stored" and tensor.nbytes > _MOST_STORED:
            raise self.error(
                "unsupported",
                tensor.name,
                f"{tensor.nbytes:,} bytes of {tensor.type_name}; up to {_MOST_STORED:,} are "
                "converted",
            )
        is_pack = tensor.storage == "mlx_pack"
        if how == "decode" and (not tensor.is_decoded or (is_pack and tensor.quant is None)):
            self._decode(tensor.name, 0, 1)  # raises an error that says why
            raise self.error("unsupported", tensor.name, "it is not decoded")

    def _refuse_twice(self) -> None:
        seen: Set[str] = set()
        for output in self.outputs:
            if output.name in seen:
                raise self.error("duplicate", output.name, "two tensors would have this name")
            seen.add(output.name)

    def error(self, code: str, name: str, what: str) -> WeightsError:
        error = WeightsError(f"tensor `{name}`: {what} (in {self.weights.files[0]})")
        error.code, error.path, error.subject = code, self.weights.files[0], name
        return error

    # Reading

    def decode(self, unit: Unit, values: Any) -> None:
        """Decodes rows into bytes."""
        output = unit.output
        row = output.row0 + unit.begin
        kind = DECODED[output.dtype]
        self.weights._model.dequantize(output.source, values, kind, row, unit.rows)

    def exact(self, unit: Unit) -> Any:
        """Returns the values of rows as F32."""
        return self._decode(unit.output.source, unit.output.row0 + unit.begin, unit.rows)

    def _decode(self, name: str, row0: int, count: int) -> Any:
        import numpy

        shape = self.weights[name].shape
        values = numpy.empty(count * (shape[-1] if shape else 1), numpy.float32)
        self.weights._model.dequantize(name, values.view("u1"), "float32", row0, count)
        return values

    def stored(self, output: Output) -> Any:
        """Returns the bytes of a GGUF tensor that is not decoded."""
        data = self.weights.get_tensor(output.source)
        self.weights.clear_cache()
        begin = output.row0 * output.columns * NBYTES[output.dtype]
        return data[begin : begin + output.nbytes]


def most_values(output: Output) -> int:
    return max(_UNIT_VALUES, output.columns)


def units_of(output: Output) -> Iterator[Unit]:
    rows = math.prod(output.shape[:-1])
    if output.columns == 0:
        return
    step = max(1, _UNIT_VALUES // output.columns)
    for begin in range(0, rows, step):
        yield Unit(output, begin, min(step, rows - begin))
