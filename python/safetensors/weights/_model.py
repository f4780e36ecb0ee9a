"""A model that is open for reading."""

import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from safetensors import _weights
from safetensors._typing import Path

from ._config import ModelConfig, QuantParams, config_of
from ._tensor import WeightTensor, array_of, as_aligned

if TYPE_CHECKING:
    import numpy
    import numpy.typing


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
            self._config = config_of(model.config)
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
        return as_aligned(array_of(self._model.get_tensor(name)), aligned)

    def fuse_weights(self, *names: str) -> "numpy.typing.NDArray[numpy.uint8]":
        """Several tensors as one, rows after rows: all words, all scales, all biases. Kept.

        Raises WeightsError (`code` "mixed_types") when they differ in more than their rows.
        """
        return array_of(self._model.fuse_weights(names))

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
