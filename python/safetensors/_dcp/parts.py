"""Tensors of which several files have parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from .._dtypes import BITS
from .._errors import failure
from .._regions import byte_shape, ends_within_byte
from . import boxes


class SavedPart(NamedTuple):
    """A part of a tensor, in one file."""

    path: str
    source: Any
    """Where its bytes are, for the caller."""
    offsets: tuple[int, ...]
    """Where it begins in the tensor, in elements."""
    shape: tuple[int, ...]
    box: boxes.Box


class SplitTensor:
    """A tensor and its parts."""

    def __init__(self, name: str, dtype: str, dims: int) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = [0] * dims
        self.whole: boxes.Sizes = ()
        self.parts: list[SavedPart] = []

    def add(self, path: str, source: Any, offsets: Sequence[int], meta: Any) -> None:
        """Adds a part.

        Args:
            path: the file, for errors.
            source: where its bytes are.
            offsets: where it begins in the tensor.
            meta: its entry in the file's header.
        """
        if (meta.dtype, len(meta.shape)) != (self.dtype, len(self.shape)):
            raise failure(
                "invalid_tensor_info",
                f"{path}: tensor `{self.name}` is {meta.dtype} {meta.shape}; in "
                f"{self.parts[0].path} it is {self.dtype} of {len(self.shape)} dimensions",
                path=path,
                subject=self.name,
            )
        ends = zip(self.shape, offsets, meta.shape, strict=True)
        self.shape = [max(size, offset + count) for size, offset, count in ends]
        bits = BITS[self.dtype]
        if ends_within_byte(offsets, bits) or ends_within_byte(meta.shape, bits):
            begin, end = meta.data_offsets
            box = boxes.Box((0,), (end - begin,))  # of one file, or check() raises
        else:
            box = boxes.box(offsets, meta.shape, bits)
        self.parts.append(SavedPart(path, source, tuple(offsets), tuple(meta.shape), box))

    def is_in_one_file(self) -> bool:
        """Returns whether one file has the whole tensor."""
        return len(self.parts) == 1 and not any(self.parts[0].offsets)

    def check(self) -> None:
        """Raises unless the parts are the whole tensor, each element once."""
        found = [part.box for part in self.parts]
        if self.is_in_one_file():
            self.whole = found[0].sizes
            return
        bits = BITS[self.dtype]
        for part in self.parts:
            if ends_within_byte(part.offsets, bits) or ends_within_byte(part.shape, bits):
                raise failure(
                    "unsupported_dtype",
                    f"{part.path}: a part of tensor `{self.name}`, {self.dtype} {list(part.shape)} "
                    f"at {list(part.offsets)}, begins or ends within a byte",
                    path=part.path,
                    subject=self.name,
                )
        self.whole = byte_shape(self.shape, bits)
        if not boxes.fill(self.whole, found):
            self._fail(boxes.overlapping(found))

    def _fail(self, found: tuple[int, int] | None) -> NoReturn:
        """Raises an error about the parts; `found` are two that overlap, if they are known."""
        if found is not None:
            first, second = (self.parts[i] for i in found)
            raise failure(
                "invalid_offset",
                f"{second.path}: the part of tensor `{self.name}` overlaps the one in {first.path}",
                path=second.path,
                subject=self.name,
            )
        folder = os.path.dirname(self.parts[0].path)
        nbytes = sum(boxes.nbytes(part.box.sizes) for part in self.parts)
        if nbytes == boxes.nbytes(self.whole):
            raise failure(
                "invalid_offset",
                f"{folder}: of the {len(self.parts):,} parts of tensor `{self.name}`, some overlap",
                path=folder,
                subject=self.name,
            )
        raise failure(
            "incomplete_data",
            f"{folder}: the files have {nbytes:,} bytes of tensor `{self.name}`, which is "
            f"{self.dtype} {self.shape} and has {boxes.nbytes(self.whole):,}",
            path=folder,
            subject=self.name,
        )
