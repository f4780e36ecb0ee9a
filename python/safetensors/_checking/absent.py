"""Refuses loads that request what sums name and no file has.

`Verifier.absent` finds it. _shards.py keeps it among the files of a load, as shards of names only,
so that whatever opens files comes by here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .._typing import FileOfLoad

F = TypeVar("F", bound="FileOfLoad")


def needed(shard: FileOfLoad, wanted: Collection[str] | None) -> str | None:
    """Returns a requested one of the names that an index or sums assign to a shard, if any."""
    return next((name for name in shard.names or () if wanted is None or name in wanted), None)


def refuse_absent(shards: Iterable[FileOfLoad], wanted: Collection[str] | None) -> None:
    """Raises IntegrityError if sums name a requested tensor that no file has.

    Args:
        shards: those of find_shards().
        wanted: the requested names; None requests all tensors.
    """
    for shard in shards:
        name = needed(shard, wanted) if shard.absent_from else None
        if name is not None:
            from .verify import missing

            raise missing(
                shard.path, f"tensor `{name}`", f"{shard.absent_from} has its digest", name
            )


def present(shards: Iterable[F]) -> list[F]:
    """Returns the shards that are files."""
    return [shard for shard in shards if not shard.absent_from]


def with_absent(names: Collection[str], shards: Iterable[FileOfLoad]) -> Collection[str]:
    """Returns the names in files and those that are absent, which rules may exclude."""
    absent = [name for shard in shards if shard.absent_from for name in shard.names or ()]
    return dict.fromkeys([*names, *absent]) if absent else names
