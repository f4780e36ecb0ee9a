"""A model that is open for reading."""

import math
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from safetensors import _weights
from safetensors._pickling import NotPickled
from safetensors._text import rounded
from safetensors._typing import Path

from ._config import ModelConfig, QuantParams, config_of
from ._tensor import WeightTensor, array_of, as_aligned

if TYPE_CHECKING:
    import numpy
    import numpy.typing


class Metadata(NotPickled, Mapping[str, Any]):
    """The metadata of a file, decoded on access. Strings that are not UTF-8 become bytes."""

    _why_not_pickled = "its file is open in this process. Pass dict(metadata)"

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


class Weights(NotPickled, Mapping[str, WeightTensor]):
    """A model that is open for reading: a mapping of canonical names to tensors.

    Thread safety: all methods may be called from any threads. Lifetime: arrays stay valid after
    `close()`; the files are closed once the last array is gone. Compares and hashes by identity.
    """

    _why_not_pickled = "its files are open in this process. Pass the path to open_weights there"

    def __init__(self, model: _weights.Model) -> None:
        self._open: _weights.Model | None = model
        self._config: ModelConfig | None = None

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
        kind: type | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the files and the cached buffers. May be called more than once."""
        self._open = None

    def __repr__(self) -> str:
        if self._open is None:
            return "<Weights, closed>"
        architecture = self.config.architecture or "of no known architecture"
        unmapped = f", {len(self.unmapped)} unmapped" if self.unmapped else ""
        return (
            f"<Weights {self.format} {architecture}: {len(self)} tensors{unmapped}, "
            f"{rounded(self.parameters)} parameters>"
        )

    def _repr_html_(self) -> str | None:
        from safetensors._outline.views import of_weights_model

        return of_weights_model(self)

    def _ipython_key_completions_(self) -> list[str]:
        return [*self, *self.unmapped]

    @property
    def parameters(self) -> int:
        """The number of values of all tensors, also of those without a canonical name."""
        return sum(math.prod(self[name].shape) for name in (*self, *self.unmapped))

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors in the files, also of those without a canonical name."""
        return sum(self[name].nbytes for name in (*self, *self.unmapped))

    @property
    def format(self) -> str:
        """ "hf_safetensors", "mlx_safetensors" or "gguf"."""
        return self._model.format

    @property
    def files(self) -> list[str]:
        """The paths of the files that hold the tensors."""
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
    def unmapped(self) -> list[str]:
        """Names in the files that no rule maps. Every method accepts them as names."""
        return self._model.unmapped

    @property
    def extras(self) -> list[str]:
        """Names of scales of activations and caches, which are no weights, nor in `unmapped`."""
        return self._model.extras

    @property
    def scheme(self) -> str | None:
        """The quantisation scheme of most quantised tensors, such as "fp8"; None if there is none.

        See `WeightTensor.scheme`.
        """
        return self._model.scheme

    @property
    def warnings(self) -> list[str]:
        """Oddities of the model that are no reason to refuse it."""
        return self._model.warnings

    @property
    def output_name(self) -> str | None:
        """The name of the output tensor: "output.weight", else "token_embedding.weight".

        None if the model has neither.
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

    # Mapping.__eq__ would compare all tensors and make models unhashable.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def has_tensor(self, name: str) -> bool:
        """Returns whether the model has a tensor with this name."""
        return self._model.has_tensor(name)

    def get_dtype(self, name: str) -> int:
        """Returns the code of the effective type (docs/quantisation.md)."""
        return self._model.get_dtype(name)

    def norm_weight_offset_of(self, name: str) -> float | None:
        """Returns the number to add to a stored norm weight before it is used; None if unknown.

        This is `config.norm_weight_offset`, with two exceptions: 0.0 for tensors that are not norm
        weights and for the norms of linear attention; None for names without a rule, and for those
        of a vision tower, in models whose offset is not 0.
        """
        return self._model.norm_weight_offset_of(name)

    def is_view(self, name: str) -> bool:
        """Returns whether `get_tensor` returns a view of the file. Builds the buffer if needed.

        A view starts where the tensor starts in the file, so that an array of its values may be
        misaligned. If another process truncates the file, access to the view ends this process
        (SIGBUS).
        """
        return self._model.get_tensor(name).is_view

    def get_tensor(
        self, name: str, *, aligned: bool = False
    ) -> "numpy.typing.NDArray[numpy.uint8]":
        """Returns the bytes of a tensor for a kernel, read-only.

        Raw tensors and GGUF blocks are views of the file. The parts of a pack follow each other:

            words | scales | biases

        BF16 is converted to F16 unless the model was opened with `bf16="keep"`. The buffer is
        cached. With `aligned`, a view that does not start at a multiple of 64 bytes is copied; the
        copy is not cached.
        """
        return as_aligned(array_of(self._model.get_tensor(name)), aligned)

    def fuse_weights(self, *names: str) -> "numpy.typing.NDArray[numpy.uint8]":
        """Returns several tensors as one with the rows of all: such as q, k and v as qkv.

        In packs, all words come first, then all scales, then all biases. The buffer is cached.

        Raises:
            WeightsError: with `code` "mixed_types", if the tensors differ in more than the number
                of rows.
        """
        return array_of(self._model.fuse_weights(names))

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration table as plain values."""
        return self.config.as_dict()

    def get_metadata_string(self, key: str) -> str | None:
        """Returns a metadata value if it is a str, else None."""
        if key not in self.metadata:
            return None
        value = self.metadata[key]
        return value if isinstance(value, str) else None

    def clear_cache(self) -> None:
        """Drops the cached buffers. Arrays over them stay valid."""
        self._model.clear_cache()

    def cache_stats(self) -> dict[str, int]:
        """Returns the cache's "entries", "bytes", "hits", "misses" and "evictions"."""
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
    cache_bytes: int | None = None,
    quant: QuantParams | None = None,
    name: str | None = None,
    variant: str | None = None,
) -> Weights:
    """Opens a model. Reads and checks headers and configuration, and reads no tensor data.

    Args:
        path: a directory, a `.safetensors` file, an index of such files, a `.gguf` file, or any
            part of a split GGUF file.
        layout: "native", or "hf" for the layout of the Hugging Face checkpoint: the permuted rows
            of q and k and the norms of GGUF files are restored. Refused for architectures whose
            layout is not known.
        bf16: what `get_tensor` returns for BF16 tensors: "f16", or "keep" for BF16.
        scales: the dtype of scales and biases of packs: "f16", or "keep" for the stored one.
        allow_f16_overflow: if true, values too large for F16 become infinite; else they raise.
        mmap: if false, files are not mapped, and data is read on request.
        strict_index: if false, a tensor that the index does not name is a warning; else an error.
        allow_gaps: if true, the data of a GGUF file may have gaps between tensors.
        cache_bytes: the limit of cached bytes; above it, the least recently used buffers are
            dropped. None: no limit.
        quant: parameters of packs, if neither the configuration nor the file defines them.
        name, variant: which safetensors model of a directory, as for `load_files`.

    Raises:
        WeightsError: with `code`, `path`, `subject` and `offset`. If an operating system call
            failed, the error is an OSError too; for an unknown name, a KeyError.
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
            name=name or "",
            variant=variant or "",
        )
    )
