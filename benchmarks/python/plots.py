"""The plots of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from report import ratio

Answer = dict[str, Any]
OURS, THEIRS, MACHINE = "#2a6f97", "#c8553d", "#8d99ae"


def draw_ratios(rows: Answer, names: list[str], path: Path) -> None:
    """How much faster than upstream, row by row."""
    pairs = [(name, ratio(rows[name])) for name in names]
    shown = [(name, value) for name, value in reversed(pairs) if value is not None]
    if not shown:
        return
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.26 * len(shown)), layout="constrained")
    positions = range(len(shown))
    values = [value for _, value in shown]
    colors = [OURS if value >= 1 else THEIRS for value in values]
    axes.barh(positions, [value - 1 for value in values], left=1, color=colors)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(positions, [name for name, _ in shown], fontsize=8)
    for position, value in zip(positions, values, strict=True):
        axes.annotate(f" {value:.3g}", (max(value, 1), position), va="center", fontsize=7)
    for position, (name, _) in zip(positions, shown, strict=True):
        if isinstance(rows[name].get("wanted"), float | int):
            axes.plot(rows[name]["wanted"], position, "|", color="black", markersize=9)
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("upstream's time / ours (bars to the right: we are faster; |: what is wanted)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_peers(rows: Answer, names: list[str], path: Path) -> None:
    """Everyone's time in the rows where all files are loaded."""
    shown = [name for name in names if len(rows[name]["figures"]) > 4]
    if not shown:
        return
    height = 0.9 + sum(0.24 * len(rows[name]["figures"]) + 0.55 for name in shown)
    sizes = [len(rows[name]["figures"]) + 1.5 for name in shown]
    figure, all_axes = plt.subplots(
        len(shown),
        figsize=(9, height),
        height_ratios=sizes,
        squeeze=False,
        layout="constrained",
    )
    for axes, name in zip(all_axes[:, 0], shown, strict=True):
        figures = rows[name]["figures"]
        labels = sorted(figures, key=lambda label: -figures[label]["min"])
        values = [figures[label]["min"] * 1e3 for label in labels]
        limits = rows[name].get("limits", ())
        colors = [
            MACHINE if label in limits else OURS if label.startswith("ours") else THEIRS
            for label in labels
        ]
        axes.barh(range(len(labels)), values, color=colors)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        axes.set_xscale("log")
        axes.margins(x=0.1)
        axes.set_title(f"{name}: ms (grey: the machine itself)", fontsize=9, loc="left")
        axes.tick_params(axis="x", labelsize=7)
        for position, value in enumerate(values):
            axes.annotate(
                f" {value:,.0f}" if value >= 100 else f" {value:.3g}",
                (value, position),
                va="center",
                fontsize=7,
            )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw(results: Answer, names: list[str], folder: Path) -> None:
    """All plots of the rows."""
    rows = results["rows"]
    present = [name for name in names if name in rows]
    draw_ratios(rows, present, folder / "upstream.png")
    draw_peers(rows, present, folder / "peers.png")
