"""What a notebook shows of the file that docs/notebooks.md saves, for this page."""

from __future__ import annotations

import math

from safetensors._outline.contents import Contents
from safetensors._outline.tree import Listed, outline_of
from safetensors._outline.views import page_of

SHAPES = {"attention.weight": (64, 64), "norm.weight": (64,)}


def cell() -> str:
    """Returns HTML. It is in a shadow root, which the style of the site does not reach, but for the
    colour of text: so it looks as in a notebook."""
    tensors: list[Listed] = [
        (f"layers.{i}.{name}", "F32", shape, 4 * math.prod(shape))
        for i in range(12)
        for name, shape in SHAPES.items()
    ]
    tensors.append(("embedding", "F16", (1000, 64), 128_000))
    view = page_of(Contents("model.safetensors", "safetensors", tensors), outline_of(tensors))
    return f'<div class="cell"><template shadowrootmode="open">{view}</template></div>'
