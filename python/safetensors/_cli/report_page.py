"""Makes the page of `report`. Needs NumPy."""

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .._outline import html
from .._outline.contents import base_name, facts
from .._outline.tree import Outline, outline_of
from . import main, text
from .dtypes import element_count
from .model import Placed, choice_of
from .output import Advance, Output
from .report_model import Difference, Subject, measure, opened
from .statistics import histogram, statistics
from .tree_map import tree_map

_MOST_ROWS = 400
_MOST_HISTOGRAMS = 24
_MOST_DIFFERENCES = 60
_BINS = 48
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:1.5rem auto;padding:0 1rem;
background:Canvas;color:CanvasText}}
h2{{font-size:1.05rem;margin:1.8rem 0 .5rem}}
table{{border-collapse:collapse;font:12px ui-monospace,monospace;width:100%}}
th,td{{text-align:right;padding:.15rem .6rem;border-bottom:1px solid rgba(128,128,128,.25)}}
th:first-child,td:first-child{{text-align:left;overflow-wrap:anywhere}}
.wide{{overflow-x:auto}}.narrow{{display:none}}
.grid{{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1rem;
font:11px/1.5 ui-monospace,monospace}}
.grid>div{{min-width:0;overflow-wrap:anywhere}}
@media(max-width:600px){{.map.wide{{display:none}}.narrow{{display:block}}}}
</style></head><body>
"""


def page(arguments: argparse.Namespace, out: Output) -> str:
    """Returns the page for the arguments of the command."""
    paths = [arguments.path, *([arguments.against] if arguments.against is not None else [])]
    with opened(paths, choice_of(arguments), arguments.quick) as subjects:
        subject = subjects[0]
        contents = subject.contents
        outline = outline_of(contents.tensors, rows=_MOST_ROWS)
        blocks = [_HEAD.format(title=html.escaped(contents.title))]
        blocks.append(_summary(subject, outline, arguments))
        blocks.append(_map(outline))
        blocks.append(_types(outline))
        blocks.append(_section("Tensors", html.wrapped(html.tree(outline))))
        blocks.append(_histograms(subject, arguments.quick, out))
        if len(subjects) > 1:
            blocks.append(_differences(subject, subjects[1], arguments, out))
        rest = [
            html.pairs("configuration", contents.config, 100),
            html.pairs("metadata", contents.metadata, 100),
            html.pairs("no canonical name", [(name, "") for name in contents.unmapped], 100),
        ]
        if any(rest):
            blocks.append(_section("Configuration and metadata", html.wrapped(*rest)))
        blocks.append("</body></html>\n")
        return "".join(blocks)


def _section(title: str, body: str) -> str:
    return f"<h2>{html.escaped(title)}</h2>\n{body}\n"


def _summary(subject: Subject, outline: Outline, arguments: argparse.Namespace) -> str:
    contents = subject.contents
    blocks = [html.heading(contents.title, facts(contents.kind, outline))]
    blocks += [html.paragraph(f"⚠ {warning}") for warning in contents.warnings]
    blocks += [html.paragraph(said) for said in _checked(arguments.path)]
    if contents.files:
        files = html.bars(((name, nbytes, "") for name, nbytes in contents.files), 200)
        blocks.append(html.folded(f"files ({len(contents.files):,})", files))
    return html.wrapped(*blocks)


class _Answers(Output):
    """Keeps what a command would print as JSON."""

    def __init__(self) -> None:
        super().__init__("never", quiet=True)
        self.value: Any = None

    def json(self, value: object) -> None:
        self.value = value


def _checked(path: str) -> list[str]:
    """Returns what `check` says, with base names."""
    answers = _Answers()
    words = ["check", "--json", "--quiet", "--", path]
    given = main.parser().parse_args(words)
    given.run(given, answers)
    verdicts = [each for each in answers.value if each["kind"] != "gguf"]
    bad = [each for each in verdicts if each["kind"] != "ok"]
    if not bad:
        return [f"check: ok, {text.count(len(verdicts), 'file')}"] if verdicts else []
    return [f"check: {base_name(e['path'])}: {e['kind']}: {e['message']}" for e in bad[:10]]


def _map(outline: Outline) -> str:
    colours = html.colours_of(outline.types)
    wide, narrow = (tree_map(outline.rows, colours, *size) for size in ((960, 420), (380, 420)))
    bar = html.wrapped(html.types_bar(outline.types))
    return _section(
        "Sizes", f'<div class="map wide">{wide}</div><div class="narrow">{narrow}</div>{bar}'
    )


def _types(outline: Outline) -> str:
    rows = [
        (
            each.type,
            f"{each.tensors:,}",
            f"{each.elements:,}",
            text.size(each.nbytes),
            f"{8 * each.nbytes / each.elements:.2f}" if each.elements else "",
        )
        for each in outline.types
    ]
    return _section("Types", _table(("type", "tensors", "elements", "size", "bits each"), rows))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escaped(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escaped(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _histograms(subject: Subject, is_quick: bool, out: Output) -> str:
    placed = subject.placed
    largest = sorted(
        (name for name, each in placed.items() if element_count(each.tensor.shape) > 1),
        key=lambda name: (-placed[name].tensor.nbytes, text.natural_key(name)),
    )[:_MOST_HISTOGRAMS]
    if not largest:
        return ""
    total = sum(2 * placed[name].tensor.nbytes for name in largest)
    with out.progress("reading", total) as advance:
        cells = [_histogram(subject, name, advance) for name in largest]
    title = f"Values of the {text.count(len(cells), 'largest tensor')}"
    if is_quick:
        title += ", up to 1,048,576 of each"
    return _section(title, f'<div class="grid">{"".join(cells)}</div>')


def _histogram(subject: Subject, name: str, advance: Advance) -> str:
    from .decode import can_decode

    file, tensor = subject.placed[name]
    head = f"<b>{html.escaped(name)}</b><br>{html.escaped(subject.types[name])}"
    head += f" {html.escaped(text.shape(tensor.shape))}"
    if not can_decode(tensor.dtype):
        return f"<div>{head}<br>no values: 6-bit types are not decoded</div>"
    known = statistics(file, tensor, advance)
    if not known.finite:
        return f"<div>{head}<br>no finite values</div>"
    bins = histogram(file, tensor, known, _BINS, advance)
    said = (
        f"max |x| {max(abs(known.least), abs(known.most)):.4g}  "
        f"zeros {known.zero / known.elements:.1%}"
    )
    for label, number in (("mean", known.mean), ("std", known.deviation)):
        said += "" if number is None else f"  {label} {number:.3g}"
    if known.finite < known.elements:
        said += f"  not finite {known.elements - known.finite:,}"
    low, high = float(known.least), float(known.most)
    picture = html.histogram(bins.counts, low, high, 60)
    return f"<div>{head}{picture}{html.escaped(said)}</div>"


def _differences(one: Subject, other: Subject, arguments: argparse.Namespace, out: Output) -> str:
    rows: list[tuple[float, tuple[str, ...]]] = []
    equal = 0
    both = [name for name in one.types if name in other.types]
    comparable = [
        name
        for name in both
        if name in one.placed
        and name in other.placed
        and _comparable(one.placed[name], other.placed[name])
    ]
    total = sum(
        subject.placed[name].tensor.nbytes for name in comparable for subject in (one, other)
    )
    can = set(comparable)
    with out.progress("comparing", total) as advance:
        for name in both:
            types = (one.types[name], other.types[name])
            if name not in can:
                rows.append((math.inf, (name, *types, "not comparable", "", "")))
                continue
            found = measure(one.placed[name], other.placed[name], advance)
            if found.rms == 0 and found.largest == 0:
                equal += types[0] == types[1]
                if types[0] == types[1]:
                    continue
            rows.append((_order(found), (name, *types, *_said(found))))
    for name in one.types.keys() - other.types.keys():
        rows.append((math.inf, (name, one.types[name], "missing", "", "", "")))
    for name in other.types.keys() - one.types.keys():
        rows.append((math.inf, (name, "missing", other.types[name], "", "", "")))
    rows.sort(key=lambda row: (-row[0], text.natural_key(row[1][0])))
    title = f"Against {base_name(arguments.against)}"
    said = f"{text.count(equal, 'tensor')} equal, {len(rows):,} differ"
    if arguments.quick:
        said += ", of up to 1,048,576 values of each"
    heads = ("tensor", "here", "there", "max |a-b|", "rms(a-b)", "rms(a-b) / rms(a)")
    body = html.wrapped(html.paragraph(said))
    if rows:
        body += _table(heads, [row for _, row in rows[:_MOST_DIFFERENCES]])
    if len(rows) > _MOST_DIFFERENCES:
        body += html.wrapped(html.paragraph(f"… {len(rows) - _MOST_DIFFERENCES:,} more"))
    return _section(title, body)


def _comparable(a: Placed, b: Placed) -> bool:
    from .decode import can_decode

    return a.tensor.shape == b.tensor.shape and all(
        can_decode(each.tensor.dtype) for each in (a, b)
    )


def _order(found: Difference) -> float:
    """Returns what is greatest for the worst."""
    relative = math.inf if found.relative is None else found.relative
    return math.inf if math.isnan(relative) else relative


def _said(found: Difference) -> tuple[str, str, str]:
    relative = "" if found.relative is None else f"{found.relative:.3%}"
    return f"{found.largest:.3g}", f"{found.rms:.3g}", relative
