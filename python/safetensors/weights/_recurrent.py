"""Layers with a state in GGUF files: gated delta networks (linear attention), and state spaces."""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._hf_names import HfNames
from ._made import (
    Made,
    Rows,
    bad_shape,
    changed,
    gathered,
    layers_with,
    logarithms,
    made_conv1d,
    name_of,
    reordered,
    shape_of,
    whole,
    with_columns,
)
from ._model import Weights

_QWEN35_ONLY = ("ssm.alpha.weight", "ssm.beta.weight")


class _Heads(NamedTuple):
    """The heads of a layer. Several heads of values share one of keys."""

    keys: int
    key_length: int
    values: int
    value_length: int

    def stored(self, head: int) -> int:
        """Returns where Qwen3.5's file has a head of values: the heads of one key are in order in
        the checkpoint, and in the file those of different keys alternate."""
        shared = self.values // self.keys
        return head % shared * self.keys + head // shared


def _heads_of(weights: Weights, start: str) -> _Heads:
    """Raises WeightsError if the tensors of the layer do not have the shapes of these heads."""
    key = f"{weights.config.architecture}.ssm.group_count"
    keys = weights.metadata.get(key)
    if not isinstance(keys, int) or keys < 1:
        raise bad_shape(weights, key, f"{keys} heads of keys")
    values = math.prod(weights[f"{start}ssm.a"].shape)
    length = math.prod(weights[f"{start}ssm.norm.weight"].shape)
    qkv = f"{start}attention.qkv.weight"
    rows = shape_of(weights, [qkv], 2)[0] - values * length
    if values == 0 or length == 0 or values % keys or rows < 0 or rows % (2 * keys):
        raise bad_shape(weights, qkv, f"{keys} heads of keys and {values} of {length} values")
    wanted = {
        "ssm.a": (0, values),
        "attention.qkv.weight": (0, weights[qkv].shape[0]),
        "attention.gate.weight": (0, values * length),
        "ssm.conv1d.weight": (0, weights[qkv].shape[0]),
        "ssm.dt.bias": (0, values),
        "ssm.alpha.weight": (0, values),
        "ssm.beta.weight": (0, values),
        "ssm.out.weight": (1, values * length),
    }
    for part, (axis, size) in wanted.items():
        name = start + part
        if part in _QWEN35_ONLY and name not in weights:
            continue
        shape = weights[name].shape
        if len(shape) != (1 if part in ("ssm.a", "ssm.dt.bias") else 2) or shape[axis] != size:
            raise bad_shape(weights, name, f"{values} heads of {length} values")
    return _Heads(keys, rows // (2 * keys), values, length)


def lowered_norms(
    weights: Weights, names: HfNames, other: str = ".ssm.norm.weight"
) -> Iterator[Made]:
    """The converter raises all norms by one, except `other`: by default those of linear
    attention."""
    for name in weights:
        if name.endswith("norm.weight") and not name.endswith(other):
            found = names.of(name)
            if found is not None:
                if len(weights[name].shape) != 1:
                    raise bad_shape(weights, name, "a norm of one axis")
                fill = changed(name, lambda values: values - 1)
                yield Made(found.name, weights[name].shape, (name,), fill)


def _made_vector(weights: Weights, names: HfNames, name: str, change: Callable[[Any], Any]) -> Made:
    return Made(name_of(names, name), weights[name].shape, (name,), changed(name, change))


def qwen3_next(weights: Weights, names: HfNames) -> Iterator[Made]:
    """One matrix has, for each head of keys, its query, key, values and gates."""
    yield from lowered_norms(weights, names)
    for start in layers_with(weights, names, "ssm.a"):
        heads = _heads_of(weights, start)
        qkv, gate = (f"{start}attention.{part}.weight" for part in ("qkv", "gate"))
        k0, v0 = heads.keys * heads.key_length, 2 * heads.keys * heads.key_length
        length = heads.values // heads.keys * heads.value_length
        pieces: list[Rows] = []
        for head in range(heads.keys):
            pieces.append((qkv, head * heads.key_length, heads.key_length))
            pieces.append((qkv, k0 + head * heads.key_length, heads.key_length))
            pieces.append((qkv, v0 + head * length, length))
            pieces.append((gate, head * length, length))
        shape = (weights[qkv].shape[0] + weights[gate].shape[0], weights[qkv].shape[1])
        if weights[gate].shape[1] != shape[1]:
            raise bad_shape(weights, gate, f"rows of {shape[1]} values")
        name = name_of(names, f"{start}ssm.in.weight")
        yield Made(name, shape, (qkv, gate), gathered(pieces))
        order = list(range(heads.values))
        a = f"{start}ssm.a"
        yield _made_vector(weights, names, a, logarithms(weights, a, order))
        yield made_conv1d(weights, names, f"{start}ssm.conv1d.weight")


def qwen35(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Heads of values are in another order."""
    yield from lowered_norms(weights, names)
    for start in layers_with(weights, names, "ssm.a"):
        heads = _heads_of(weights, start)
        order = [heads.stored(head) for head in range(heads.values)]
        length = heads.value_length

        def in_order(name: str, first: int, size: int, order: list[int] = order) -> list[Rows]:
            return [(name, first + head * size, size) for head in order]

        v0 = 2 * heads.keys * heads.key_length
        tables: dict[str, list[Rows]] = {}
        for name in (f"{start}attention.qkv.weight", f"{start}ssm.conv1d.weight"):
            tables[name] = [(name, 0, v0), *in_order(name, v0, length)]
        gate = f"{start}attention.gate.weight"
        tables[gate] = in_order(gate, 0, length)
        for name in (f"{start}ssm.alpha.weight", f"{start}ssm.beta.weight"):
            tables[name] = in_order(name, 0, 1)
        for name, pieces in tables.items():
            shape = weights[name].shape
            if name.endswith(".conv1d.weight"):
                shape = (shape[0], 1, shape[1])
            yield Made(name_of(names, name), shape, (name,), gathered(pieces))
        a, dt = f"{start}ssm.a", f"{start}ssm.dt.bias"
        yield _made_vector(weights, names, a, logarithms(weights, a, order))
        yield _made_vector(weights, names, dt, operator.itemgetter(order))
        out = f"{start}ssm.out.weight"
        columns = [head * length + i for head in order for i in range(length)]
        fill = with_columns(out, columns)
        yield Made(name_of(names, out), weights[out].shape, (out,), fill)


def delta_attention(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Kimi: queries, keys and values have a convolution each, and A is -exp(A_log)."""
    for start in layers_with(weights, names, "ssm.a"):
        a = f"{start}ssm.a"
        shape = weights[a].shape
        fill = changed(a, logarithms(weights, a))
        yield Made(name_of(names, a), shape, (a,), fill, math.prod(shape))
        for name in (f"{start}ssm.conv1d_{part}.weight" for part in "qkv"):
            if name in weights:
                shape = weights[name].shape
                if len(shape) != 4 or shape[0] != 1 or shape[2] != 1:
                    raise bad_shape(weights, name, "a convolution of [1, rows, 1, columns]")
                new = (shape[1], 1, shape[3])
                yield Made(name_of(names, name), new, (name,), gathered([(name, 0, shape[1])]))
        yield from _split_channels(weights, names, start)


def _split_channels(weights: Weights, names: HfNames, start: str) -> Iterator[Made]:
    """Queries, keys and values in one matrix (see `split_qkv`): a row for each channel of their
    convolutions."""
    qkv = f"{start}attention.qkv.weight"
    if qkv not in weights:
        return
    first, rows = 0, shape_of(weights, [qkv], 2)[0]
    channels = [f"{start}ssm.conv1d_{part}.weight" for part in "qkv"]
    counts = [weights[name].shape[1] if name in weights else 0 for name in channels]
    if sum(counts) != rows or 0 in counts:
        raise bad_shape(weights, qkv, f"convolutions of {counts} channels: it has {rows} rows")
    for part, count in zip("qkv", counts, strict=True):
        yield reordered(weights, names, qkv, [(first, count)], f"{start}attention.{part}.weight")
        first += count


# State spaces


def state_space(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Mamba: A is -exp(A_log). Mamba 2 has A and D with one column, and a norm with one row for
    each group."""
    for start in layers_with(weights, names, "ssm.a"):
        yield made_conv1d(weights, names, f"{start}ssm.conv1d.weight")
        a, d, norm = (f"{start}ssm.{part}" for part in ("a", "d", "norm.weight"))
        shape = weights[a].shape
        if len(shape) != 2:
            raise bad_shape(weights, a, "two axes")
        is_column = shape[1] == 1
        new = shape[:1] if is_column else shape
        yield Made(name_of(names, a), new, (a,), changed(a, logarithms(weights, a)), math.prod(new))
        for name in (d, norm) if is_column else ():
            if name in weights:
                new = (math.prod(weights[name].shape),)
                yield Made(name_of(names, name), new, (name,), whole(name))
