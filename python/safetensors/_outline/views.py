"""What `_repr_html_` of each class returns.

An object that cannot be shown, such as a closed file, has None: a notebook then shows its repr().
This module is imported when a notebook shows an object, and imports none of the classes.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from .._core import PySafeSlice, TensorMeta, safe_open
from .._text import bits_per_weight, count, rounded, shape, size
from . import html
from .contents import Contents, base_name, facts, of_handles, of_weights
from .tree import Outline, outline_of

_MAX_ENTRIES = 60
_MAX_RECORDS_NBYTES = 16 << 20
"""Up to so many bytes of a patch are read to say how much of its tensors changes."""

_Object = TypeVar("_Object")


def _or_none(view: Callable[[_Object], str]) -> Callable[[_Object], str | None]:
    @functools.wraps(view)
    def shown(object: _Object) -> str | None:
        try:
            return view(object)
        except Exception:
            return None

    return shown


def page_of(contents: Contents, outline: Outline) -> str:
    """Returns the blocks for a file or model and its tree."""
    blocks = [html.heading(contents.title, facts(contents.kind, outline))]
    blocks += [html.paragraph(f"⚠ {each}") for each in contents.warnings[:5]]
    blocks += [html.types_bar(outline.types), html.tree(outline)]
    if contents.files:
        files = html.bars((name, nbytes, "") for name, nbytes in contents.files)
        blocks.append(html.folded(f"files ({len(contents.files):,})", files))
    blocks.append(html.pairs("configuration", contents.config))
    blocks.append(
        html.pairs("names without a canonical one", [(name, "") for name in contents.unmapped])
    )
    blocks.append(html.pairs("metadata", contents.metadata))
    return html.wrapped(*blocks)


@_or_none
def of_handle(handle: safe_open) -> str:
    return _page_of(of_handles([handle]))


@_or_none
def of_weights_model(model: Any) -> str:
    return _page_of(of_weights(model))


def _page_of(contents: Contents) -> str:
    return page_of(contents, outline_of(contents.tensors, rows=html.MAX_ROWS))


@_or_none
def of_slice(part: PySafeSlice) -> str:
    return _card(part.name, part.dtype, part.shape, part.nbytes, "indexing reads a part of it")


@_or_none
def of_meta(meta: TensorMeta) -> str:
    begin, end = meta.data_offsets
    return _card("TensorMeta", meta.dtype, meta.shape, meta.nbytes, f"bytes {begin:,} to {end:,}")


def _card(name: str, dtype: str, dims: list[int], nbytes: int, text: str) -> str:
    said = [dtype, shape(dims), f"{rounded(math.prod(dims))} elements", size(nbytes)]
    return html.wrapped(html.heading(name, said), html.paragraph(text))


@_or_none
def of_weight_tensor(tensor: Any) -> str:
    elements = math.prod(tensor.shape)
    said = [tensor.type_name, shape(tensor.shape), f"{rounded(elements)} parameters"]
    said.append(size(tensor.nbytes))
    if elements:
        said.append(f"{bits_per_weight(tensor.nbytes, elements)} bits per weight")
    blocks = [html.heading(tensor.name, said)]
    if tensor.source != tensor.name:
        blocks.append(html.paragraph(f"in the file: {tensor.source}"))
    blocks.append(_values(tensor))
    return html.wrapped(*blocks)


def _values(tensor: Any) -> str:
    try:
        from .values import sampled
    except ImportError:  # NumPy, which nothing else here needs
        return ""
    sample = sampled(tensor)
    if sample is None:
        return ""
    if not sample.finite:
        return html.paragraph("no finite values")
    said = (
        f"min {sample.low:.5g}  mean {sample.mean:.5g}  max {sample.high:.5g}  "
        f"std {sample.deviation:.5g}  zeros {sample.zeros / sample.values:.2%}"
    )
    if sample.finite < sample.values:
        said += f"  not finite {sample.values - sample.finite:,}"
    if sample.values < sample.of:
        said += f"  (of {sample.values:,} values in rows spread evenly)"
    return html.histogram(sample.counts, sample.low, sample.high) + html.paragraph(said)


@_or_none
def of_plan(plan: Any) -> str:
    """Reads headers again only of local files, because a URL would be fetched."""
    kinds = Counter("whole" if part is None else repr(part) for part in plan.values())
    parts = [(kind, count(number, "tensor")) for kind, number in kinds.most_common()]
    title = f"Plan of {count(len(plan), 'tensor')}"
    ranks = {(p.rank, p.world_size) for p in plan.values() if hasattr(p, "world_size")}
    whose = [f"rank {rank} of {of}" for rank, of in ranks] if len(ranks) == 1 else []
    if not plan._is_local:
        return html.wrapped(html.heading(title, whose), html.pairs("parts", parts))
    reads = plan.explain()
    read = sum(each.read_bytes for each in reads)
    wanted = sum(each.wanted_bytes for each in reads)
    said = [
        *whose,
        f"reads {size(read)} for {size(wanted)} wanted",
        count(sum(each.requests for each in reads), "request"),
        count(len(reads), "file"),
    ]
    files = [(base_name(r.file), r.read_bytes, count(r.tensors, "tensor")) for r in reads]
    return html.wrapped(html.heading(title, said), html.bars(files), html.pairs("parts", parts))


@_or_none
def of_patch(patch: Any) -> str:
    sizes = {name: patch._nbytes(name) for name in patch.names}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    reads = sum(sizes[name] for name in largest[:_MAX_ENTRIES]) <= _MAX_RECORDS_NBYTES

    def said(name: str) -> str:
        if not reads:
            return ""
        entry = patch.entry(name)
        if entry.kind != "blocks":
            return str(entry.kind)
        return f"{entry.changed / max(entry.units, 1):.2%} changes"

    rows = [(name, sizes[name], said(name)) for name in largest[:_MAX_ENTRIES]]
    more = len(largest) - len(rows)
    digests = [("from", patch.base), ("to", patch.target)]
    labels = [("from label", patch.base_label), ("to label", patch.target_label)]
    return html.wrapped(
        html.heading(
            base_name(patch.path),
            ["patch", f"{count(len(sizes), 'tensor')} differ", size(sum(sizes.values()))],
        ),
        html.bars(rows),
        html.paragraph(f"… {more:,} more") if more else "",
        html.pairs("digests", digests + [pair for pair in labels if pair[1] is not None]),
    )
