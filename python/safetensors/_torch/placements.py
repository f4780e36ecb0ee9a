"""Rules for plans from torch's DTensor placements and from transformers' tensor-parallel plans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch
from torch.distributed.device_mesh import DeviceMesh

from .._core import SafetensorError
from ..plan import Part, Rule, Shard

if TYPE_CHECKING:
    from .._core import TensorMeta

_Range = Tuple[int, int]
_Blocks = Union[int, Sequence[int]]


def plan_placements(
    device_mesh: DeviceMesh, placements: Mapping[str, Sequence[Any]]
) -> Dict[str, Rule]:
    """Returns rules that load this rank's part of each tensor as a DTensor.

    Args:
        device_mesh: the ranks that share the tensors.
        placements: maps names and glob patterns to placements, one for each axis of the mesh.
            `Shard` and `Replicate` of `torch.distributed.tensor` are placements, and those that
            FSDP and tensor parallelism make of them.

    Returns:
        Rules for the `plan` of `load_files` and `stream_files`, and the `parts` of `load_into`.

    Raises:
        ValueError: this rank is not in the mesh, the placements are not as many as the axes of the
            mesh, or one cannot be read from a file, such as `Partial`.
    """
    return {key: _placed(key, device_mesh, each) for key, each in placements.items()}


def _placed(key: str, mesh: DeviceMesh, placements: Sequence[Any]) -> _Placed:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this rank is not in the device mesh: it has no part of the tensors")
    return _Placed(mesh, tuple(placements), _cuts(key, placements, mesh, coordinate))


def part_of_dtensor(name: str, tensor: Any, part: Part, shape: Sequence[int]) -> Part:
    """Returns the part of a file's tensor that fills this rank's part of a DTensor.

    Args:
        name: the tensor's.
        tensor: the DTensor.
        part: what the caller asks for; None, or the same part.
        shape: of the file's tensor.

    Raises:
        SafetensorError: the DTensor is of another shape, has placements that a file cannot be read
            by, or the caller asks for another part.
    """
    if tuple(tensor.shape) != tuple(shape):
        problem = f"it is of shape {list(tensor.shape)}, the file's is {list(shape)}"
    else:
        try:
            own = _placed(name, tensor.device_mesh, tensor.placements)
        except ValueError as error:
            problem = str(error)
        else:
            if part is None:
                return own
            if isinstance(part, _Placed) and part.divides_as(own, len(shape)):
                return part
            problem = (
                f"its placements are {tensor.placements}, and its rule in `parts` is for another "
                "part; without a rule, it gets its own, as with one of plan_placements"
            )
    raise SafetensorError(f"Cannot load tensor {name!r} into the DTensor given: {problem}")


class _Cut:
    """One placement: an axis is divided among the ranks of one axis of the mesh."""

    def __init__(self, dim: int, rank: int, world_size: int, pieces: int) -> None:
        self.dim, self.rank, self.world_size, self.pieces = dim, rank, world_size, pieces

    def apply(self, ranges: List[_Range]) -> List[_Range]:
        """Returns this rank's share of the elements in `ranges`, which follow one another.

        The elements are first cut into `pieces`, and each piece among the ranks.
        """
        size = sum(end - begin for begin, end in ranges)
        found: List[_Range] = []
        length = -(-size // self.pieces)
        for piece in range(self.pieces):
            first, last = min(piece * length, size), min((piece + 1) * length, size)
            share = -(-(last - first) // self.world_size)
            begin = min(first + self.rank * share, last)
            found += _between(ranges, begin, min(begin + share, last))
        return found


def _between(ranges: List[_Range], first: int, last: int) -> List[_Range]:
    """Returns the elements from position `first` to before `last` of consecutive ranges."""
    found = []
    for begin, end in ranges:
        low, high = max(first, 0), min(last, end - begin)
        if low < high:
            found.append((begin + low, begin + high))
        first, last = first - (end - begin), last - (end - begin)
    return found


def _cuts(
    key: str, placements: Sequence[Any], mesh: DeviceMesh, coordinate: Sequence[int]
) -> List[_Cut]:
    if len(placements) != mesh.ndim:
        raise ValueError(
            f"{key!r} has {len(placements)} placements, but the device mesh has {mesh.ndim} axes"
        )
    cuts = []
    for axis, placement in enumerate(placements):
        kind = type(placement).__name__
        if kind == "Replicate":
            continue
        # _StridedShard is private to torch, and may move.
        pieces = getattr(placement, "split_factor", None) if kind == "_StridedShard" else 1
        if kind not in ("Shard", "_StridedShard") or pieces is None:
            raise ValueError(
                f"{key!r}: {placement!r} is not a placement that a file can be read by"
            )
        cuts.append(_Cut(placement.dim, coordinate[axis], mesh.size(axis), int(pieces)))
    return cuts


class _Placed:
    """This rank's part of a tensor, which becomes a DTensor."""

    def __init__(self, mesh: DeviceMesh, placements: Tuple[Any, ...], cuts: List[_Cut]) -> None:
        self._mesh, self._placements, self._cuts = mesh, placements, cuts

    def part(self, shape: Sequence[int]) -> Part:
        """Returns the part of a tensor of this shape, as an index."""
        axes: List[List[_Range]] = [[(0, size)] for size in shape]
        for cut in self._cuts:  # from left to right, each cuts what those before left
            if not -len(shape) <= cut.dim < len(shape):
                raise ValueError(
                    f"{self._placements}: a tensor of shape {list(shape)} has no axis {cut.dim}"
                )
            axes[cut.dim] = cut.apply(axes[cut.dim])
        return tuple(_index(ranges) for ranges in axes) if self._cuts else None

    def divides_as(self, other: _Placed, ndim: int) -> bool:
        """Returns whether both divide a tensor with so many axes among the same ranks alike."""
        return self._mesh == other._mesh and self._divided(ndim) == other._divided(ndim)

    def _divided(self, ndim: int) -> List[Optional[Tuple[int, int]]]:
        cuts = iter(self._cuts)  # one for each placement but Replicate
        found: List[Optional[Tuple[int, int]]] = []
        for placement in self._placements:
            cut = None if type(placement).__name__ == "Replicate" else next(cuts)
            found.append(None if cut is None else (cut.dim % max(ndim, 1), cut.pieces))
        return found

    def finish(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Returns the DTensor of this shape whose local part is `tensor`."""
        from torch.distributed.tensor import DTensor

        stride = torch.empty(tuple(shape), device="meta").stride()
        return DTensor.from_local(
            tensor,
            self._mesh,
            self._placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )


def _index(ranges: List[_Range]) -> Union[slice, List[slice]]:
    if len(ranges) == 1:
        return slice(*ranges[0])
    return [slice(*each) for each in ranges] if ranges else slice(0, 0)


# The axis that a style divides: of matrices and tensors with more axes, and of vectors.
_STYLES: Dict[str, Tuple[Union[int, None], Union[int, None]]] = {
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


@dataclass(frozen=True)
class _Style:
    """An entry of a tensor-parallel plan."""

    matches: Callable[[str], object]
    axes: Tuple[Union[int, None], Union[int, None]]
    blocks: Union[_Blocks, None]


def plan_tp(
    tp_plan: Mapping[str, str],
    rank: int,
    world_size: int,
    *,
    blocks: Union[Mapping[str, _Blocks], None] = None,
) -> Dict[str, Rule]:
    """Returns rules that load a rank's part of each tensor by a plan of transformers.

    All tensors are loaded: those that no key fits as a whole.

    Args:
        tp_plan: maps modules or parameters to styles, such as `model.tp_plan` or the
            `base_model_tp_plan` of a configuration. `*` in a key is any one word between dots. A
            key fits names that end with it, so that the prefix of the base model may be absent.
            A key of a parameter takes precedence over keys of modules.
        rank: from 0 to world_size - 1.
        world_size: the number of ranks.
        blocks: the `blocks` of `Shard` for keys with a packed style; two equal ones by default.

    Raises:
        ValueError: a style is unknown, or a key of `blocks` is not in `tp_plan`.
    """
    Shard(0, rank, world_size)  # checks them
    for key in blocks or ():
        if not tp_plan.get(key, "").startswith("packed_"):
            raise ValueError(f"blocks has {key!r}, which tp_plan gives no packed style")
    styles = [_style(key, style, (blocks or {}).get(key, 2)) for key, style in tp_plan.items()]

    def rule(name: str, meta: TensorMeta) -> Part:
        module = name.rpartition(".")[0]
        for each in (name, module):
            for style in styles:
                if style.matches(each):
                    axis = style.axes[len(meta.shape) < 2] if meta.shape else None
                    if axis is None:
                        return None
                    return Shard(axis, rank, world_size, style.blocks)
        return None

    return {"*": rule}


def _style(key: str, name: str, blocks: _Blocks) -> _Style:
    is_whole = name in _WHOLE or name.startswith("replicated_")
    if not is_whole and name not in _STYLES:
        raise ValueError(f"tp_plan[{key!r}] is {name!r}, a style that is not known")
    words = [r"[^.]+" if word == "*" else re.escape(word) for word in key.split(".")]
    matches = re.compile(r"(?:.*\.)?" + r"\.".join(words), re.DOTALL).fullmatch
    axes = _STYLES.get(name, (None, None))
    return _Style(matches, axes, blocks if name.startswith("packed_") else None)
