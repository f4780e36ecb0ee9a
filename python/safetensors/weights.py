"""Models on disk as named weights, whichever way they came.

An MLX or Hugging Face safetensors directory, a single `.safetensors` file, and GGUF (split files
too) have one interface: canonical names, one configuration table, packed buffers as compute kernels
take them, and decoded arrays.

    from safetensors.weights import open_weights

    with open_weights("model_dir_or_file") as w:
        w.config.dim, w.format
        t = w["layers.0.attention.q.weight"]       # nothing is read yet
        t.shape, t.type_name, t.quant
        t.numpy(rows=slice(0, 8))                  # decoded
        t.packed()                                 # the bytes for a kernel
"""

import dataclasses
import math
import operator
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Dict, List, Optional, SupportsIndex, Tuple, Union

from safetensors import _errors, _weights
from safetensors._typing import Path
from safetensors._weights import UnknownTensorError, WeightsError, detect_format

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    import torch

__all__ = [
    "Metadata",
    "ModelConfig",
    "QuantParams",
    "RopeScaling",
    "UnknownTensorError",
    "WeightTensor",
    "Weights",
    "WeightsError",
    "detect_format",
    "open_weights",
]


def __getattr__(name: str) -> Any:
    found = None
    if name.startswith("Weights"):
        found = _errors.class_named(name, "Weights", _weights._error_class)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


Rows = Optional[Union[slice, SupportsIndex]]


@dataclasses.dataclass(frozen=True)
class QuantParams:
    """Parameters of an MLX pack."""

    mode: str  #: "affine", "mxfp4", "mxfp8" or "nvfp4"
    bits: int  #: of one value
    group_size: int  #: values along the last axis that share a scale


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary position embedding is stretched to longer texts, as the file says it."""

    type: str
    factor: Optional[float]
    original_max_position_embeddings: Optional[int]
    low_freq_factor: Optional[float]
    high_freq_factor: Optional[float]
    attention_factor: Optional[float]
    beta_fast: Optional[float]
    beta_slow: Optional[float]
    ext_factor: Optional[float]  #: GGUF only
    mscale: Optional[float]  #: config.json only
    mscale_all_dim: Optional[float]  #: config.json only
    long_factor: List[float]  #: GGUF files hold the tensor rope_factors_long instead
    short_factor: List[float]  #: the same, rope_factors_short


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What a model says of itself: one table for all formats. None is what it does not say."""

    architecture: Optional[str]
    dim: Optional[int]
    n_layers: Optional[int]
    n_heads: Optional[int]  #: the most of all layers, where they differ
    n_kv_heads: Optional[int]
    head_dim: Optional[int]
    ffn_dim: Optional[int]
    n_heads_of_layers: List[int]  #: one a layer where they differ, else empty
    n_kv_heads_of_layers: List[int]
    ffn_dim_of_layers: List[int]
    vocab_size: Optional[int]
    max_seq_len: Optional[int]
    norm_eps: Optional[float]
    rope_theta: float
    rope_scaling: Optional[RopeScaling]
    rope_style: Optional[str]  #: "half", "interleaved", "mrope", "imrope", "none"; None: not known
    #: to add to a stored norm weight before it is used; None: not known
    norm_weight_offset: Optional[float]
    sliding_window: int
    n_experts: int
    n_experts_used: int
    moe_ffn_dim: int
    attn_logit_softcap: Optional[float]
    final_logit_softcap: Optional[float]
    tie_word_embeddings: bool
    quantization: Optional[QuantParams]  #: of packs that have no entry of their own
    quantization_method: Optional[str]  #: of a scheme that is not decoded, as "gptq"
    bos_token_id: Optional[int]
    eos_token_ids: List[int]
    rope_dim: Optional[int]  #: elements of a head that rotary embedding turns
    rope_theta_local: Optional[float]  #: of layers with a sliding window
    rope_sections: List[int]  #: of mrope; GGUF files have a fourth, mostly 0
    v_head_dim: Optional[int]  #: elements of a value's head
    q_lora_rank: Optional[int]  #: of latent attention (MLA), as the next three
    kv_lora_rank: Optional[int]
    qk_nope_head_dim: Optional[int]
    qk_rope_head_dim: Optional[int]
    shared_ffn_dim: Optional[int]  #: of the shared experts
    n_shared_experts: Optional[int]
    first_dense_layers: Optional[int]  #: layers before the first with experts
    expert_weights_scale: Optional[float]  #: multiplies the weights of chosen experts
    expert_gating: Optional[str]  #: as "softmax", "sigmoid"
    activation: Optional[str]  #: of the feed-forward part, as "silu"
    query_scale: Optional[float]  #: multiplies attention scores, instead of 1 / sqrt(head_dim)
    embedding_scale: Optional[float]  #: multiplies embeddings
    residual_scale: Optional[float]  #: multiplies what a block adds to the residual
    logit_scale: Optional[float]  #: multiplies logits
    #: one a layer: "full", "sliding", "linear", "conv", "recurrent", "other"
    layer_kinds: List[str]
    sliding_window_pattern: Optional[int]  #: every n-th layer attends to all tokens
    #: all of config.json; None for models without one
    raw: Optional[Dict[str, Any]] = dataclasses.field(repr=False, compare=False)

    def as_dict(self) -> Dict[str, Any]:
        """The table as plain values, without `raw`."""
        table = dataclasses.asdict(dataclasses.replace(self, raw=None))
        del table["raw"]
        return table


def _config_of(table: Dict[str, Any]) -> ModelConfig:
    if table["quantization"] is not None:
        table["quantization"] = QuantParams(*table["quantization"])
    if table["rope_scaling"] is not None:
        table["rope_scaling"] = RopeScaling(**table["rope_scaling"])
    return ModelConfig(**table)


class Metadata(Mapping[str, Any]):
    """A file's metadata, read as it is asked for. Strings that are not UTF-8 come as bytes."""

    def __init__(self, model: _weights.Model) -> None:
        self._model = model
        self._keys = model.metadata_keys

    def __getitem__(self, key: str) -> Any:
        return self._model.metadata_value(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"


class WeightTensor:
    """One tensor of a model. Nothing is read before values or bytes are asked for.

    Two are equal when they are the same tensor of the same open model.
    """

    __slots__ = (
        "_model",
        "_scales_code",
        "code",
        "is_decoded",
        "name",
        "nbytes",
        "quant",
        "shape",
        "source",
        "storage",
        "type_name",
    )

    def __init__(self, model: _weights.Model, name: str) -> None:
        described = model.describe(name)
        self._model = model
        self.name: str = described[0]  #: canonical, or the source's when no rule maps it
        self.source: str = described[1]  #: in the file
        self.shape: Tuple[int, ...] = described[2]  #: of the values, slowest axis first
        self.storage: str = described[3]  #: "raw", "mlx_pack" or "ggml_block"
        self.code: int = described[4]  #: effective type, see docs/weights.md
        self.type_name: str = described[5]  #: as "mlx_q4", "Q4_K", "F16"
        self.quant: Optional[QuantParams] = (
            None if described[6] is None else QuantParams(*described[6])
        )
        self.nbytes: int = described[7]  #: in the file, with scales and biases
        self._scales_code: int = described[8]
        #: False: codes of a quantisation scheme that is not decoded
        self.is_decoded: bool = described[9]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightTensor):
            return NotImplemented
        return self._model is other._model and self.name == other.name

    def __hash__(self) -> int:
        return hash((id(self._model), self.name))

    def __repr__(self) -> str:
        return f"<WeightTensor {self.name} {self.type_name} {list(self.shape)}>"

    def packed(self, *, aligned: bool = False) -> "numpy.typing.NDArray[numpy.uint8]":
        """The bytes for a kernel, read-only. See `Weights.get_tensor`."""
        return _aligned(_array_of(self._model.get_tensor(self.name)), aligned)

    def sections(self, *, aligned: bool = False) -> Tuple["numpy.typing.NDArray[Any]", ...]:
        """The parts of a pack, read-only views: words (uint32), scales, and biases or global scale.

        Scales and biases are float16; with `scales="keep"` they are of the stored type, BF16 as its
        bits in uint16. Scales of the fp modes are uint8, a global scale is float32. The third part
        has no elements where a pack has none. Of a tensor that is no pack: its bytes alone.
        `aligned` copies each part that does not start at a multiple of 64 bytes.
        """
        import numpy

        if self.quant is None:
            return (self.packed(aligned=aligned),)
        buffer = self._model.get_tensor(self.name)
        whole = _array_of(buffer)
        words, scales, _ = buffer.sections
        leading, inner = self.shape[:-1], self.shape[-1]
        groups = (*leading, inner // self.quant.group_size)
        kind = numpy.dtype(_SCALE_TYPES[self._scales_code])
        third = whole[words + scales :]
        parts = (
            whole[:words].view(numpy.uint32).reshape(*leading, inner * self.quant.bits // 32),
            whole[words : words + scales].view(kind).reshape(groups),
            third.view(kind).reshape(groups)
            if self.quant.mode == "affine"
            else third.view(numpy.float32),
        )
        return tuple(_aligned(part, aligned) for part in parts)

    def _rows(self, rows: Rows) -> Tuple[int, int, Tuple[int, ...]]:
        """First row, how many, and the shape of the result."""
        if rows is None:
            return 0, -1, self.shape
        count = math.prod(self.shape[:-1])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(count)
            if step != 1:
                raise ValueError(f"rows of {self.name}: a step of {step} is not supported")
            stop = max(start, stop)
            return start, stop - start, (stop - start, *(self.shape[-1:] or (1,)))
        if isinstance(rows, bool) or not hasattr(rows, "__index__"):
            raise TypeError(f"rows must be an integer or a slice, not {type(rows).__name__}")
        index = operator.index(rows)
        first = index + count if index < 0 else index
        if not 0 <= first < count:
            raise IndexError(f"row {index} of {self.name}, which has {count}")
        return first, 1, self.shape[-1:]

    def _codes(self, stored: str) -> "numpy.typing.NDArray[Any]":
        """What the file holds, a view of rows."""
        import numpy

        kind = numpy.dtype(stored).newbyteorder("<")
        flat = numpy.frombuffer(memoryview(self._model.get_stored(self.name)), kind)
        count = math.prod(self.shape[:-1])
        return flat.reshape(count, flat.size // max(count, 1))

    def numpy(
        self,
        dtype: Any = None,
        rows: Rows = None,
        out: Optional["numpy.typing.NDArray[Any]"] = None,
    ) -> "numpy.typing.NDArray[Any]":
        """The values, decoded, as float32 (default), float16 or bfloat16 (needs `ml_dtypes`).

        Integers come as they are when `dtype` is the type that the file stores, and so do the words
        of a pack ("uint32"). That is the default for integers of a quantisation scheme that is not
        decoded (`is_decoded` is False): they are never taken for values.

        `rows` is a slice without a step, or an index, of the leading axes taken together, so that
        one expert or a part of a vocabulary can be had alone. `out` is an array to write to, in C
        order, of the result's type and size; a warm one saves the time that new memory takes.
        """
        import numpy

        stored = "uint32" if self.storage == "mlx_pack" else _INTEGERS.get(self.type_name)
        if dtype is None:
            dtype = "float32" if self.is_decoded or stored is None else stored
        row0, count, shape = self._rows(rows)
        codes = None
        if stored is not None and str(dtype) != "bfloat16" and numpy.dtype(dtype) == stored:
            codes = self._codes(stored)[row0 : None if count < 0 else row0 + count]
            shape = (*shape[:-1], codes.shape[-1]) if shape else ()
        kind = _numpy_dtype(dtype) if codes is None else numpy.dtype(stored)
        if out is None:
            out = numpy.empty(shape, dtype=kind)
        elif out.dtype != kind or out.shape != shape or not out.flags.c_contiguous:
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}, but {self.name} needs {kind} {list(shape)}"
                " in C order"
            )
        if codes is None:
            self._model.dequantize(self.name, _room(out), kind.name, row0, count)
        else:
            out[...] = codes.reshape(shape)
        return out

    def torch(
        self,
        dtype: Optional["torch.dtype"] = None,
        rows: Rows = None,
        device: Any = None,
    ) -> "torch.Tensor":
        """The values as a torch tensor of its own memory: float32 (default), float16, bfloat16."""
        import torch

        kind = torch.float32 if dtype is None else dtype
        name = _TORCH_NAMES.get(str(kind))
        if name is None:
            raise ValueError(f"{kind} is none of float32, float16, bfloat16")
        row0, count, shape = self._rows(rows)
        tensor = torch.empty(shape, dtype=kind)
        bits = torch.int32 if name == "float32" else torch.int16
        self._model.dequantize(self.name, _room(tensor.view(bits).numpy()), name, row0, count)
        return tensor if device is None else tensor.to(device)


def _array_of(buffer: _weights.Buffer) -> "numpy.typing.NDArray[numpy.uint8]":
    """The bytes, read-only. The array keeps the buffer alive."""
    import numpy

    return numpy.frombuffer(memoryview(buffer), dtype=numpy.uint8)


def _aligned(array: "numpy.typing.NDArray[Any]", wanted: bool) -> "numpy.typing.NDArray[Any]":
    """The array, or if that is wanted and it is not 64-byte aligned, a copy that is."""
    import numpy

    if not wanted or array.ctypes.data % 64 == 0:
        return array
    room = numpy.empty(array.nbytes + 63, numpy.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


# By the effective type's code: F32, F16, the bits of BF16, U8.
_SCALE_TYPES = {0: "float32", 1: "float16", 30: "uint16", 201: "uint8"}
# Stored integers, by the effective type's name.
_INTEGERS = {
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}
_TORCH_NAMES = {
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


def _numpy_dtype(dtype: Any) -> Any:
    import numpy

    if str(dtype) == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("NumPy arrays of bfloat16 need the package ml_dtypes") from error
        return numpy.dtype(ml_dtypes.bfloat16)
    kind = numpy.dtype(dtype)
    if kind.name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"{kind} is none of float32, float16, bfloat16")
    return kind


def _room(array: "numpy.typing.NDArray[Any]") -> Any:
    """The bytes of an array in C order: not every type of NumPy's has a buffer of its own."""
    import numpy

    return array.reshape(-1).view(numpy.uint8)


class Weights(Mapping[str, WeightTensor]):
    """A model, open for reading: canonical names to tensors.

    Thread safe. Arrays stay valid after it is closed; closing lets go of the files when the last of
    them is gone. Compares and hashes by identity.
    """

    def __init__(self, model: _weights.Model) -> None:
        self._open: Optional[_weights.Model] = model
        self._config: Optional[ModelConfig] = None

    @property
    def _model(self) -> _weights.Model:
        if self._open is None:
            raise ValueError("the model is closed")
        return self._open

    def __enter__(self) -> "Weights":
        self._model  # noqa: B018  (a closed model is refused)
        return self

    def __exit__(
        self,
        kind: Optional[type],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files and of kept buffers. May be called again."""
        self._open = None

    def __repr__(self) -> str:
        if self._open is None:
            return "<Weights, closed>"
        return f"<Weights {self.format} {self.config.architecture} {len(self)} tensors>"

    @property
    def format(self) -> str:
        """ "hf_safetensors", "mlx_safetensors" or "gguf"."""
        return self._model.format

    @property
    def files(self) -> List[str]:
        """The files that hold the tensors."""
        return self._model.files

    @property
    def config(self) -> ModelConfig:
        """The configuration table."""
        model = self._model
        if self._config is None:
            self._config = _config_of(model.config)
        return self._config

    @property
    def metadata(self) -> Metadata:
        """Metadata of the GGUF file, or of the first safetensors file."""
        return Metadata(self._model)

    @property
    def unmapped(self) -> List[str]:
        """Names in the files that no rule maps. They are taken wherever a name is."""
        return self._model.unmapped

    @property
    def warnings(self) -> List[str]:
        """What is odd about the model, and no reason to refuse it."""
        return self._model.warnings

    @property
    def output_name(self) -> Optional[str]:
        """The tensor that serves as output: "output.weight", else "token_embedding.weight".

        None when the model has neither.
        """
        return self._model.output_name

    def __getitem__(self, name: str) -> WeightTensor:
        return WeightTensor(self._model, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._model.has_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.names)

    def __len__(self) -> int:
        return len(self._model.names)

    # Mapping's __eq__ would compare all tensors, and make models unhashable.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def has_tensor(self, name: str) -> bool:
        return self._model.has_tensor(name)

    def get_dtype(self, name: str) -> int:
        """The effective type's code (docs/weights.md)."""
        return self._model.get_dtype(name)

    def norm_weight_offset_of(self, name: str) -> Optional[float]:
        """What to add to this stored norm weight before it is used, or None when it is not known.

        It is `config.norm_weight_offset` but for two cases: 0.0 for tensors that are no norm
        weights and for the norms of linear attention; None for names without a rule in models whose
        offset is not 0, as those of a vision tower.
        """
        return self._model.norm_weight_offset_of(name)

    def is_view(self, name: str) -> bool:
        """Whether `get_tensor` gives the file's own pages. Builds the buffer if it has to be built.

        A view starts wherever the tensor starts in the file, so that a NumPy or torch array of its
        values may be misaligned, and touching it ends the process if another process cut the file
        short.
        """
        return self._model.get_tensor(name).is_view

    def get_tensor(
        self, name: str, *, aligned: bool = False
    ) -> "numpy.typing.NDArray[numpy.uint8]":
        """The bytes for a kernel, read-only.

        Raw tensors and GGUF blocks are views of the file; packs are words, scales, biases, one
        after another; BF16 comes as F16 unless the model was opened with `bf16="keep"`. Kept after
        the first call. `aligned` copies a view that does not start at a multiple of 64 bytes; such
        a copy is not kept.
        """
        return _aligned(_array_of(self._model.get_tensor(name)), aligned)

    def fuse_weights(self, *names: str) -> "numpy.typing.NDArray[numpy.uint8]":
        """Several tensors as one, rows after rows: all words, all scales, all biases. Kept.

        Raises WeightsError (`code` "mixed_types") when they differ in more than their rows.
        """
        return _array_of(self._model.fuse_weights(names))

    def get_config(self) -> Dict[str, Any]:
        """The configuration table as plain values."""
        return self.config.as_dict()

    def get_metadata_string(self, key: str) -> Optional[str]:
        """A metadata value that is text, else None."""
        if key not in self.metadata:
            return None
        value = self.metadata[key]
        return value if isinstance(value, str) else None

    def clear_cache(self) -> None:
        """Lets go of kept buffers."""
        self._model.clear_cache()

    def cache_stats(self) -> Dict[str, int]:
        """entries, bytes, hits, misses, evictions."""
        return self._model.cache_stats()


def open_weights(
    path: Path,
    *,
    layout: str = "native",
    bf16: str = "f16",
    scales: str = "f16",
    allow_f16_overflow: bool = False,
    mmap: bool = True,
    strict_index: bool = True,
    allow_gaps: bool = False,
    cache_bytes: Optional[int] = None,
    quant: Optional[QuantParams] = None,
) -> Weights:
    """Opens a model: a directory, a `.safetensors` or `.gguf` file, any part of a split GGUF.

    Args:
        path: The directory or file. Headers and configuration are read and checked, no data.
        layout: "native", or "hf": what the Hugging Face checkpoint held, with the rows of q and k
            and the norms of GGUF files put back. Architectures it is not known of are refused.
        bf16: "f16", or "keep": what `get_tensor` gives for BF16 tensors.
        scales: "f16", or "keep": what `get_tensor` gives for scales and biases of packs.
        allow_f16_overflow: Values too large for F16 become infinite instead of an error.
        mmap: False reads what is asked for and maps nothing.
        strict_index: False makes tensors that the index does not name a warning.
        allow_gaps: GGUF data may have holes between tensors.
        cache_bytes: Above it, the buffers used longest ago are let go. None: never.
        quant: Parameters of packs, where neither the configuration nor the file tells them.

    Raises:
        WeightsError: `code`, `path`, `subject` and `offset` say what is wrong and where. Of files
            that the system refuses it is an OSError too, of names a KeyError.
    """
    return Weights(
        _weights.Model(
            path,
            layout=layout,
            bf16=bf16,
            scales=scales,
            allow_f16_overflow=allow_f16_overflow,
            mmap=mmap,
            strict_index=strict_index,
            allow_gaps=allow_gaps,
            cache_bytes=cache_bytes,
            quant=None if quant is None else (quant.mode, quant.bits, quant.group_size),
        )
    )
