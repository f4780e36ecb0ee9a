"""The home page of the site: its programs, its chart, and what README.md has of it."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from support import console
from support.pages import ROOT, site_script

torch = pytest.importorskip("torch")

HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
MODEL = ROOT / "weights" / "tests" / "data" / "gguf" / "llama_q4_k_m.gguf"
BLOCK = re.compile(
    r"^    ```(python|console)\n(.*?)^    ```\n(?:\n    ```text\n(.*?)^    ```\n)?", re.M | re.S
)


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, they print what the page shows. A folder stands for the bucket."""
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    shutil.copyfile(MODEL, "llama.gguf")
    Path("model").mkdir()
    qkv = torch.arange(768 * 64, dtype=torch.float32).reshape(768, 64)
    save_file(
        {"layers.0.attn.qkv_proj.weight": qkv, "norm": torch.ones(64)}, "model/model.safetensors"
    )
    blocks = [(kind, *map(textwrap.dedent, text)) for kind, *text in BLOCK.findall(HOME)]
    assert [kind for kind, *_ in blocks] == ["python", "console", "python", "console", "python"]
    for kind, block, shown in blocks:
        if kind == "console":
            console.check(block, tmp_path)
            continue
        out = io.StringIO()
        scope: dict[str, object] = {}
        with contextlib.redirect_stdout(out):
            exec(compile(block.replace("s3://bucket/model/", "model"), "index.md", "exec"), scope)
        assert out.getvalue() == shown
    share = scope["share"]
    assert isinstance(share, dict)
    rows = [*range(192, 256), *range(560, 576), *range(688, 704)]  # rank 3 of q, of k and of v
    assert torch.equal(share["layers.0.attn.qkv_proj.weight"], qkv[rows])
    assert share["norm"].shape == (64,)


def test_readme_begins_like_the_home_page() -> None:
    """The paragraph that says what this is."""
    (home,) = re.findall(r"\n(A drop-in .*?)\n\{ \.home-lead \}", HOME, re.S)
    assert f"\n\n{home}\n\n" in README


def test_the_chart_has_the_figures_of_the_page() -> None:
    """Each row is found, the best first, also those that lose; README has the same table."""
    chart = site_script("chart")
    known = chart.figures(TABLES)
    drawing = chart.chart(TABLES)
    table = README[README.index("## Speed") :]
    for row, label in chart.ROWS.items():
        figures = known[row]
        assert f"{figures.upstream} → {figures.ours}<" in drawing
        assert drawing.count(f">{label}<") == 2, "for wide and for narrow screens"
        assert f"| {label} | {figures.upstream} | {figures.ours} | {figures.shown}x |\n" in table
    ratios = [known[row].ratio for row in chart.ROWS]
    assert ratios == sorted(ratios, reverse=True)
    assert table[: table.index("Each row")].count("\n| ") == len(chart.ROWS) + 1
    assert min(known[row].ratio for row in chart.ROWS) < 0.95
    assert known["import `safetensors`"] == ("1.30 ms", "1.98 ms", "0.65")


def test_the_lead_has_the_figures_of_the_page() -> None:
    """And the note says what a lazy load takes, which the chart leaves out."""
    known = site_script("chart").figures(TABLES)
    lead = " ".join(HOME[: HOME.index("{ .home-lead }")].split())
    assert "loading to torch takes about as long" in lead
    for row in ("load gpt2, all pages touched", "load gpt2, each tensor cloned"):
        assert 0.9 <= known[row].ratio <= 1.1
    for row, text in {
        "load gpt2 into NumPy, all pages touched": "loading to NumPy is {} times as fast",
        "load moe, all pages touched": "loading 100,000 tensors {} times",
        "save gpt2 over a file": "saving over a file {} times",
        'load gpt2, all bytes copied (`"pread"`)': "loading by copying {} times",
    }.items():
        assert text.format(known[row].shown) in lead
    assert "Imports are slower." in lead
    assert max(figures.ratio for row, figures in known.items() if "import" in row) < 0.95
    lazy = known["load gpt2, lazy"]
    for page in (HOME, README):
        assert f"it takes {lazy.ours}, and upstream's {lazy.upstream}." in " ".join(page.split())


def test_a_bar_goes_from_one_to_the_ratio() -> None:
    """To the right and green if this package is faster, to the left and orange if it is slower."""
    chart = site_script("chart")
    drawing = chart.chart(TABLES).partition("chart-narrow")[0]
    (axis,) = re.findall(r'<path d="M(\d+) \S+ stroke="currentColor" opacity="0.7"', drawing)
    bars = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)" .*? fill="(.*?)"', drawing)
    assert len(bars) == len(chart.ROWS)
    for (x, width, color), row in zip(bars, chart.ROWS, strict=True):
        ratio = chart.figures(TABLES)[row].ratio
        begin, end = float(x), float(x) + float(width)
        assert abs((end if ratio < 1 else begin) - float(axis)) <= 3
        assert color == (
            chart.FASTER if ratio >= 1.05 else chart.SLOWER if ratio < 0.95 else chart.ALIKE
        )


@pytest.mark.parametrize("wrong", ["| a | 1 | 2 | fast |", "| a | 1 | 2 |", "a"])
def test_a_row_without_a_ratio_is_no_figure(wrong: str) -> None:
    assert site_script("chart").figures(wrong) == {}
