"""Suggests names for one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable

_MAX = 3
_MAX_NAMES = 20_000
_MAX_CHARS = 200
_LIKE = 0.6
TO_ZEROS = str.maketrans(dict.fromkeys("0123456789", "0"))


def suggestions(name: object, known: Iterable[str], *, like: float = _LIKE) -> str:
    """Returns the end of an error's text: "; did you mean `a`, `b` or `c`?", or nothing.

    `name_suggestions` in C++ does the same for errors that are made there.

    Args:
        name: the unknown name.
        known: those that exist.
        like: from 0 to 1, how similar a suggestion is at least.
    """
    name = str(name)
    if not name:
        return ""
    # Comparing takes microseconds a name, and names of many layers differ in numbers only.
    shown: dict[str, str] = {}
    digits = _digits_of(name)
    for each in known:
        if _is_part(name, each) or _is_part(each, name):
            return f"; did you mean `{each[:_MAX_CHARS]}`?"
        form = each.translate(TO_ZEROS)
        if form not in shown or _digits_of(each) == digits:
            shown[form] = each
    if len(name) > _MAX_CHARS or len(shown) > _MAX_NAMES:
        return ""
    import difflib  # which only a mistake needs

    near = difflib.get_close_matches(name.translate(TO_ZEROS), shown, _MAX, like)
    found = [f"`{shown[each][:_MAX_CHARS]}`" for each in near]
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _is_part(name: str, whole: str) -> bool:
    """Returns whether a name lacks the first or the last parts of another one, or an index."""
    ends = (f"{name}.", f"{name}[")
    return bool(name) and (whole.endswith(f".{name}") or whole.startswith(ends))


def _digits_of(name: str) -> str:
    return "".join(filter(str.isdigit, name))
