"""What a report says of open models: their contents, and values of large tensors by sample."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._outline.contents import Contents, base_name, of_handles, of_weights
from .._outline.values import MAX_VALUES, stretches
from .dtypes import element_count
from .model import Model, Placed
from .reader import File, Tensor
from .weight_model import WeightModel

if TYPE_CHECKING:
    from .decode import Array


def read_of(model: Model) -> Iterator[str]:
    """Yields the paths of what a report reads of a model."""
    yield model.path
    yield from (file.path for file in model.files)
    if model.index is not None:
        yield model.index.path
    if isinstance(model, WeightModel):
        yield from model.weights.files
    folder = model.path if os.path.isdir(model.path) else os.path.dirname(model.path)
    yield os.path.join(folder, "config.json")


@contextlib.contextmanager
def contents_of(model: Model) -> Iterator[Contents]:
    """Describes an open model."""
    title = base_name(model.path)
    if isinstance(model, WeightModel):
        yield of_weights(model.weights, title)
        return
    with contextlib.ExitStack() as stack:
        yield of_handles([stack.enter_context(file.handle()) for file in model.files], title)


def placed_in(model: Model, is_quick: bool) -> dict[str, Placed]:
    """Returns the tensors by name; if `is_quick`, with files that sample large ones."""
    placed = model.by_name()
    if not is_quick:
        return placed
    samples = {file.path: _Sample(file) for file in model.files}
    return {name: Placed(samples[file.path], tensor) for name, (file, tensor) in placed.items()}


class _Sample(File):
    """Up to MAX_VALUES values of each tensor of a file, spread evenly. Tensors of one shape have
    theirs at the same places."""

    is_whole = False

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._whole = file

    def close(self) -> None:
        self._whole.close()

    def why_no_values(self, tensor: Tensor) -> str:
        return self._whole.why_no_values(tensor)

    def values(self, tensor: Tensor) -> "Iterator[tuple[Array, int]]":
        count = element_count(tensor.shape)
        if count <= MAX_VALUES:
            yield from self._whole.values(tensor)
            return
        parts = stretches(count, 1)
        for i, (begin, end) in enumerate(parts):
            done = tensor.nbytes * (i + 1) // len(parts) - tensor.nbytes * i // len(parts)
            yield self._whole.values_between(tensor, begin, end), done
