"""Compares the functions of an engine with those that a plug-in was written for."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

_logger = logging.getLogger(__name__)


def agree(plugin: str, known: Mapping[Callable[..., Any], str]) -> bool:
    """Returns whether functions have the known parameters. If not, logs one warning.

    Args:
        plugin: what is not used then, for the warning.
        known: the parameters of functions and of the constructors of classes, see `parameters`.
    """
    differing = []
    for function, wanted in known.items():
        found = parameters(function)
        if found != wanted:
            where = f"{function.__module__}.{function.__qualname__}"
            differing.append(f"{where} takes ({found}), not ({wanted})")
    if differing:
        _logger.warning("%s is not used: %s", plugin, "; ".join(differing))
    return not differing


def parameters(function: Callable[..., Any]) -> str:
    """Returns the names of a function's parameters, such as "a, b=, *, c=": "=" has a default."""
    words: list[str] = []
    for each in inspect.signature(function).parameters.values():
        stars = "*" * (each.kind is each.VAR_POSITIONAL) + "**" * (each.kind is each.VAR_KEYWORD)
        if each.kind is each.KEYWORD_ONLY and not any(word[0] == "*" for word in words):
            words.append("*")
        words.append(stars + each.name + "=" * (each.default is not each.empty))
    return ", ".join(words)
