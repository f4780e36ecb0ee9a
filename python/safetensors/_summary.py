"""Sums up a file, a model or tensors: parameters, bytes and types."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._core import safe_open
from ._dtypes import BITS
from ._outline.contents import Contents, base_name, facts, of_handles, of_weights
from ._outline.html import MAX_ROWS
from ._outline.tree import outline_of
from ._text import count, rounded, shown, size
from ._weight_models import is_weight_model, open_as_stored

if TYPE_CHECKING:
    from ._typing import Path
    from .weights import Weights


class Summary:
    """What `summary` returns: prints as text, and as a tree in notebooks.

    It has no open file.
    """

    def __init__(self, contents: Contents) -> None:
        from ._outline.views import page_of

        outline = outline_of(contents.tensors, rows=MAX_ROWS)
        self._facts = facts(contents.kind, outline)
        self._html = page_of(contents, outline)
        self._types = outline.types
        self.title: str = contents.title
        """The base name of the file or folder."""
        self.tensors: int = outline.tensors
        """How many tensors there are."""
        self.parameters: int = outline.elements
        """The elements of all tensors. Where a plain file has integers of less than 64 bits, these
        may be words of several parameters each."""
        self.nbytes: int = outline.nbytes
        """The bytes of all tensors."""

    @property
    def dtypes(self) -> dict[str, int]:
        """The elements of each type, the type with the most bytes first."""
        return {each.type: each.elements for each in self._types}

    def __repr__(self) -> str:
        lines = [shown(f"{self.title}: {', '.join(self._facts)}")]
        rows = [
            (shown(t.type), count(t.tensors, "tensor"), rounded(t.elements), size(t.nbytes))
            for t in self._types
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for kind, *others in rows:
            right = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([f"  {kind.ljust(widths[0])}", *right]))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self._html


def summary(source: Path | safe_open | Weights | Mapping[str, Any]) -> Summary:
    """Sums up tensors by their headers: how many parameters and bytes, of which types.

        summary("model.safetensors")
        # model.safetensors: safetensors, 25 tensors, 13.8 M parameters, 55.2 MB, 32.00 bits per ...
        #   F32  25 tensors  13.8 M  55.2 MB

    Args:
        source: a path or URL of a file, an index or a folder; an open file; an open model
            (`open_weights`); or a dict of tensors. A local GGUF file, or a model whose
            configuration says that it is quantised, is opened by `open_weights`, so that its
            parameters are counted, not its packed words. An open file is summed up as it is stored.

    Raises:
        SafetensorError, WeightsError, OSError: the path cannot be opened.
        TypeError: the source is none of these.
    """
    if isinstance(source, (str, bytes, os.PathLike)):
        with contents_of(source) as contents:
            return Summary(contents)
    if isinstance(source, safe_open):
        return Summary(of_handles([source]))
    if hasattr(source, "unmapped"):  # Weights, whose module imports this package
        return Summary(of_weights(source))
    if not isinstance(source, Mapping):
        raise TypeError(
            "expected a path, an open file or model, or a dict of tensors, found "
            f"{type(source).__name__}"
        )
    return Summary(_of_tensors(source))


@contextlib.contextmanager
def contents_of(path: Path) -> Iterator[Contents]:
    """Opens a file or model and describes it."""
    title = base_name(os.fsdecode(path))
    with contextlib.ExitStack() as stack:
        if is_weight_model(path):
            yield of_weights(stack.enter_context(open_as_stored(path)), title)
            return
        from ._open_shards import open_tensors
        from ._shards import find_shards

        tensors, _ = open_tensors(find_shards(path), None, "pread", stack)
        yield of_handles(list(dict.fromkeys(tensors.values())), title)


def _of_tensors(tensors: Mapping[str, Any]) -> Contents:
    from ._saving.specs import spec_of

    listed = []
    for name, tensor in tensors.items():
        dtype, dims = spec_of(name, tensor)
        listed.append((name, dtype, tuple(dims), math.prod(dims) * BITS[dtype] // 8))
    return Contents("tensors", type(tensors).__name__, listed)
