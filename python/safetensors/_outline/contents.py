"""What there is to say of an open file or model, for a page or a line of text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._core import safe_open
from .._paths import is_url
from .._text import bits_per_weight, brief, count, number, rounded, size
from .tree import Listed, Outline, Total

_INTEGERS = {"I8", "U8", "I16", "U16", "I32", "U32"}
"""Types in which packed weights are stored: a word may have eight parameters."""
_MAX_PAIRS = 1000

Pairs = Sequence[tuple[str, object]]


class Contents(NamedTuple):
    """A file or model. Texts are as in the file: what shows them escapes them."""

    title: str
    kind: str
    tensors: Sequence[safe_open | Listed]
    files: Sequence[tuple[str, int]] = ()
    """Base name and bytes of tensors of each file, if there are several."""
    metadata: Pairs = ()
    config: Pairs = ()
    warnings: Sequence[str] = ()
    unmapped: Sequence[str] = ()
    """Names without a canonical one."""


def of_handles(handles: Sequence[safe_open], title: str | None = None) -> Contents:
    """Describes open files."""
    first = handles[0]
    paths = [base_name(each.path) for each in handles]
    kind = "safetensors" if len(handles) == 1 else f"safetensors, {count(len(handles), 'file')}"
    files = [(path, each.nbytes) for path, each in zip(paths, handles, strict=True)]
    metadata: dict[str, str] = {}
    for each in handles:
        metadata = {**(each.metadata() or {}), **metadata}
    return Contents(
        title or base_name(first.path),
        kind,
        handles,
        files=files if len(files) > 1 else (),
        metadata=list(metadata.items()),
    )


def of_weights(model: Any, title: str | None = None) -> Contents:
    """Describes an open model: a `Weights`, whose module imports this one."""
    kind = ", ".join(filter(None, (model.format, model.config.architecture, model.scheme)))
    metadata = model.metadata
    return Contents(
        title or base_name(model.files[0]),
        kind,
        list(listed(model)),
        metadata=[(key, brief(metadata[key])) for key in list(metadata)[:_MAX_PAIRS]],
        config=[
            (name, number(value) if isinstance(value, float) else value)
            for name, value in model.config._set_fields()
        ],
        warnings=model.warnings,
        unmapped=model.unmapped,
    )


def listed(model: Any) -> Iterator[Listed]:
    """Yields the tensors of a model to list."""
    for name in (*model, *model.unmapped):
        tensor = model[name]
        yield name, tensor.type_name, tensor.shape, tensor.nbytes


def facts(kind: str, outline: Outline) -> list[str]:
    """Returns what the first line of a page or text says."""
    said = [kind, count(outline.tensors, "tensor")]
    elements = outline.elements
    if elements:
        said.append(f"{rounded(elements)} {unit_of(outline)}")
    said.append(size(outline.nbytes))
    if elements and unit_of(outline) == "parameters":
        said.append(f"{bits_per_weight(outline.nbytes, elements)} bits per weight")
    return said


def unit_of(outline: Outline) -> str:
    """Returns "parameters", or "elements" if some may be words into which weights are packed."""
    return "elements" if any(each.type in _INTEGERS for each in outline.types) else "parameters"


def totals(outline: Outline) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of a table of the sums by type, and of all types."""
    has_weights = unit_of(outline) == "parameters"
    titles = ["tensors", unit_of(outline), "size", *(["bits per weight"] if has_weights else [])]
    sums = [*outline.types]
    if len(sums) != 1:
        sums.append(Total("total", outline.tensors, outline.elements, outline.nbytes))
    rows = []
    for each in sums:
        row = [each.type, f"{each.tensors:,}", f"{each.elements:,}", size(each.nbytes)]
        if has_weights:
            row.append(bits_per_weight(each.nbytes, each.elements) if each.elements else "")
        rows.append(row)
    return titles, rows


def base_name(path: str) -> str:
    """Returns the last part of a path or URL: pages that people send have neither the names of
    folders nor the secrets that a URL may have after its path."""
    if is_url(path):
        from .._redact import redact

        path = redact(path).partition("?")[0]
    return os.path.basename(path.replace("\\", "/").rstrip("/")) or path
