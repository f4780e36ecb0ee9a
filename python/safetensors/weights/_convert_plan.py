"""What a conversion to safetensors writes: pure planning, from headers."""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from safetensors._dtypes import CASTABLE
from safetensors._errors import WeightsCode, failure_of
from safetensors._paths import absolute
from safetensors._saving.companions import Companions
from safetensors._saving.specs import nbytes_of
from safetensors._typing import Path
from safetensors._weights import WeightsError

from . import _gpt_oss, _rearranged
from ._convert_units import NBYTES, UNIT_VALUES, Output, Unit, most_values
from ._hf_names import HfNames, NameCounts
from ._made import MAX_EXPERTS, Made
from ._model import Weights, open_weights
from ._tensor import WeightTensor

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32", "keep": None}
"""The values of `dtype`: the type of the results."""
DECODED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NO_CODES = ("I64", "BOOL")
"""Types in which no scheme stores codes, such as those of counters and masks."""
_OPTIONS = {  # those of `open_weights` that its errors suggest
    "in the options (quant) or by": "by",
    "state them in the options": "state them in config.json",
}
_COLUMN_UNIT_VALUES = 1 << 22
"""For schemes that store rows as columns: each unit reads a piece of every stored row."""
_COLUMN_SCHEMES = ("awq", "gptq")
_MAX_ROW = 1 << 25
"""Values of the longest row that is decoded: 128 MiB of F32."""
_ONE_ROW = (".shared_expert_gate.weight", ".moe_statics.e_score_correction_bias")
"""Matrices of one row in checkpoints, which are vectors in GGUF files."""
_MAX_STORED = 256 << 20
"""Bytes of the largest GGUF tensor that is not decoded."""


def _companion_error(text: str, path: str) -> WeightsError:
    return failure_of(WeightsError, "unsupported", text, path=path)


class Plan:
    """What a conversion writes. Reads headers only; nothing is decoded before `write`."""

    def __init__(self, src: Path, dtype: str = "keep", name: str = "", variant: str = "") -> None:
        """Opens the model.

        Raises:
            WeightsError: the model cannot be opened, or one of its tensors not be decoded.
            ValueError: `dtype` is none of DTYPES.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, not one of {', '.join(DTYPES)}")
        import numpy  # noqa: F401  (before anything is written: an installation may lack it)

        self._src = os.fsdecode(src)
        self._choice = {"name": name, "variant": variant}
        self._mapped: Weights | None = None
        self.lock = threading.RLock()
        self.overflow: WeightsError | None = None
        """The error of a tensor whose values are too large, once they were counted."""
        self._wanted = DTYPES[dtype]
        self.notes: list[str] = []
        self.names: dict[str, int] = {}
        """How many tensors of a GGUF file get which names: "hf", "canonical" or "own"."""
        self.left_out: dict[str, list[str]] = {}
        """Tensors that the result lacks, by the reason."""
        self.coded: list[str] = []
        """The quantised tensors, which are decoded."""
        try:
            self.weights = self._open(src)
        except WeightsError as error:
            raise _without_options(error) from None
        try:
            self.outputs: list[Output] = []
            try:
                self._find_outputs()
            except WeightsError as error:
                raise _without_options(error) from None
            self._refuse_undecoded_method()
            named = DECODED.get(self._wanted or "")
            self.companions = Companions(src, True, named, _companion_error)
            self._miss_config()
            self.metadata = {"format": str(self.weights.metadata.get("format", "pt"))}
        except BaseException:
            self.close()
            raise

    def _open(self, src: Path) -> Weights:
        self._options: dict[str, Any] = {
            "layout": "hf", "bf16": "keep", "scales": "keep", **self._choice
        }  # fmt: skip
        try:
            weights = open_weights(src, mmap=False, **self._options)
        except WeightsError as error:
            if error.code != "unsupported":
                raise
            del self._options["layout"]
            weights = open_weights(src, mmap=False, **self._options)
            is_adapter = weights.metadata.get("general.type") == "adapter"
            architecture = weights.config.architecture or ""
            self._renames = _rearranged.is_rearranged(architecture) and not is_adapter
            if not self._renames:
                self.notes.append(f"values are as the GGUF file stores them: {error}")
        else:
            self._renames = weights.format == "gguf"
        self.notes += weights.warnings
        return weights

    def _refuse_undecoded_method(self) -> None:
        """Its layers may round or transform floats, too, and the result's configuration would lack
        the method."""
        method = self.weights._model.undecoded_method
        if not method:
            return
        path = os.path.join(os.path.dirname(self.weights.files[0]), "config.json")
        raise failure_of(
            WeightsError,
            "unsupported",
            f"{path}: quant_method is `{method}`, which is not decoded: the model cannot be "
            "converted to one without it",
            path=path,
        )

    def _miss_config(self) -> None:
        kind = self.weights.metadata.get("general.type", "model")
        if self.weights.format != "gguf" or kind != "model":
            return
        if "config.json" not in self.companions.names:
            self.companions.notes.append(
                "no config.json: GGUF files have none, and transformers needs the original model's"
            )

    def refuse_target(self, target: str, is_folder: bool) -> None:
        """Raises WeightsError if the result would replace files of the source."""
        for path in [self._src, *self.weights.files]:
            is_in = is_folder and path.endswith(".safetensors")
            for each in [path, os.path.dirname(absolute(path))][: 1 + is_in]:
                if os.path.exists(target) and os.path.samefile(each, target):
                    text = f"{target} is the source: choose another target"
                    raise failure_of(WeightsError, "unsupported", text, path=target)

    def close(self) -> None:
        self.weights.close()
        if self._mapped is not None:
            self._mapped.close()

    def __enter__(self) -> "Plan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def specs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {each.name: (each.dtype, each.shape) for each in self.outputs}

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each output."""
        return nbytes_of([(name, *spec) for name, spec in self.specs.items()])

    # Planning

    def _find_outputs(self) -> None:
        weights = self.weights
        names = None
        if self._renames and HfNames.is_known(weights):
            names = HfNames(weights)
        left_out: list[str] = []
        done: set[str] = set()
        counts = NameCounts()
        unmapped = set(weights.unmapped)
        for each in _gpt_oss.joined(weights._model, weights) if weights.scheme == "mxfp4" else []:
            fill = _gpt_oss.fill_joined(each.parts, each.shape)
            unit = each.shape[1] * each.shape[2] if len(each.shape) == 3 else 0
            self._add_made(Made(each.name, each.shape, each.parts, fill, unit))
            done.update(each.parts)
        for made in [] if names is None else _rearranged.made_of(weights, names):
            self._add_made(made)
            done.update(made.sources)
            counts.add("hf")
        for name in [*weights, *weights.unmapped]:
            if name in done:
                continue
            tensor = weights[name]
            hf = None if names is None else names.of(name)
            if weights.format != "gguf":
                self._add(tensor, tensor.source, False)
            elif hf is not None and not (hf.is_stack and len(tensor.shape) not in (2, 3)):
                self._add(tensor, hf.name, hf.is_stack)
                counts.add("hf")
            elif names is not None and names.is_left_out(name):
                left_out.append(name)
            else:
                self._add(tensor, name, False)
                counts.add("own" if name in unmapped else "canonical")
        self._leave_out("it scales activations", weights.extras)
        self._leave_out("checkpoints have them in config.json", left_out)
        if weights.format == "gguf":
            self.names = counts.counts
            self.notes += counts.notes(weights.config.architecture if names is None else None)
        self._refuse_twice()

    def _leave_out(self, why: str, names: Sequence[str]) -> None:
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self.notes.append(f"`{_clipped(names[0])}`{more}: left out, because {why}")
            self.left_out[why] = [*names]

    def _add(self, tensor: WeightTensor, new: str, is_stack: bool) -> None:
        dtype, how = self._type_of(tensor)
        self._check_readable(tensor, how)
        shape = tensor.shape
        if len(shape) == 1 and self.weights.format == "gguf" and new.endswith(_ONE_ROW):
            shape = (1, *shape)
        if not is_stack:
            size = _COLUMN_UNIT_VALUES if tensor.scheme in _COLUMN_SCHEMES else UNIT_VALUES
            place = Output(new, dtype, shape, tensor.name, 0, how, unit_values=size)
            self.outputs.append(place)
            return
        experts, rows = shape[0], math.prod(shape[1:-1])
        if math.prod(shape) == 0 or experts > MAX_EXPERTS:
            raise self.error(
                "unsupported",
                tensor.name,
                f"a stack of shape {list(shape)}; stacks of up to {MAX_EXPERTS:,} experts that "
                "are not empty are converted",
            )
        for expert in range(experts):
            name = new.replace("{}", str(expert))
            place = Output(name, dtype, shape[1:], tensor.name, expert * rows, how)
            self.outputs.append(place)

    def _add_made(self, made: Made) -> None:
        sources = [self.weights[name] for name in made.sources]
        kinds = {self._type_of(tensor)[0] for tensor in sources}
        for tensor in sources:
            self._check_readable(tensor, "decode")
        if not sources:
            kinds = {self._wanted or "F32"}
        output = Output(
            made.name,
            kinds.pop() if len(kinds) == 1 else "BF16",
            made.shape,
            sources[0].name if sources else "",
            0,
            "decode",
            made.fill,
            made.unit_values or UNIT_VALUES,
        )
        if most_values(output) > _MAX_ROW:
            raise self.error(
                "unsupported", sources[0].name, f"a part of {most_values(output):,} values"
            )
        self.outputs.append(output)

    def _is_coded(self, tensor: WeightTensor) -> bool:
        is_code = not tensor.is_decoded and tensor.type_name not in _NO_CODES
        return tensor.storage != "raw" or is_code

    def _type_of(self, tensor: WeightTensor) -> tuple[str, str]:
        """Returns the type of the result, and how it is made."""
        stored = tensor.type_name
        if self._is_coded(tensor):
            return self._wanted or "BF16", "decode"
        wanted = self._wanted if self._wanted and stored in CASTABLE else stored
        if self.weights.format != "gguf":
            is_same = wanted == stored and self._is_stored(tensor)
            return wanted, "copy" if is_same or wanted not in DECODED else "decode"
        return wanted, "decode" if wanted in DECODED else "stored"

    def _is_stored(self, tensor: WeightTensor) -> bool:
        """Returns whether a file has exactly this tensor, and not one that it is a part of."""
        return [part[1] for part in self.weights._model.parts(tensor.name)] == [tensor.source]

    def _check_readable(self, tensor: WeightTensor, how: str) -> None:
        """Raises WeightsError if the tensor cannot be read in bounded memory, or not at all. Notes
        that it is decoded."""
        if self._is_coded(tensor):
            self.coded.append(tensor.name)
        columns = tensor.shape[-1] if tensor.shape else 1
        if how == "decode" and columns > _MAX_ROW:
            raise self.error(
                "unsupported",
                tensor.name,
                f"a row of {columns:,} values; rows of up to {_MAX_ROW:,} are converted",
            )
        if how == "stored" and tensor.nbytes > _MAX_STORED:
            raise self.error(
                "unsupported",
                tensor.name,
                f"{tensor.nbytes:,} bytes of {tensor.type_name}; up to {_MAX_STORED:,} are "
                "converted",
            )
        is_pack = tensor.storage == "mlx_pack"
        if how == "decode" and (not tensor.is_decoded or (is_pack and tensor.quant is None)):
            row = bytearray(4 * columns)
            self.weights._model.dequantize(tensor.name, row, "float32", 0, 1)  # says why
            raise self.error("unsupported", tensor.name, "it is not decoded")

    def _refuse_twice(self) -> None:
        seen: set[str] = set()
        for output in self.outputs:
            if output.name in seen:
                raise self.error("duplicate", output.name, "two tensors would have this name")
            seen.add(output.name)

    def error(self, code: WeightsCode, name: str, what: str) -> WeightsError:
        text, path = f"tensor `{_clipped(name)}`: {what}", self.weights.files[0]
        return failure_of(WeightsError, code, text, path=path, subject=name)

    # Reading

    def decode(self, unit: Unit, values: Any) -> None:
        """Decodes rows into bytes."""
        self._fill(unit, values, DECODED[unit.output.dtype])

    def exact(self, unit: Unit) -> Any:
        """Returns the values of rows: as F64 if they are stored so, else as F32."""
        import numpy

        output = unit.output
        tensor = None if output.fill is not None else self.weights[output.source]
        if tensor is not None and tensor.storage == "raw" and tensor.type_name == "F64":
            with self.lock:
                if self._mapped is None:
                    self._mapped = open_weights(self._src, **self._options)
            begin = (output.row0 + unit.begin) * output.columns
            # Mapped, because it is needed for infinite values only, and may be of any size.
            data = self._mapped.get_tensor(output.source)
            size = unit.rows * output.columns
            return numpy.frombuffer(data[8 * begin : 8 * (begin + size)], "<f8")
        values = numpy.empty(unit.rows * unit.output.columns, numpy.float32)
        self._fill(unit, values.view("u1"), "float32")
        return values

    def _fill(self, unit: Unit, values: Any, kind: str) -> None:
        output, model = unit.output, self.weights._model
        if output.fill is not None:
            output.fill(model, unit.begin, unit.rows, values, kind)
            return
        model.dequantize(output.source, values, kind, output.row0 + unit.begin, unit.rows)

    def stored(self, outputs: Sequence[Output]) -> Iterator[tuple[Output, Any]]:
        """Yields those outputs that are GGUF tensors which are not decoded, and their bytes."""
        source: str | None = None
        data: Any = None
        for output in outputs:
            if output.how != "stored":
                continue
            if output.source != source:  # a stack is read once for all experts
                data = None
                source, data = output.source, self.weights.get_tensor(output.source)
                self.weights.clear_cache()
            begin = output.row0 * output.columns * NBYTES[output.dtype]
            yield output, data[begin : begin + output.nbytes]


def _without_options(error: WeightsError) -> WeightsError:
    """Returns an error of the weight layer without options that a conversion does not have."""
    text = str(error)
    for option, other in _OPTIONS.items():
        text = text.replace(option, other)
    error.args = (text,)
    return error


def _clipped(name: str) -> str:
    return name if len(name) <= 100 else name[:97] + "..."
