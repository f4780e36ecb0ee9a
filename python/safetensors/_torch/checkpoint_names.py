"""The parameters of a model of transformers that the tensors of a checkpoint become.

Their names differ where transformers renames tensors while it loads them, or makes one parameter of
several tensors:

    model.layers.0.block_sparse_moe.experts.0.w1.weight  [f, h] \\
    model.layers.0.block_sparse_moe.experts.0.w3.weight  [f, h]  > ...mlp.experts.gate_up_proj
    model.layers.0.block_sparse_moe.experts.1.w1.weight  [f, h] /     [experts, 2 * f, h]
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import torch


@dataclass(frozen=True)
class Target:
    """A parameter that a tensor becomes, alone or with others. Axes count from the end."""

    name: str
    others: tuple[str, ...] = ()
    """The other parameters that the tensor is cut into."""
    joined_axis: int | None = None
    """The axis along which several tensors are joined."""
    cut_axis: int | None = None
    """The axis along which the tensor is cut into its parameters."""
    number: int | None = None
    """Which element of the parameter's first axis it is, such as an expert."""
    count: int = 0
    """The size of the parameter's first axis, if `number` is given."""
    linear_axis: int | None = None
    """The axis that tensor parallelism divides, if it is known from the tensor's own name."""
    is_transposed: bool = False
    """Whether the last two axes are exchanged."""
    problem: str = ""
    """Why a part of the tensor is not known to become a part of the parameter."""


Targets = dict[str, list[Target]]
"""The parameters that each tensor may become, the most likely one first."""


def targets_of(names: Collection[str], model: torch.nn.Module | None) -> Targets:
    """Returns the parameters that the tensors become.

    Args:
        names: those of all tensors of the checkpoint.
        model: the model of transformers, whose conversion is asked; None for known names.
    """
    known = _known_targets(names)
    if model is not None:
        for name, target in _converted(names, model).items():
            known[name].insert(0, target)
    return known


# Experts are linear layers, [out_features, in_features]: the first two of these names are divided
# by output, the last one by input.
_EXPERT = re.compile(
    r"(.*\.experts\.)(\d+)\.(?:(gate_proj|up_proj|w1|w3)|down_proj|w2)(?:\..*)?", re.DOTALL
)
_STACKED = re.compile(r"(.*\.block_sparse_moe\.)(input|output)_linear\.weight", re.DOTALL)
_OUTPUT, _INPUT = -2, -1


def _known_targets(names: Collection[str]) -> Targets:
    found: Targets = {}
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        found[name] = [Target(name)]
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            experts, number, is_output = expert[1], int(expert[2]), expert[3] is not None
            counts[experts] = max(counts[experts], number + 1)
            fused = Target(
                experts + ("gate_up_proj" if is_output else "down_proj"),
                joined_axis=_OUTPUT if is_output else None,
                number=number,
                linear_axis=_OUTPUT if is_output else _INPUT,
            )
            found[name].append(fused)
        stacked = _STACKED.fullmatch(name)
        if stacked is not None:
            part = "gate_up_proj" if stacked[2] == "input" else "down_proj"
            found[name].append(Target(f"{stacked[1]}experts.{part}"))
        found[name] += [
            replace(each, name=each.name.replace(".block_sparse_moe.", ".mlp."))
            for each in found[name]
            if ".block_sparse_moe." in each.name
        ]
    for name, targets in found.items():
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            count = counts[expert[1]]
            found[name] = [t if t.number is None else replace(t, count=count) for t in targets]
    return found


def _converted(names: Collection[str], model: Any) -> dict[str, Target]:
    """Returns what transformers' own conversion says; nothing before transformers 5."""
    try:
        from transformers.conversion_mapping import (  # pyright: ignore[reportMissingImports]
            get_model_conversion_mapping,
        )
        from transformers.core_model_loading import (  # pyright: ignore[reportMissingImports]
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )
    except ImportError:
        return {}
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state = model.state_dict()
    prefix = model.base_model_prefix
    found: dict[str, Target] = {}
    numbers: dict[tuple[str, str], int] = defaultdict(int)
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = rename_source_key(name, [], [], prefix, state)
        if target not in state:
            continue
        if pattern is None:
            found[name] = Target(target)
            continue
        converter, shape = by_pattern[pattern], tuple(state[target].shape)
        number, numbers[target, pattern] = numbers[target, pattern], numbers[target, pattern] + 1
        patterns = converter.target_patterns
        others = tuple(target.replace(patterns[0], each, 1) for each in patterns[1:])
        found[name] = _through(converter.operations, Target(target, others), shape, number)
    return found


def _through(
    operations: Sequence[Any], target: Target, shape: tuple[int, ...], number: int
) -> Target:
    """Returns what the operations of a conversion make of a tensor.

    Args:
        operations: those of transformers' converter.
        target: the parameter.
        shape: the parameter's.
        number: how many tensors before this one are joined to the parameter in the same way.
    """
    for operation in operations:
        kind = type(operation).__name__
        if kind == "MergeModulelist" and operation.dim == 0:
            target = replace(target, number=number % shape[0], count=shape[0])
        elif kind == "Concatenate":
            target = replace(target, joined_axis=_from_end(operation.dim, len(shape)))
        elif kind == "Chunk" and target.number is None:
            target = replace(target, cut_axis=_from_end(operation.dim, len(shape)))
        elif kind == "Transpose" and _are_last_two(operation, len(shape)):
            target = replace(target, is_transposed=not target.is_transposed)
        else:
            return replace(target, problem=f"transformers applies {kind} to it")
    return target


def _are_last_two(transpose: Any, ndim: int) -> bool:
    # Of single experts, which have an axis less, (0, 1) are the last two, too.
    axes = {transpose.dim0, transpose.dim1}
    return axes in ({-1, -2}, {ndim - 1, ndim - 2}) or (ndim == 3 and axes == {0, 1})


def _from_end(axis: int, ndim: int) -> int:
    return axis - ndim if axis >= 0 else axis
