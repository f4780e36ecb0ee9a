"""The plots of docs/performance.md: what benchmarks/python draws of docs/images/growth.json."""

from __future__ import annotations

import json
import re
from types import ModuleType
from xml.etree import ElementTree

import pytest

from support.pages import ROOT, site_script

IMAGES = ROOT / "docs" / "images"
POINTS = json.loads((IMAGES / "growth.json").read_text())
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "python")
    import growth

    return growth


def test_the_plots_are_those_of_the_points(growth: ModuleType, tmp_path) -> None:
    growth.draw_all(growth.read(IMAGES / "growth.json"), tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in IMAGES.glob("*.svg")}
    panels = [ElementTree.fromstring(text).findall(f"{SVG}svg") for text in drawn.values()]
    assert sum(len(found) - 1 for found in panels) == 2 * len(growth.OPERATIONS), "and legends"


def test_the_points_are_those_of_the_table() -> None:
    """To within 3 %, and half a digit of the table."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (upstream, )?([\d,]+) (\|.*(?: us| ms| s) \|.*)$", page, re.MULTILINE)
    assert len(rows) == 4
    for upstream, count, cells in rows:
        label = "upstream" if upstream else "ours"
        shown = re.findall(r"([\d.]+) (us|ms|s) ", cells)
        assert len(shown) == len(POINTS["number of tensors"])
        for (value, unit), lines in zip(shown, POINTS["number of tensors"].values(), strict=True):
            digit = 10.0 ** -len(value.partition(".")[2])
            found = lines[label][count.replace(",", "")] / UNITS[unit]
            assert abs(found - float(value)) <= 0.03 * float(value) + digit / 2


def test_a_slope_of_one_is_linear(growth: ModuleType) -> None:
    plot = growth.plot
    steepest = plot.__globals__["steepest"]
    assert steepest({10: 0.01, 100: 0.1, 1000: 1.0}) == pytest.approx(1)
    assert steepest({10: 1e-5, 100: 5e-4}) == 0, "below a millisecond"
    lines = {"ours": {10: 0.01, 100: 0.1}, "upstream": {10: 0.01, 100: 1.0}}
    drawing = plot({"a <b>": lines}, "number of tensors")
    assert "steepest slope: 1.00 this, 2.00 upstream; 1 is linear" in drawing
    assert "a &lt;b&gt;" in drawing
    lines["ours"] = {10: 1e-4, 100: 0.1}
    assert "steepest slope: 2.00 upstream; 1 is linear" in plot({"a": lines}, "number of tensors")
    assert [text for text in (">1 s<", ">100 ms<", ">10 ms<", ">1 ms<") if text in drawing] == [
        ">1 s<",
        ">100 ms<",
        ">10 ms<",
    ]


def test_plots_stand_in_the_page() -> None:
    """As SVG in the page itself: its text has the colour of the page, light or dark."""
    page = site_script("pages").site()["performance.md"]
    assert page.count('<div class="plot"') == 4
    assert "](images/" not in page
    assert page.count('fill="currentColor"') == 2 * 7 + 4
    assert "<style" not in page
