"""Prints names of tensors for the completion of a shell.

    safetensors --complete-names PATH PREFIX

Names come from strangers, and a shell puts them on its command line: only those without characters
that mean something to a shell are printed. What cannot be read has no names, without a message.
"""

import re
import sys

from .._model_folder import BY_RULE
from .._weight_models import is_weight_model
from .model import Model
from .opening import STDIN
from .weight_model import WeightModel

_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_MAX = 10_000


def main() -> int:
    path, prefix = sys.argv[2:4] if len(sys.argv) > 3 else ("", "")
    try:
        found = _names(path)
    except Exception:
        return 0
    shown = (name for name in found if name.startswith(prefix) and _HARMLESS.fullmatch(name))
    for name, _ in zip(shown, range(_MAX), strict=False):
        print(name)
    return 0


def _names(path: str) -> list[str]:
    if path == STDIN or "://" in path:
        return []  # completing neither waits for input nor connects
    if is_weight_model(path):
        with WeightModel(path, BY_RULE, is_asked_for=False) as weights:
            return [*weights.by_name(), *weights.aliases()]
    with Model(path) as model:
        return [*model.by_name()]
