"""How files are saved: the arguments that the functions that save have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .._checking.digests import FileDigests
    from .._checking.sums_save import Make
    from .._typing import Progress, SumsOption

__all__ = ["SaveArguments"]


class SaveArguments(NamedTuple):
    """What each function that saves passes on, down to the compiled module, which reads the fields
    by their names. They are as for `save_file` and `safe_create`.

    No dataclass: that module takes several milliseconds to import.
    """

    metadata: dict[str, str] | None = None
    fsync: bool = False
    progress: Progress | None = None
    sums: SumsOption = None
    layout: str = "canonical"
    budget_bytes: int | None = None
    """None for the default of what saves."""
    data_begin: int = 0
    """The least offset of the data in a file; 0 leaves it to the layout."""
    make_sums: Make | None = None
    """What the compiled module calls with a complete file, instead of `sums`."""

    def of_file(self, target: Any) -> SaveArguments:
        """Returns the options with which the compiled module writes this file."""
        if not self.sums:
            return self
        from .._checking.sums_save import of_one

        return self._replace(make_sums=of_one(self.sums, target))

    def of_shards(self) -> tuple[SaveArguments, list[FileDigests] | None]:
        """Returns the options of the files of a model, which is flushed and gets sums as a whole;
        and, if it gets sums, a list to which each file that is saved adds its digests."""
        if not self.sums:
            return self._replace(fsync=False), None
        from .._checking.sums_save import Collect

        collect = Collect(self.sums)
        return self._replace(fsync=False, sums=None, make_sums=collect.make), collect.files
