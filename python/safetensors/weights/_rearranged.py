"""Tensors of a checkpoint that a GGUF file holds in another arrangement.

llama.cpp's converter (conversion/*.py of its sources) splits, joins, transposes and reorders
tensors for its kernels. Each rule here makes the checkpoint's tensors of those of the file.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from ._attention import alternating, alternating_qk, grouped_qkv, split_qkv
from ._gpt_oss import fill_joined
from ._hf_names import HfNames
from ._made import (
    BITS,
    MAX_EXPERTS,
    Fill,
    Made,
    bad_shape,
    changed,
    gathered,
    joined,
    layers_with,
    made_conv1d,
    name_of,
    rounded,
    shape_of,
)
from ._model import Weights
from ._recurrent import delta_attention, lowered_norms, qwen3_next, qwen35, state_space

_GEMMA_3N_ROWS = 262_144
Rule = Callable[[Weights, HfNames], Iterator[Made]]


def is_rearranged(architecture: str) -> bool:
    """Returns whether the architecture has rules here, for the values as the file stores them."""
    return architecture in _RULES


def made_of(weights: Weights, names: HfNames) -> list[Made]:
    """Returns what has to be made of a model that is open with its own layout."""
    rules = _RULES.get(weights.config.architecture or "", ())
    found = [made for rule in rules for made in rule(weights, names)]
    found += split_qkv(weights, names, alternating_qk in rules)
    return [*found, *_split_experts(weights, names)]


# Experts that a checkpoint keeps in one tensor


def _gate_and_up(weights: Weights, names: HfNames, param: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each joined tensor, and its parts: gate and up; or twice the tensor whose
    rows are those of gate, then those of up, as llama.cpp's --fuse-gate-up-exps writes it."""
    for start in layers_with(weights, names, f"ffn.experts.gate_up.{param}"):
        name = f"{start}ffn.experts.gate_up.{param}"
        yield name, [name, name]
    for start in layers_with(weights, names, f"ffn.experts.gate.{param}"):
        parts = [f"{start}ffn.experts.{part}.{param}" for part in ("gate", "up")]
        if parts[1] in weights:
            yield f"{start}ffn.experts.gate_up.{param}", parts


def _transposed_experts(
    weights: Weights, names: HfNames, alternating: bool = False
) -> Iterator[Made]:
    """Llama 4: gate is the first half of the columns of a transposed matrix, and up the second."""
    found = [*_gate_and_up(weights, names, "weight")]
    for start in layers_with(weights, names, "ffn.experts.down.weight"):
        found.append((f"{start}ffn.experts.down.weight", [f"{start}ffn.experts.down.weight"]))
    for target, parts in found:
        sources = tuple(dict.fromkeys(parts))
        experts, rows, columns = shape_of(weights, sources, 3)
        rows = _whole_rows(weights, parts[0], rows * len(sources), len(parts))
        shape = (experts, columns, rows)
        fill = fill_joined(parts, shape, alternating)
        yield Made(name_of(names, target), shape, sources, fill, columns * rows)


def _joined_experts(weights: Weights, names: HfNames) -> Iterator[Made]:
    """gpt-oss: gate and up alternate in the columns, also of their biases."""
    yield from _transposed_experts(weights, names, alternating=True)
    for target, parts in _gate_and_up(weights, names, "bias"):
        sources = tuple(dict.fromkeys(parts))
        experts, rows = shape_of(weights, sources, 2)
        shape = (experts, _whole_rows(weights, parts[0], rows * len(sources), len(parts)))
        yield Made(name_of(names, target), shape, sources, fill_joined(parts, shape))


def _whole_rows(weights: Weights, name: str, rows: int, parts: int = 2) -> int:
    """Returns the rows of all parts. Raises WeightsError if the parts are not of equal size."""
    if rows % parts:
        raise bad_shape(weights, name, f"gate and up: {rows} rows are an odd number")
    return rows


def _split_experts(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Gate and up in one stack, of which the checkpoint has two matrices for each expert."""
    for start in layers_with(weights, names, "ffn.experts.gate_up.weight"):
        name = f"{start}ffn.experts.gate_up.weight"
        found = (names.of(f"{start}ffn.experts.{part}.weight") for part in ("gate", "up"))
        targets = [each.name for each in found if each is not None and each.is_stack]
        if names.of(name) is not None or len(targets) != 2:
            continue
        experts, rows, columns = shape_of(weights, [name], 3)
        half = _whole_rows(weights, name, rows) // 2
        if experts > MAX_EXPERTS:
            raise bad_shape(weights, name, f"up to {MAX_EXPERTS:,} experts")
        for i, target in enumerate(targets):
            for expert in range(experts):
                pieces = [(name, expert * rows + i * half, half)]
                part = target.replace("{}", str(expert))
                yield Made(part, (half, columns), (name,), gathered(pieces))


def _concatenated(module: str) -> Rule:
    """Granite: the rows of gate, then those of up, for each expert if there are several."""

    def rule(weights: Weights, names: HfNames) -> Iterator[Made]:
        for start in layers_with(weights, names, f"{module}.gate.weight"):
            sources = tuple(f"{start}{module}.{part}.weight" for part in ("gate", "up"))
            found = names.of(f"{start}{module}.gate_up.weight")
            if found is None or sources[1] not in weights:
                continue
            *experts, rows, columns = shape_of(weights, sources, 3 if "experts" in module else 2)
            pieces = [(name, i * rows, rows) for i in range(math.prod(experts)) for name in sources]
            yield Made(found.name, (*experts, 2 * rows, columns), sources, gathered(pieces))

    return rule


def _flat_experts(weights: Weights, names: HfNames) -> Iterator[Made]:
    """DBRX: the matrices of all experts have one axis of rows, and down is transposed."""
    for part in ("gate", "up", "down"):
        for start in layers_with(weights, names, f"ffn.experts.{part}.weight"):
            name = f"{start}ffn.experts.{part}.weight"
            experts, rows, columns = shape_of(weights, [name], 3)
            fill, unit = gathered([(name, 0, experts * rows)]), 0
            if part == "down":
                rows, columns = columns, rows
                fill, unit = fill_joined((name,), (experts, rows, columns), False), rows * columns
            yield Made(name_of(names, name), (experts * rows, columns), (name,), fill, unit)


def _short_convolution(weights: Weights, names: HfNames) -> Iterator[Made]:
    """LFM 2: a convolution has one channel for each group."""
    for start in layers_with(weights, names, "shortconv.conv.weight"):
        yield made_conv1d(weights, names, f"{start}shortconv.conv.weight")


# Latent attention


def _latent(weights: Weights, names: HfNames) -> Iterator[Made]:
    """DeepSeek: kv_b has, for each head, the transposed matrix of k_b, then that of v_b."""
    for start in layers_with(weights, names, "attention.k_b.weight"):
        k, v = (f"{start}attention.{part}.weight" for part in ("k_b", "v_b"))
        if v not in weights or len(weights[k].shape) != 3 or len(weights[v].shape) != 3:
            continue
        heads, rank, nope = weights[k].shape
        length = weights[v].shape[1]
        if weights[v].shape != (heads, length, rank):
            continue
        name = name_of(names, f"{start}attention.kv_b.weight")
        rows = nope + length
        fill = _fill_kv_b(k, v, rank, nope, length)
        yield Made(name, (heads * rows, rank), (k, v), fill, rows * rank)


def _fill_kv_b(k: str, v: str, rank: int, nope: int, length: int) -> Fill:
    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        import numpy

        heads = values.view(BITS[kind]).reshape(-1, nope + length, rank)
        first = begin // (nope + length)
        part = numpy.empty((rank, nope), heads.dtype)
        for i, head in enumerate(heads):
            model.dequantize(k, part.reshape(-1).view("u1"), kind, (first + i) * rank, rank)
            head[:nope] = part.T
            rest = head[nope:].reshape(-1).view("u1")
            model.dequantize(v, rest, kind, (first + i) * length, length)

    return fill


def _muse_glimmer(weights: Weights, names: HfNames) -> Iterator[Made]:
    """The norms of layers are raised by one, the last is not."""
    return lowered_norms(weights, names, "output_norm.weight")


# Others


def _transposed(weights: Weights, names: HfNames) -> Iterator[Made]:
    """GPT-2: the matrices of layers are [inputs, outputs]."""
    for part in ("attention.qkv", "attention.output", "ffn.up", "ffn.down"):
        for start in layers_with(weights, names, f"{part}.weight"):
            name = f"{start}{part}.weight"
            rows, columns = shape_of(weights, [name], 2)
            fill = fill_joined((name,), (1, columns, rows), False)
            yield Made(name_of(names, name), (columns, rows), (name,), fill, rows * columns)


def _xielu(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Apertus: the parameters of the activation are lists in the metadata."""
    for part, shape in (("alpha_n", (1,)), ("alpha_p", (1,)), ("beta", ()), ("eps", ())):
        key = f"xielu.{part}"
        found = weights.metadata.get(key)
        if not isinstance(found, list) or not all(isinstance(each, float) for each in found):
            raise bad_shape(weights, key, "a list of numbers")
        for layer, value in enumerate(found):
            name = f"model.layers.{layer}.mlp.act_fn.{part}"
            yield Made(name, shape, (), _constant(value))


def _first_rows(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Gemma 3n: the converter fills the embedding of layers up with rows of zeros."""
    name = "per_layer_token_embedding.weight"
    if name in weights and weights[name].shape[0] > _GEMMA_3N_ROWS:
        shape = (_GEMMA_3N_ROWS, *shape_of(weights, [name], 2)[1:])
        yield Made(name_of(names, name), shape, (name,), gathered([(name, 0, _GEMMA_3N_ROWS)]))


def _constant(value: float) -> Fill:
    def fill(model: Any, begin: int, rows: int, values: Any, kind: str) -> None:
        import numpy

        values.view(BITS[kind])[:] = rounded(numpy.array([value], numpy.float32), kind)

    return fill


# Towers of images


def _towers(weights: Weights, names: HfNames) -> Iterator[Made]:
    """Queries, keys and values are split, and a convolution of two frames. The rows of Pixtral's
    queries and keys alternate, and Gemma 3's norm is raised by one."""
    for param in ("weight", "bias"):
        for start in layers_with(weights, names, f"attention.q.{param}", "vision.layers"):
            whole = names.of(f"{start}attention.qkv.{param}")
            sources = tuple(f"{start}attention.{part}.{param}" for part in "qkv")
            if whole is None or not all(name in weights for name in sources):
                continue
            first, *rest = shape_of(weights, sources, 2 if param == "weight" else 1)
            shape = (3 * first, *rest)
            yield Made(whole.name, shape, sources, joined(weights, sources), math.prod(shape))
    patch = "vision.patch_embd.weight"
    frames = (patch, "v.patch_embd.weight.1")
    if all(name in weights for name in frames):
        outputs, channels, rows, columns = shape_of(weights, frames, 4)
        pieces = [(each, i * rows, rows) for i in range(outputs * channels) for each in frames]
        shape = (outputs, channels, 2, rows, columns)
        yield Made(name_of(names, patch), shape, frames, gathered(pieces))
    kind = weights.metadata.get("clip.projector_type")
    if kind == "pixtral":
        heads = weights.metadata.get("clip.vision.attention.head_count")
        for part in ("q", "k"):
            for start in layers_with(weights, names, f"attention.{part}.weight", "vision.layers"):
                yield alternating(weights, names, f"{start}attention.{part}.weight", heads)
    norm = "projector.soft_emb_norm.weight"
    if kind == "gemma3" and norm in weights:
        fill = changed(norm, lambda values: values - 1)
        yield Made(name_of(names, norm), shape_of(weights, [norm], 1), (norm,), fill)


_SSM_HYBRID: tuple[Rule, ...] = (state_space, alternating_qk)
_GRANITE_EXPERTS: tuple[Rule, ...] = (
    _concatenated("ffn.experts"),
    _concatenated("ffn.shared_expert"),
)
_RULES: dict[str, tuple[Rule, ...]] = {
    "apertus": (_xielu,),
    "bloom": (grouped_qkv,),
    "clip": (_towers,),
    "dbrx": (_flat_experts,),
    "deepseek2": (_latent,),
    "deepseek32": (_latent,),
    "falcon": (grouped_qkv,),
    "gemma3n": (_first_rows,),
    "glm-dsa": (_latent,),
    "gpt-oss": (_joined_experts,),
    "gpt2": (_transposed,),
    "gptneox": (grouped_qkv,),
    "granitehybrid": (*_SSM_HYBRID, *_GRANITE_EXPERTS, _concatenated("ffn")),
    "granitemoe": _GRANITE_EXPERTS,
    "jamba": (state_space,),
    "kimi-linear": (_latent, delta_attention),
    "lfm2": (_short_convolution,),
    "lfm2moe": (_short_convolution,),
    "llama4": (_transposed_experts,),
    "mamba": (state_space,),
    "mamba2": (state_space,),
    "mistral4": (_latent,),
    "muse-glimmer": (_muse_glimmer, alternating_qk),
    "nemotron_h": _SSM_HYBRID,
    "nemotron_h_moe": _SSM_HYBRID,
    "qwen35": (qwen35,),
    "qwen35moe": (qwen35,),
    "qwen3next": (qwen3_next,),
    "qwen3vlmoe": (_transposed_experts,),
}
