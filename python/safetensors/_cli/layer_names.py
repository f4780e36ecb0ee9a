"""Metadata that name tensors: they change with the names, or the command is refused.

ComfyUI describes quantised layers in `_quantization_metadata`:

    {"format_version": "1.0", "layers": {"blocks.0.q": {"format": "int8_tensorwise"}}}
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import _json
from .errors import CliError
from .text import clipped

KEY = "_quantization_metadata"
_LAYERS = "layers"


def merged(texts: Iterable[tuple[str, str]]) -> str:
    """Returns the text for a file with the layers of several files, given as paths and texts.

    Raises:
        CliError: two texts describe a layer, or differ in more than the layers.
    """
    first: dict[str, Any] | None = None
    for path, text in texts:
        table = _table(text, path)
        if first is None:
            first = table
            continue
        others = [{key: each[key] for key in each if key != _LAYERS} for each in (first, table)]
        twice = first[_LAYERS].keys() & table[_LAYERS].keys()
        if twice or others[0] != others[1]:
            what = f"layer `{clipped(min(twice))}`" if twice else "it"
            raise CliError(f"{path}: metadata `{KEY}`: another file describes {what} otherwise")
        first[_LAYERS] |= table[_LAYERS]
    return json.dumps(first)


def renamed(path: str, metadata: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata for tensors with new names.

    Args:
        path: the file, for errors.
        metadata: those of the file.
        names: the new name of each tensor, by its old one.

    Raises:
        CliError: others than ComfyUI's name a tensor that gets a new name, or a layer would have
            two names.
    """
    made = dict(metadata)
    if KEY in made:
        modules: dict[str, set[str]] = {}
        for old, new in names.items():
            modules.setdefault(_module_of(old), set()).add(_module_of(new))
        table = _table(made[KEY], path)
        layers = {}
        for layer, what in table[_LAYERS].items():
            found = modules.get(layer, {layer})
            if len(found) != 1 or min(found) in layers:
                raise CliError(
                    f"{path}: metadata `{KEY}`: `{clipped(layer)}` would have no one name"
                )
            layers[min(found)] = what
        made[KEY] = json.dumps({**table, _LAYERS: layers})
    for key, text in metadata.items():
        for said in {key, *_texts(text, path)} if key != KEY else ():
            if names.get(said, said) != said:
                raise CliError(
                    f"{path}: metadata `{clipped(key)}` names tensor `{clipped(said)}`: it would "
                    "keep the old name"
                )
    return made


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _table(text: str, path: str) -> dict[str, Any]:
    table = _json.loads(text, path)
    if not isinstance(table, dict) or not isinstance(table.get(_LAYERS), dict):
        raise CliError(f"{path}: metadata `{KEY}` has no table `{_LAYERS}`")
    return table


def _texts(text: str, path: str) -> Iterator[str]:
    """Yields all texts of a value that is JSON."""
    if not text.startswith(("{", "[")):
        return
    try:
        left = [_json.loads(text, path)]
    except ValueError:
        return
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
