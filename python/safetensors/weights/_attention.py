"""Rows of queries, keys and values in GGUF files, which the converter joins and reorders."""

from collections.abc import Iterator
from typing import Any

from ._hf_names import HfNames
from ._made import Made, bad_shape, layers_with, reordered, shape_of
from ._model import Weights

_GATED = ("qwen35", "qwen35moe", "qwen3next")
"""Architectures in which the rows of a head of queries are followed by as many of its gate."""
Pieces = list[tuple[int, int]]
"""First rows, and numbers of rows."""


def grouped_qkv(weights: Weights, names: HfNames) -> Iterator[Made]:
    """BLOOM, GPT-NeoX and Falcon: each head of keys follows its heads of queries, and precedes its
    head of values. The file has all queries, then all keys, then all values."""
    config = weights.config
    for param in ("weight", "bias"):
        for start in layers_with(weights, names, f"attention.qkv.{param}"):
            name = f"{start}attention.qkv.{param}"
            rows = weights[name].shape[0]
            heads, groups = config.n_heads or 0, config.n_kv_heads or 0
            if 0 in (heads, groups) or heads % groups or rows % (heads + 2 * groups):
                raise bad_shape(weights, name, f"{heads} heads of queries and {groups} of keys")
            length, shared = rows // (heads + 2 * groups), heads // groups
            pieces = []
            for group in range(groups):
                pieces.append((group * shared * length, shared * length))
                pieces.append(((heads + group) * length, length))
                pieces.append(((heads + groups + group) * length, length))
            yield reordered(weights, names, name, pieces)


def split_qkv(weights: Weights, names: HfNames, alternates: bool) -> Iterator[Made]:
    """Queries, keys and values that only the file has in one tensor, as llama.cpp's --fuse-qkv
    writes them: all rows of queries, then those of keys, then those of values. If the rows of heads
    alternate, they get the order of the checkpoint."""
    for param, axes in (("weight", 2), ("bias", 1)):
        for start in layers_with(weights, names, f"attention.qkv.{param}"):
            targets = [f"{start}attention.{part}.{param}" for part in "qkv"]
            # Linear attention has a tensor of this name, and rules of its own.
            if f"{start}ssm.a" in weights or None in map(names.of, targets):
                continue
            name = f"{start}attention.qkv.{param}"
            parts = _parts_of(weights, start, name, shape_of(weights, [name], axes)[0])
            first = 0
            for target, (heads, length) in zip(targets, parts, strict=True):
                pieces = [(first, heads * length)]
                if alternates and target != targets[-1]:
                    pieces = _alternating(weights, name, first, heads * length, heads)
                yield reordered(weights, names, name, pieces, target)
                first += heads * length


def _parts_of(weights: Weights, start: str, name: str, rows: int) -> list[tuple[int, int]]:
    """Returns how many heads queries, keys and values have, and of how many rows each. Raises
    WeightsError if the file does not state lengths that make so many rows, or several."""
    config = weights.config
    q, k = _heads_of(weights, start)
    key, value = config.head_dim or 0, config.v_head_dim or config.head_dim or 0
    lengths = {(key, value)}
    # Layers with a sliding window can have heads of other lengths.
    swa = [f"{config.architecture}.attention.{part}_length_swa" for part in ("key", "value")]
    sliding = [weights.metadata.get(each) for each in swa]
    if isinstance(sliding[0], int) and isinstance(sliding[1], int):
        lengths.add((sliding[0], sliding[1]))
    gated = 2 if config.architecture in _GATED else 1
    found = [
        [(q, gated * key), (k, key), (k, value)]
        for key, value in lengths
        if q * gated * key + k * (key + value) == rows and min(q, k, key, value) > 0
    ]
    if len(found) != 1:
        listed = " or ".join(f"{key} and {value}" for key, value in sorted(lengths))
        what = f"{q} heads of queries and {k} of keys, with {listed} rows of keys and values"
        raise bad_shape(weights, name, f"{what}: it has {rows}")
    return found[0]


def _heads_of(weights: Weights, start: str) -> tuple[int, int]:
    """Returns how many heads of queries and of keys a layer has; 0 if the file does not say."""
    config, layer = weights.config, int(start.split(".")[1])

    def of(heads: int | None, of_layers: list[int]) -> int:
        if of_layers:
            return of_layers[layer] if layer < len(of_layers) else 0
        return heads or 0

    return of(config.n_heads, config.n_heads_of_layers), of(
        config.n_kv_heads, config.n_kv_heads_of_layers
    )


def alternating_qk(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Rows of the first and the second half of a head alternate, as in Llama's files."""
    for i, part in enumerate("qk"):
        for param in ("weight", "bias"):
            for start in layers_with(weights, names, f"attention.{part}.{param}"):
                heads = _heads_of(weights, start)[i]
                yield alternating(weights, names, f"{start}attention.{part}.{param}", heads)


def alternating(weights: Weights, names: HfNames, name: str, heads: Any) -> Made:
    """Returns a tensor in the order of the checkpoint. Raises WeightsError if it has no such
    heads."""
    pieces = _alternating(weights, name, 0, weights[name].shape[0], heads)
    return reordered(weights, names, name, pieces)


def _alternating(weights: Weights, name: str, first: int, rows: int, heads: Any) -> Pieces:
    if not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
        raise bad_shape(weights, name, f"{heads} heads of an even number of rows")
    half = rows // heads // 2
    return [
        (first + head * 2 * half + 2 * i + odd, 1)
        for head in range(heads)
        for odd in range(2)
        for i in range(half)
    ]
