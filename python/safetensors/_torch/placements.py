"""Rules for plans from the placements of torch's DTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from .._errors import failure
from .._regions import cut, index_of
from ..plan import Part, Rule
from . import torch


def plan_placements(
    device_mesh: DeviceMesh, placements: Mapping[str, Sequence[Any]]
) -> dict[str, Rule]:
    """Returns rules that load this rank's part of each tensor as a DTensor.

    Args:
        device_mesh: the ranks that share the tensors.
        placements: maps names and glob patterns to placements, one for each axis of the mesh.
            `Shard` and `Replicate` of `torch.distributed.tensor` are placements, and those that
            FSDP and tensor parallelism make of them: the part is the one that such a model has.
            Before torch 2.10, `distribute_tensor` gives other rows than they do if the rows do not
            divide by the ranks.

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
    raise failure(
        "invalid_argument",
        f"Cannot load tensor {name!r} into the DTensor given: {problem}",
        subject=name,
    )


class _Cut:
    """One placement: an axis is divided among the ranks of one axis of the mesh."""

    def __init__(self, dim: int, rank: int, world_size: int, pieces: int) -> None:
        self.dim, self.rank, self.world_size, self.pieces = dim, rank, world_size, pieces

    def apply(self, ranges: list[range]) -> list[range]:
        """Returns this rank's share of the elements in `ranges`, which follow one another.

        The elements are first cut into `pieces`, and each piece among the ranks.
        """
        size = sum(map(len, ranges))
        found: list[range] = []
        length = -(-size // self.pieces)
        for piece in range(self.pieces):
            first, last = min(piece * length, size), min((piece + 1) * length, size)
            share = -(-(last - first) // self.world_size)
            begin = min(first + self.rank * share, last)
            found += cut(ranges, begin, min(begin + share, last))
        return found


def _cuts(
    key: str, placements: Sequence[Any], mesh: DeviceMesh, coordinate: Sequence[int]
) -> list[_Cut]:
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

    def __init__(self, mesh: DeviceMesh, placements: tuple[Any, ...], cuts: list[_Cut]) -> None:
        self._mesh, self._placements, self._cuts = mesh, placements, cuts

    def part(self, shape: Sequence[int]) -> Part:
        """Returns the part of a tensor of this shape, as an index."""
        axes = [[range(size)] for size in shape]
        for each in self._cuts:  # from left to right, each cuts what those before left
            if not -len(shape) <= each.dim < len(shape):
                raise ValueError(
                    f"{self._placements}: a tensor of shape {list(shape)} has no axis {each.dim}"
                )
            axes[each.dim] = each.apply(axes[each.dim])
        return tuple(map(index_of, axes)) if self._cuts else None

    def divides_as(self, other: _Placed, ndim: int) -> bool:
        """Returns whether both divide a tensor with so many axes among the same ranks alike."""
        return self._mesh == other._mesh and self._divided(ndim) == other._divided(ndim)

    def _divided(self, ndim: int) -> list[tuple[int, int] | None]:
        cuts = iter(self._cuts)  # one for each placement but Replicate
        found: list[tuple[int, int] | None] = []
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
