"""Matches the names of a module and of files that differ in the prefixes of wrapper modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator

from .._errors import failure

_ANYWHERE = {
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP",
    "_checkpoint_wrapped_module.": "activation checkpointing",
}
_FIRST = {"module.": "DistributedDataParallel or DataParallel"}
_WRAPPERS = _ANYWHERE | _FIRST

_pattern = re.compile("(?<![^.])(?:" + "|".join(map(re.escape, _ANYWHERE)) + ")")


def bare(name: str) -> str:
    """Returns the name without the prefixes of wrappers."""
    return _divided(name)[0]


def _divided(name: str) -> tuple[str, list[str]]:
    """Returns the name without the prefixes of wrappers, and these."""
    prefixes: list[str] = _pattern.findall(name)
    name = _pattern.sub("", name)
    for prefix in _FIRST:
        while name.startswith(prefix):
            prefixes.append(prefix)
            name = name[len(prefix) :]
    return name, prefixes


class BareNames(Collection[str]):
    """Names; a name whose bare form is that of one of them is `in` them, too."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._bare = {*map(bare, names)}

    def __contains__(self, name: object) -> bool:
        return name in self._names or (isinstance(name, str) and bare(name) in self._bare)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def matched(names: Collection[str], found: Collection[str]) -> dict[str, str]:
    """Returns, for names in files, the names of a module that differ from them in prefixes only.

    Args:
        names: the module's.
        found: those in files. A name that is in both is left alone.

    Raises:
        SafetensorError: two names on one side differ in prefixes only.
    """
    wanted = _by_bare(names, found, "the module")
    return {
        other: wanted[key]
        for key, other in _by_bare(found, names, "the files").items()
        if key in wanted
    }


def _by_bare(names: Iterable[str], others: Container[str], whose: str) -> dict[str, str]:
    """Returns the names that are not in `others` by their bare forms."""
    result: dict[str, str] = {}
    for name in names:
        if name not in others and result.setdefault(bare(name), name) != name:
            raise failure(
                "duplicate_name",
                f"strip_prefixes: {result[bare(name)]!r} and {name!r} of {whose} are the same name "
                "without the prefixes of wrappers",
                subject=name,
            )
    return result


def mismatch(heading: str, missing: Collection[str], unexpected: Collection[str]) -> str:
    """Returns the text of an error in the words of torch's load_state_dict."""
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        quoted = ", ".join(f'"{name}"' for name in sorted(names))
        if quoted:
            heading += f"\n    {what} key(s) in state_dict: {quoted}"
    return heading + _hint(missing, unexpected)


def _hint(missing: Collection[str], unexpected: Collection[str]) -> str:
    """Returns which prefixes make names differ; empty if none do."""
    wanted = {bare(name): name for name in missing}
    told: dict[str, None] = {}
    for name in unexpected:
        other = wanted.get(bare(name))
        if other is None:
            continue
        in_file, in_module = (Counter(_divided(each)[1]) for each in (name, other))
        for has, lacks, more in (
            ("the file", "the module", in_file - in_module),
            ("the module", "the file", in_module - in_file),
        ):
            for prefix in more:
                line = (
                    f"\n    Names in {has} have the prefix `{prefix}` of {_WRAPPERS[prefix]}, "
                    f"which those in {lacks} lack: strip_prefixes=True ignores it"
                )
                told[line] = None
    return "".join(told)
