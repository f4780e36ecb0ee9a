"""Draws tensors as a tree of the dotted prefixes of their names."""

from collections.abc import Iterator, Sequence

from . import text
from .output import Output, Piece
from .reader import Tensor

MAX_DEPTH = 32
"""The limit of levels: a name may have a million dots."""


class _Node:
    """A prefix. `tensor` is set if it is also a complete name."""

    __slots__ = ("children", "count", "nbytes", "tensor")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.tensor: Tensor | None = None
        self.count = 0
        self.nbytes = 0


def show(tensors: Sequence[Tensor], depth: int, out: Output) -> None:
    """Draws the tree. Levels below `depth` are summed up in their prefix."""
    lines = list(_lines(_grown(tensors), "", min(depth, MAX_DEPTH), _strokes(out)))
    width = max((sum(len(piece) for piece, _ in line[:2]) for line in lines), default=0)
    for line in lines:
        pad = " " * (min(width, 100) - sum(len(piece) for piece, _ in line[:2]))
        out.line(*line[:2], pad, *line[2:])


def _grown(tensors: Sequence[Tensor]) -> _Node:
    root = _Node()
    for tensor in tensors:
        node = root
        for part in tensor.name.split(".", MAX_DEPTH):
            node = node.children.setdefault(part, _Node())
            node.count += 1
            node.nbytes += tensor.nbytes
        node.tensor = tensor
    return root


def _strokes(out: Output) -> tuple[str, str, str, str]:
    unicode = ("├── ", "└── ", "│   ", "    ")
    return unicode if out.can_show("".join(unicode)) else ("|-- ", "`-- ", "|   ", "    ")


def _lines(
    node: _Node, indent: str, depth: int, strokes: tuple[str, str, str, str]
) -> Iterator[list[Piece]]:
    branch, last, through, blank = strokes
    names = sorted(node.children, key=text.natural_key)
    for name in names:
        label, child = _joined(name, node.children[name])
        is_last = name == names[-1]
        stroke = last if is_last else branch
        shut = depth <= 1 or not child.children
        yield [
            (indent + stroke, "dim"),
            (text.shown(label), "cyan" if shut else "bold"),
            *_says(child),
        ]
        if not shut:
            yield from _lines(child, indent + (blank if is_last else through), depth - 1, strokes)


def _joined(label: str, node: _Node) -> tuple[str, _Node]:
    """Joins a prefix with its descendants as long as there is only one child."""
    while node.tensor is None and len(node.children) == 1:
        (part, node) = next(iter(node.children.items()))
        label += "." + part
    return label, node


def _says(node: _Node) -> list[Piece]:
    if node.tensor is not None and not node.children:
        tensor = node.tensor
        kind = f"  {tensor.dtype} {text.shape(tensor.shape)}"
        return [(kind, "magenta"), (f"  {text.size(tensor.nbytes)}", "green")]
    return [(f"  {text.count(node.count, 'tensor')}", ""), (f"  {text.size(node.nbytes)}", "green")]
