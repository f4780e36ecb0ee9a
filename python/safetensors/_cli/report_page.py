"""Makes the page of `report`. Needs NumPy."""

import argparse
import contextlib
from collections.abc import Iterable, Sequence

from .._outline import html
from .._outline.contents import Contents, base_name, facts, totals
from .._outline.tree import Outline, outline_of
from . import check, diff_stats, text
from .dtypes import element_count
from .model import Placed
from .output import Advance, Output
from .reader import File, Tensor
from .report_model import contents_of, placed_in, read_of
from .statistics import histogram, statistics
from .tree_map import tree_map
from .weight_model import opened_together
from .writing import refuse_sources

_MAX_ROWS = 400
_MAX_HISTOGRAMS = 24
_MAX_DIFFERENCES = 60
_MAX_VERDICTS = 4
_BINS = 48
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:54rem;margin:1.5rem auto;padding:0 1rem;
background:Canvas;color:CanvasText}}
h2{{font-size:1.05rem;margin:1.8rem 0 .5rem}}
table{{border-collapse:collapse;font:12px ui-monospace,monospace;width:100%}}
th,td{{text-align:right;padding:.15rem .6rem;border-bottom:1px solid rgba(128,128,128,.25);
white-space:nowrap}}
th:first-child,td:first-child{{text-align:left;white-space:normal;overflow-wrap:anywhere;
min-width:9em}}
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
    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(each) for each in opened_together(paths, arguments)]
        refuse_sources(arguments.output, [path for each in models for path in read_of(each)])
        contents = stack.enter_context(contents_of(models[0]))
        placed = [placed_in(model, arguments.quick) for model in models]
        outline = outline_of(contents.tensors, rows=_MAX_ROWS)
        blocks = [_HEAD.format(title=html.escaped(contents.title))]
        blocks.append(_summary(contents, outline, arguments))
        blocks.append(_map(outline))
        blocks.append(_types(outline))
        blocks.append(_section("Tensors", html.wrapped(html.tree(outline))))
        blocks.append(_histograms(placed[0], arguments.quick, out))
        if len(placed) > 1:
            blocks.append(_differences(placed[0], placed[1], arguments, out))
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


def _summary(contents: Contents, outline: Outline, arguments: argparse.Namespace) -> str:
    blocks = [html.heading(contents.title, facts(contents.kind, outline))]
    blocks += [html.paragraph(f"⚠ {warning}") for warning in contents.warnings]
    blocks += [html.paragraph(said) for said in _checked(arguments)]
    if contents.files:
        files = html.bars(((name, nbytes, "") for name, nbytes in contents.files), 200)
        blocks.append(html.folded(f"files ({len(contents.files):,})", files))
    return html.wrapped(*blocks)


def _checked(arguments: argparse.Namespace) -> list[str]:
    """Returns the lines of `check` with base names: up to ten of what is wrong, else of all if they
    are few."""
    silent = Output("never", quiet=True)  # the page has the model's warnings
    verdicts = check.verdicts_on(arguments.path, arguments, False, silent)
    bad = [each for each in verdicts if each.kind != "ok"]
    if not bad and len(verdicts) > _MAX_VERDICTS:
        files = sum(each.nbytes is not None for each in verdicts)
        return [f"check: ok: {text.count(files, 'file')}"]
    shown = bad[:10] or verdicts
    return [f"check: {base_name(e.path)}: {e.kind}: {e.message}" for e in shown]


def _map(outline: Outline) -> str:
    colours = html.colours_of(outline.types)
    wide, narrow = (tree_map(outline.rows, colours, *size) for size in ((960, 420), (380, 420)))
    bar = html.wrapped(html.types_bar(outline.types))
    return _section(
        "Sizes", f'<div class="map wide">{wide}</div><div class="narrow">{narrow}</div>{bar}'
    )


def _types(outline: Outline) -> str:
    titles, rows = totals(outline)
    return _section("Types", _table(("type", *titles), rows))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escaped(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escaped(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _histograms(placed: dict[str, Placed], is_quick: bool, out: Output) -> str:
    largest = sorted(
        (name for name, each in placed.items() if element_count(each.tensor.shape) > 1),
        key=lambda name: (-placed[name].tensor.nbytes, text.natural_key(name)),
    )[:_MAX_HISTOGRAMS]
    if not largest:
        return ""
    total = sum(2 * placed[name].tensor.nbytes for name in largest)
    with out.progress("reading", total) as advance:
        cells = [_histogram(*placed[name], advance) for name in largest]
    title = f"Values of the {text.count(len(cells), 'largest tensor')}"
    if is_quick:
        title += ", up to 1,048,576 of each"
    return _section(title, f'<div class="grid">{"".join(cells)}</div>')


def _histogram(file: File, tensor: Tensor, advance: Advance) -> str:
    head = f"<b>{html.escaped(tensor.name)}</b><br>{html.escaped(tensor.dtype)}"
    head += f" {html.escaped(text.shape(tensor.shape))}"
    if why := file.why_no_values(tensor):
        return f"<div>{head}<br>no values: {html.escaped(why)}</div>"
    known = statistics(file, tensor, advance)
    if not known.finite:
        return f"<div>{head}<br>no finite values</div>"
    bins = histogram(file, tensor, known, _BINS, advance)
    said = [
        f"max |x| {max(abs(known.least), abs(known.most)):.4g}",
        f"zeros {known.zero / known.elements:.1%}",
    ]
    for label, number in (("mean", known.mean), ("std", known.deviation)):
        said += [] if number is None else [f"{label} {number:.3g}"]
    if known.finite < known.elements:
        said.append(f"not finite {known.elements - known.finite:,}")
    low, high = float(known.least), float(known.most)
    picture = html.histogram(bins.counts, low, high, 60)
    return f"<div>{head}{picture}{html.escaped(' · '.join(said))}</div>"


def _differences(
    one: dict[str, Placed], other: dict[str, Placed], arguments: argparse.Namespace, out: Output
) -> str:
    rows = diff_stats.compared(one, other, out)
    shown = [row for row in rows if not row.is_same()]
    said = f"{text.count(len(rows) - len(shown), 'tensor')} equal, {len(shown):,} differ"
    if arguments.quick:
        said += ", of up to 1,048,576 values of each"
    body = html.wrapped(html.paragraph(said))
    if shown:
        listed = shown[:_MAX_DIFFERENCES]
        body += _table(("tensor", "here", "there", *diff_stats.HEADS), map(_difference, listed))
    if len(shown) > _MAX_DIFFERENCES:
        body += html.wrapped(html.paragraph(f"… {len(shown) - _MAX_DIFFERENCES:,} more"))
    return _section(f"Against {base_name(arguments.against)}", body)


def _difference(row: diff_stats.Row) -> list[str]:
    head = [row.name, row.first or "missing", row.second or "missing"]
    if row.difference is not None:
        return [*head, *diff_stats.cells(row.difference)]
    why = row.why if row.first and row.second else ""
    return [*head, why, *[""] * (len(diff_stats.HEADS) - 1)]
