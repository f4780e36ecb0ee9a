"""Matches the names of tensors with names and glob patterns: imports no framework."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ._core import SafetensorError
from ._errors import failure
from ._near_names import TO_ZEROS, suggestions

if TYPE_CHECKING:
    from ._typing import FileOfLoad

T = TypeVar("T")

_DIGITS = "0123456789"
_WILDCARD = re.compile(r"[*?[]")


def match(
    rules: Mapping[str, T], names: Collection[str], optional: T, source: str = ""
) -> dict[str, T]:
    """Returns the rule of each name that one fits.

    A key of `rules` that is in `names` is a name, any other key with wildcards is a pattern as of
    `fnmatch.fnmatchcase`. A name takes precedence over patterns; among patterns, the first that
    fits is taken.

    Args:
        rules: the rules by name or pattern. Of a rule with a method `for_names`, what it returns
            for `names` is the rule.
        names: the names in the files; `in` has to be fast.
        optional: a rule whose key may fit nothing.
        source: what errors call the files, as source_of() returns it.

    Raises:
        SafetensorError: a key fits nothing.
    """
    rules = {key: _bound(rule, names) for key, rule in rules.items()}
    patterns: list[str] = []
    for key, rule in rules.items():
        if key in names:
            continue
        if _WILDCARD.search(key):
            patterns.append(key)
        elif rule is not optional:
            raise unknown(key, names, source)
    if not patterns:
        return {key: rule for key, rule in rules.items() if key in names}
    found, used = _first_fits({pattern: rules[pattern] for pattern in patterns}, names)
    for pattern in patterns:
        if pattern in used or rules[pattern] is optional:
            continue
        if not any(map(_matcher(pattern), names)):  # else other rules came first
            raise failure(
                "tensor_not_found",
                f"No tensor fits the pattern {pattern!r}{suggestions(pattern, names)}",
                path=source or None,
                subject=pattern,
            )
    found.update((key, rule) for key, rule in rules.items() if key in names)
    return found


def unknown(name: str, names: Collection[str], source: str) -> SafetensorError:
    """Returns the error for a requested tensor that no file has."""
    text = f"The files do not contain tensor {name!r}{suggestions(name, names)}"
    return failure("tensor_not_found", text, path=source or None, subject=name)


def source_of(files: Sequence[FileOfLoad]) -> str:
    """Returns the index, the folder or the only file; nothing if the caller named several."""
    if not files:
        return ""
    return files[0].index_path or (files[0].path if len(files) == 1 else files[0].folder)


def _bound(rule: T, names: Collection[str]) -> T:
    for_names: Callable[[Collection[str]], T] | None = getattr(rule, "for_names", None)
    return rule if for_names is None else for_names(names)


def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(pattern)).match


def _first_fits(rules: Mapping[str, T], names: Collection[str]) -> tuple[dict[str, T], set[str]]:
    """Returns the rule of the first pattern that fits each name, and the patterns that are one.

    The names of a model differ mostly in numbers: with each digit replaced by 0, few distinct ones
    are left, which are tested once. What decides for a pattern without digits and sets:

        model.layers.17.mlp.down_proj.weight -> model.layers.00.mlp.down_proj.weight
        model.layers.*.mlp.*                 fits both or neither

    A pattern with digits is itself replaced in this way, and then tested with the names that are
    left. A pattern with a set, such as `[0-3]`, is tested with all.
    """
    tests: list[tuple[str, Callable[[str], object], Callable[[str], object] | None]] = []
    for pattern in rules:
        zeros = pattern.translate(TO_ZEROS)
        coarse = _matcher("*" if "[" in pattern else zeros)
        is_exact = "[" not in pattern and not any(digit in pattern for digit in _DIGITS)
        tests.append((pattern, coarse, None if is_exact else _matcher(pattern)))

    forms = _forms(names)
    used: set[str] = set()
    decided: dict[str, T] = {}
    undecided: dict[str, list[tuple[str, Callable[[str], object] | None]]] = {}
    for form in set(forms):
        likely = []
        for pattern, coarse, exact in tests:
            if coarse(form):
                likely.append((pattern, exact))
                if exact is None:
                    break
        if len(likely) == 1 and likely[0][1] is None:
            decided[form] = rules[likely[0][0]]
            used.add(likely[0][0])
        elif likely:
            undecided[form] = likely
    found = {
        name: decided[form] for name, form in zip(names, forms, strict=True) if form in decided
    }
    if undecided:
        for name, form in zip(names, forms, strict=True):
            for pattern, exact in undecided.get(form, ()):
                if exact is None or exact(name):
                    found[name] = rules[pattern]
                    used.add(pattern)
                    break
    return found, used


def _forms(names: Collection[str]) -> list[str]:
    """Returns the names with each digit replaced by 0."""
    forms = "\n".join(names).translate(TO_ZEROS).split("\n")
    if len(forms) == len(names):
        return forms
    return [name.translate(TO_ZEROS) for name in names]  # a name has a line break, or none is left
