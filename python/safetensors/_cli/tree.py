"""Draws tensors as a tree of the dotted parts of their names."""

from collections.abc import Iterator, Sequence

from .._outline.tree import Row, outline_of
from . import text
from .output import Output, Piece
from .reader import Tensor

MAX_DEPTH = 32
"""The limit of levels: a name may have a million dots."""
_MAX_WIDTH = 100


def show(tensors: Sequence[Tensor], depth: int, out: Output) -> None:
    """Draws the tree. Levels below `depth` are summed up in the row above them, and so are those of
    all but the first of several rows that are alike."""
    listed = [(each.name, each.dtype, each.shape, each.nbytes) for each in tensors]
    outline = outline_of(listed, depth=min(depth, MAX_DEPTH))
    lines = list(_lines(outline.rows, "", _strokes(out), "…" if out.can_show("…") else "..."))
    width = max((len(indent) + len(label) for (indent, _), (label, _), *_ in lines), default=0)
    for line in lines:
        pad = " " * (min(width, _MAX_WIDTH) - sum(len(piece) for piece, _ in line[:2]))
        out.line(*line[:2], pad, *line[2:])


def _strokes(out: Output) -> tuple[str, str, str, str]:
    unicode = ("├── ", "└── ", "│   ", "    ")
    return unicode if out.can_show("".join(unicode)) else ("|-- ", "`-- ", "|   ", "    ")


def _lines(
    rows: Sequence[Row], indent: str, strokes: tuple[str, str, str, str], dots: str
) -> Iterator[list[Piece]]:
    branch, last, through, blank = strokes
    for row in rows:
        is_last = row is rows[-1]
        label = row.label if row.alike == 1 else f"{row.first} {dots} {row.last}"
        yield [
            (indent + (last if is_last else branch), "dim"),
            (text.shown(label), "bold" if row.rows else "cyan"),
            *_says(row),
        ]
        yield from _lines(row.rows, indent + (blank if is_last else through), strokes, dots)


def _says(row: Row) -> list[Piece]:
    if row.type is None or row.shape is None:
        said = [(f"  {text.count(row.tensors, 'tensor')}", "")]
    else:
        said = [(f"  {row.type} {text.shape(row.shape)}", "magenta")]
    said.append((f"  {text.size(row.nbytes)}", "green"))
    if row.alike > 1:
        said.append((f"  {row.alike:,} alike", "dim"))
    return said
