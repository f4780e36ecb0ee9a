"""Tensors of a checkpoint that a GGUF file holds in another arrangement.

llama.cpp's converter (conversion/*.py of its sources) splits, joins, transposes and reorders
tensors for its kernels. Each rule here makes the checkpoint's tensors of those of the file.
"""

import bisect
import math
import operator
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from safetensors._weights import WeightsError

from ._gpt_oss import fill_joined
from ._hf_names import HfNames, place_of
from ._model import Weights

Fill = Callable[[Any, int, int, Any, str], None]
"""`fill(model, begin, rows, values, kind)` writes decoded rows as bytes."""
Rows = Tuple[str, int, int]
"""The name of a tensor, its first row, and a number of rows."""


class Made(NamedTuple):
    """A tensor of the checkpoint that is made of tensors of the file."""

    name: str
    shape: Tuple[int, ...]
    sources: Tuple[str, ...]
    fill: Fill
    unit_values: int = 0
    """Values that can be made alone; 0: whole rows."""


def is_rearranged(architecture: str) -> bool:
    """Returns whether the architecture has rules here, for the values as the file stores them."""
    return architecture in _RULES


def made_of(weights: Weights, names: HfNames) -> List[Made]:
    """Returns what has to be made of a model that is open with its own layout."""
    rule = _RULES.get(weights.config.architecture or "")
    return [] if rule is None else list(rule(weights, names))


# How rows are made


def _gathered(pieces: Sequence[Rows]) -> Fill:
    """Returns a function that puts rows of several tensors one after the other."""
    ends: List[int] = []
    for _, _, rows in pieces:
        ends.append(rows + (ends[-1] if ends else 0))

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        size, end = len(values) // rows, begin + rows
        at = begin
        for index in range(bisect.bisect_right(ends, begin), len(pieces)):
            source, first, count = pieces[index]
            start = ends[index] - count
            upto = min(ends[index], end)
            out = values[(at - begin) * size : (upto - begin) * size]
            model.dequantize(source, out, kind, first + at - start, upto - at)
            at = upto
            if at == end:
                break

    return fill


def _with_columns(source: str, order: Sequence[int]) -> Fill:
    """Returns a function that reorders the columns of a tensor: `order[i]` becomes column i."""

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        model.dequantize(source, values, kind, begin, rows)
        matrix = values.view(_BITS[kind]).reshape(rows, -1)
        matrix[:] = matrix.take(order, axis=1)

    return fill


def _changed(source: str, change: Callable[[Any], Any]) -> Fill:
    """Returns a function that computes a vector in F32, and rounds once."""

    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        import numpy

        decoded = numpy.empty(len(values) // numpy.dtype(_BITS[kind]).itemsize, numpy.float32)
        model.dequantize(source, decoded.view("u1"), "float32", 0, -1)
        values.view(_BITS[kind])[:] = _rounded(change(decoded), kind)

    return fill


_BITS = {"float32": "u4", "float16": "u2", "bfloat16": "u2"}


def _rounded(values: Any, kind: str) -> Any:
    """Returns the bits of F32 values, rounded to nearest even."""
    import numpy

    if kind != "bfloat16":
        with numpy.errstate(over="ignore"):
            return values.astype(kind).view(_BITS[kind])
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)


def _layers_with(weights: Weights, names: HfNames, module: str) -> Iterator[str]:
    """Yields `layers.N.` of the layers that have a tensor and names."""
    for name in weights:
        start, rest = place_of(name)
        if start and rest == module and start not in names.left:
            yield start


def _name_of(names: HfNames, canonical: str) -> str:
    found = names.of(canonical)
    assert found is not None, canonical
    return found.name


def _shape_of(weights: Weights, names: Sequence[str], axes: int) -> Tuple[int, ...]:
    """Returns the shape that all of these tensors have. Raises WeightsError if it has not so many
    axes, or they differ."""
    for name in names:
        shape = weights[name].shape
        if len(shape) != axes or shape != weights[names[0]].shape:
            raise _error(weights, name, f"{axes} axes, and the shape of `{names[0]}`")
    return weights[names[0]].shape


# Experts that a checkpoint keeps in one tensor


def _transposed_experts(
    weights: Weights, names: HfNames, alternating: bool = False
) -> Iterator[Made]:
    """Llama 4: gate is the first half of the columns of a transposed matrix, and up the second."""
    for start in _layers_with(weights, names, "ffn.experts.gate.weight"):
        for target, parts in (("gate_up", ("gate", "up")), ("down", ("down",))):
            sources = tuple(f"{start}ffn.experts.{part}.weight" for part in parts)
            if not all(each in weights for each in sources):
                continue
            experts, rows, columns = _shape_of(weights, sources, 3)
            shape = (experts, columns, rows * len(parts))
            name = _name_of(names, f"{start}ffn.experts.{target}.weight")
            fill = fill_joined(sources, shape, alternating)
            yield Made(name, shape, sources, fill, columns * rows * len(parts))


def _joined_experts(weights: Weights, names: HfNames) -> Iterator[Made]:
    """gpt-oss: gate and up alternate in the columns, also of their biases."""
    yield from _transposed_experts(weights, names, alternating=True)
    for start in _layers_with(weights, names, "ffn.experts.gate.bias"):
        sources = tuple(f"{start}ffn.experts.{part}.bias" for part in ("gate", "up"))
        if sources[1] not in weights:
            continue
        experts, rows = _shape_of(weights, sources, 2)
        name = _name_of(names, f"{start}ffn.experts.gate_up.bias")
        yield Made(name, (experts, 2 * rows), sources, fill_joined(sources, (experts, 2 * rows)))


def _concatenated_experts(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Granite: the rows of gate, then those of up, for each expert."""
    for start in _layers_with(weights, names, "ffn.experts.gate.weight"):
        sources = tuple(f"{start}ffn.experts.{part}.weight" for part in ("gate", "up"))
        if sources[1] not in weights:
            continue
        experts, rows, columns = _shape_of(weights, sources, 3)
        pieces = [(name, i * rows, rows) for i in range(experts) for name in sources]
        name = _name_of(names, f"{start}ffn.experts.gate_up.weight")
        yield Made(name, (experts, 2 * rows, columns), sources, _gathered(pieces))


def _short_convolution(weights: Weights, names: HfNames) -> Iterator[Made]:
    """LFM 2: a convolution has one channel for each group."""
    for start in _layers_with(weights, names, "shortconv.conv.weight"):
        yield _made_conv1d(weights, names, f"{start}shortconv.conv.weight")


def _made_conv1d(weights: Weights, names: HfNames, name: str) -> Made:
    shape = weights[name].shape
    if len(shape) != 2:
        raise _error(weights, name, "a convolution of two axes")
    fill = _gathered([(name, 0, shape[0])])
    return Made(_name_of(names, name), (shape[0], 1, shape[1]), (name,), fill)


# Latent attention


def _latent(weights: Weights, names: HfNames) -> Iterator[Made]:
    """DeepSeek: kv_b has, for each head, the transposed matrix of k_b, then that of v_b."""
    for start in _layers_with(weights, names, "attention.k_b.weight"):
        k, v = (f"{start}attention.{part}.weight" for part in ("k_b", "v_b"))
        if v not in weights or len(weights[k].shape) != 3 or len(weights[v].shape) != 3:
            continue
        heads, rank, nope = weights[k].shape
        length = weights[v].shape[1]
        if weights[v].shape != (heads, length, rank):
            continue
        name = _name_of(names, f"{start}attention.kv_b.weight")
        rows = nope + length
        fill = _fill_kv_b(k, v, rank, nope, length)
        yield Made(name, (heads * rows, rank), (k, v), fill, rows * rank)


def _fill_kv_b(k: str, v: str, rank: int, nope: int, length: int) -> Fill:
    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        import numpy

        heads = values.view(_BITS[kind]).reshape(-1, nope + length, rank)
        first = begin // (nope + length)
        part = numpy.empty((rank, nope), heads.dtype)
        for i, head in enumerate(heads):
            model.dequantize(k, part.reshape(-1).view("u1"), kind, (first + i) * rank, rank)
            head[:nope] = part.T
            rest = head[nope:].reshape(-1).view("u1")
            model.dequantize(v, rest, kind, (first + i) * length, length)

    return fill


# Gated delta networks (linear attention)


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
        raise _error(weights, key, f"{keys} heads of keys")
    values = math.prod(weights[f"{start}ssm.a"].shape)
    length = math.prod(weights[f"{start}ssm.norm.weight"].shape)
    qkv = f"{start}attention.qkv.weight"
    rows = _shape_of(weights, [qkv], 2)[0] - values * length
    if values == 0 or length == 0 or values % keys or rows < 0 or rows % (2 * keys):
        raise _error(weights, qkv, f"{keys} heads of keys and {values} of {length} values")
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
            raise _error(weights, name, f"{values} heads of {length} values")
    return _Heads(keys, rows // (2 * keys), values, length)


def _error(weights: Weights, name: str, what: str) -> WeightsError:
    error = WeightsError(f"`{name}` does not fit {what} (in {weights.files[0]})")
    error.code, error.path, error.subject = "bad_shape", weights.files[0], name
    return error


def _norms(weights: Weights, names: HfNames) -> Iterator[Made]:
    """The converter raises all norms by one, except those of linear attention."""
    for name in weights:
        if name.endswith("norm.weight") and not name.endswith(".ssm.norm.weight"):
            found = names.of(name)
            if found is not None:
                if len(weights[name].shape) != 1:
                    raise _error(weights, name, "a norm of one axis")
                fill = _changed(name, lambda values: values - 1)
                yield Made(found.name, weights[name].shape, (name,), fill)


def _made_vector(weights: Weights, names: HfNames, name: str, change: Callable[[Any], Any]) -> Made:
    return Made(_name_of(names, name), weights[name].shape, (name,), _changed(name, change))


def _logarithms(weights: Weights, name: str, order: List[int]) -> Callable[[Any], Any]:
    """Returns a function that computes A_log: the converter stores A = -exp(A_log)."""

    def change(values: Any) -> Any:
        import numpy

        if not (values < 0).all():
            raise _error(weights, name, "numbers below 0")
        return numpy.log(-values[order])

    return change


def _qwen3_next(weights: Weights, names: HfNames) -> Iterator[Made]:
    """One matrix has, for each head of keys, its query, key, values and gates."""
    yield from _norms(weights, names)
    for start in _layers_with(weights, names, "ssm.a"):
        heads = _heads_of(weights, start)
        qkv, gate = (f"{start}attention.{part}.weight" for part in ("qkv", "gate"))
        k0, v0 = heads.keys * heads.key_length, 2 * heads.keys * heads.key_length
        length = heads.values // heads.keys * heads.value_length
        pieces: List[Rows] = []
        for head in range(heads.keys):
            pieces.append((qkv, head * heads.key_length, heads.key_length))
            pieces.append((qkv, k0 + head * heads.key_length, heads.key_length))
            pieces.append((qkv, v0 + head * length, length))
            pieces.append((gate, head * length, length))
        shape = (weights[qkv].shape[0] + weights[gate].shape[0], weights[qkv].shape[1])
        if weights[gate].shape[1] != shape[1]:
            raise _error(weights, gate, f"rows of {shape[1]} values")
        name = _name_of(names, f"{start}ssm.in.weight")
        yield Made(name, shape, (qkv, gate), _gathered(pieces))
        order = list(range(heads.values))
        a = f"{start}ssm.a"
        yield _made_vector(weights, names, a, _logarithms(weights, a, order))
        yield _made_conv1d(weights, names, f"{start}ssm.conv1d.weight")


def _qwen35(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Heads of values are in another order."""
    yield from _norms(weights, names)
    for start in _layers_with(weights, names, "ssm.a"):
        heads = _heads_of(weights, start)
        order = [heads.stored(head) for head in range(heads.values)]
        length = heads.value_length

        def in_order(name: str, first: int, size: int, order: List[int] = order) -> List[Rows]:
            return [(name, first + head * size, size) for head in order]

        v0 = 2 * heads.keys * heads.key_length
        tables: Dict[str, List[Rows]] = {}
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
            yield Made(_name_of(names, name), shape, (name,), _gathered(pieces))
        a, dt = f"{start}ssm.a", f"{start}ssm.dt.bias"
        yield _made_vector(weights, names, a, _logarithms(weights, a, order))
        yield _made_vector(weights, names, dt, operator.itemgetter(order))
        out = f"{start}ssm.out.weight"
        columns = [head * length + i for head in order for i in range(length)]
        fill = _with_columns(out, columns)
        yield Made(_name_of(names, out), weights[out].shape, (out,), fill)


_RULES: Dict[str, Callable[[Weights, HfNames], Iterator[Made]]] = {
    "deepseek2": _latent,
    "gpt-oss": _joined_experts,
    "granitemoe": _concatenated_experts,
    "lfm2": _short_convolution,
    "lfm2moe": _short_convolution,
    "llama4": _transposed_experts,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "qwen3next": _qwen3_next,
}
