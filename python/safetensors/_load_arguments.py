"""Which files a load reads, and how: the arguments that the functions that load have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._model_folder import BY_RULE, Choice
from ._shards import OfUrl, ShardFile, find_shards, shards_of_url

if TYPE_CHECKING:
    from ._typing import Progress, Sources

__all__ = ["LoadArguments"]


class LoadArguments(NamedTuple):
    """What each function that loads passes on. The fields are as for `load_files`."""

    filenames: Sources
    storage_options: Mapping[str, Any] | None = None
    verify: Any = None
    """As with_hashes() returns it."""
    choice: Choice = BY_RULE
    backend: str = "auto"
    keys: Iterable[str] | Callable[[str], bool] | None = None
    plan: Mapping[str, Any] | None = None
    budget_bytes: int | None = None
    progress: Progress | None = None

    def conflict(self) -> ValueError | None:
        """Returns why there cannot be these `keys` beside this plan, or None."""
        if self.plan is None or self.keys is None or callable(self.keys):
            return None
        return ValueError("keys and plan cannot be given together: a plan names its tensors")

    def find(self, of_url: OfUrl = shards_of_url) -> list[ShardFile]:
        """Returns the files. `of_url` is called for each URL. See find_shards()."""
        return find_shards(self.filenames, self.storage_options, of_url, self.verify, self.choice)
