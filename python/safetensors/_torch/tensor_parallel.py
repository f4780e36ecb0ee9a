"""Rules for plans from transformers' tensor-parallel plans: plan_tp."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._errors import failure
from .._near_names import TO_ZEROS
from ..plan import SKIP, Part, Rule, Shard
from . import torch
from .checkpoint_names import Target, Targets, targets_of

if TYPE_CHECKING:
    from .._core import TensorMeta

_Blocks = int | Sequence[int]

# The axis that a style divides: of matrices and tensors with more axes, and of vectors.
_STYLES: dict[str, tuple[int | None, int | None]] = {
    "colwise": (-2, 0),
    "colwise_rep": (-2, 0),
    "colwise_gather_output": (-2, 0),
    "rowwise": (-1, None),
    "rowwise_rep": (-1, None),
    "rowwise_split_input": (-1, None),
    "packed_colwise": (-2, 0),
    "packed_rowwise": (-1, None),
    "embedding_colwise": (1, None),
    "embedding_rowwise": (0, 0),
    "grouped_gemm": (0, 0),
}

# Styles that change how a module computes, not its parameters.
_WHOLE = {
    "all_reduce",
    "ep_dispatch_experts",
    "ep_router",
    "local_params",
    "mla_kv_a_proj",
    "moe_identity_expert",
    "moe_tp_experts",
    "replicate",
    "sequence_parallel",
}

_EXPERTS = "experts"
_SHOWN = 3


def plan_tp(
    tp_plan: Mapping[str, str],
    rank: int,
    world_size: int,
    *,
    blocks: Mapping[str, _Blocks] | None = None,
    model: torch.nn.Module | None = None,
) -> dict[str, Rule]:
    """Returns rules that load a rank's part of each tensor by a plan of transformers.

    All tensors are loaded, those that no key fits as a whole, but other ranks' experts.

    Args:
        tp_plan: maps modules or parameters to styles, such as `model.tp_plan` or the
            `base_model_tp_plan` of a configuration. `*` in a key is any one word between dots. A
            key fits names that end with it, so that the prefix of the base model may be absent.
            A key of a parameter takes precedence over keys of modules.
        rank: from 0 to world_size - 1.
        world_size: the number of ranks.
        blocks: the `blocks` of `Shard` for keys with a packed style; two equal ones by default.
        model: the model of transformers that the files are for; it may be on the meta device. Its
            conversion says which parameters the tensors become: keys fit the names of parameters.
            Without it, tensors of single experts, and of Mixtral's and Granite's blocks, become
            those that transformers makes of them.

    Raises:
        ValueError: a style is unknown, or a key of `blocks` is not in `tp_plan`; of the rules: a
            conversion is not known to keep a rank's part together.
        SafetensorError: of the rules: a tensor fits no key, and no tensor fits keys that may be
            meant for it.
    """
    Shard(0, rank, world_size)  # checks them
    for key in blocks or ():
        if not tp_plan.get(key, "").startswith("packed_"):
            raise ValueError(f"blocks has {key!r}, which tp_plan gives no packed style")
    styles = [_style(key, style, (blocks or {}).get(key, 2)) for key, style in tp_plan.items()]
    # Whoever matches it with names replaces it by what for_names() returns.
    rule: Rule = _Unbound(styles, rank, world_size, model)
    return {"*": rule}


@dataclass(frozen=True)
class _Style:
    """An entry of a tensor-parallel plan."""

    key: str
    matches: Callable[[str], object]
    axes: tuple[int | None, int | None]
    blocks: _Blocks | None
    is_for_experts: bool
    """It divides the first axis of parameters whose first axis is experts."""


def _style(key: str, name: str, blocks: _Blocks) -> _Style:
    is_whole = name in _WHOLE or name.startswith("replicated_")
    if not is_whole and name not in _STYLES:
        raise ValueError(f"tp_plan[{key!r}] is {name!r}, a style that is not known")
    words = [r"[^.]+" if word == "*" else re.escape(word) for word in key.split(".")]
    matches = re.compile(r"(?:.*\.)?" + r"\.".join(words), re.DOTALL).fullmatch
    packed = blocks if name.startswith("packed_") else None
    return _Style(key, matches, _STYLES.get(name, (None, None)), packed, name == "grouped_gemm")


@dataclass(frozen=True)
class _Unbound:
    """A rule that depends on the names of all tensors."""

    styles: list[_Style]
    rank: int
    world_size: int
    model: torch.nn.Module | None

    def for_names(self, names: Collection[str]) -> Callable[[str, TensorMeta], Part]:
        """Returns the rule for a checkpoint with these tensors."""
        return _Bound(self, targets_of(names, self.model)).part


class _Bound:
    def __init__(self, rule: _Unbound, targets: Targets) -> None:
        self._styles, self._targets = rule.styles, targets
        self._rank, self._world_size = rule.rank, rule.world_size
        self._parameters = None if rule.model is None else rule.model.state_dict().keys()
        self._found: dict[str, _Style | None] = {}
        # Else digits decide nothing, and the names of all layers are one.
        self._has_digits = any(map(str.isdigit, "".join(style.key for style in rule.styles)))
        used = {style.key for name in targets for _, style in self._fits(name)[:1]}
        dividing = [style.key for style in rule.styles if style.axes != (None, None)]
        self._unused = [key for key in dividing if key not in used]
        self._is_useless = bool(dividing) and len(self._unused) == len(dividing)

    def part(self, name: str, meta: TensorMeta) -> Part:
        """Returns the part of a tensor."""
        fits = self._fits(name)
        if not fits:
            self._refuse_if_meant(name, meta)
            return None
        target, style = fits[0]
        axis = style.axes[len(meta.shape) < 2] if meta.shape else None
        if target.number is not None and style.is_for_experts:
            share = -(-target.count // self._world_size)
            return None if target.number // share == self._rank else SKIP
        self._check(name, target, axis, len(meta.shape))
        if axis is None:
            return None
        blocks = style.blocks
        if len(meta.shape) > 1:
            axis = axis - len(meta.shape) if axis >= 0 else axis
            if axis == target.joined_axis:
                blocks = None  # each of the tensors that are joined is a block
            elif axis == target.cut_axis:
                blocks = 1 + len(target.others)
            if target.is_transposed:
                axis = {-1: -2, -2: -1}.get(axis, axis)
            if target.linear_axis is not None:
                axis, blocks = target.linear_axis, None
        elif target.number is not None or target.joined_axis is not None:
            blocks = None
        return Shard(axis, self._rank, self._world_size, blocks)

    def _fits(self, name: str) -> list[tuple[Target, _Style]]:
        """Returns the parameters that a tensor may become and that a key fits."""
        found = ((target, self._style_of(target.name)) for target in self._targets[name])
        return [(target, style) for target, style in found if style is not None]

    def _style_of(self, parameter: str) -> _Style | None:
        form = parameter if self._has_digits else parameter.translate(TO_ZEROS)
        if form not in self._found:
            module = form.rpartition(".")[0]
            self._found[form] = next(
                (s for each in (form, module) for s in self._styles if s.matches(each)), None
            )
        return self._found[form]

    def _check(self, name: str, target: Target, axis: int | None, ndim: int) -> None:
        """Raises if a part of the tensor is not known to become a part of its parameters."""
        problem = "" if axis is None else target.problem
        for other in target.others:
            style = self._style_of(other)
            if (None if style is None else style.axes[ndim < 2]) != axis:
                problem = f"tp_plan does not divide {target.name!r} and {other!r} alike"
        if problem:
            raise ValueError(
                f"tp_plan divides {target.name!r}, which tensor {name!r} becomes, but {problem}; "
                "give a rule for it before those of plan_tp"
            )

    def _refuse_if_meant(self, name: str, meta: TensorMeta) -> None:
        """Raises if a tensor that fits no key may be meant by one that no tensor fits."""
        meant = self._unused
        if not self._is_useless:
            if self._parameters is not None:
                if any(each.name in self._parameters for each in self._targets[name]):
                    return
            elif _EXPERTS in name.split("."):
                meant = [key for key in meant if _EXPERTS in key.split(".")]
            else:
                return
            if len(meta.shape) < 2:
                return
        if not meant:
            return
        shown = ", ".join(map(repr, meant[:_SHOWN])) + (", ..." if len(meant) > _SHOWN else "")
        advice = "" if self._parameters is not None else "pass `model=`, or "
        raise failure(
            "invalid_argument",
            f"Tensor {name!r} fits no key of tp_plan, and no tensor fits {shown}: every rank would "
            f"load all of it; {advice}give a rule for it before those of plan_tp",
            subject=name,
        )
