"""The report: a Markdown table and plots, from what results.json holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Answer = dict[str, Any]
FACTORS = {"ms": 1e3, "us": 1e6, "B/tensor": 1}


def in_unit(value: float, unit: str) -> str:
    """A figure with three digits that count."""
    value *= FACTORS[unit]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_of(answer: Answer, label: str) -> float:
    """The figure of an implementation that is compared, in seconds."""
    return float(answer["figures"][label]["median" if answer.get("fresh") else "min"])


def floor_of(answer: Answer) -> float | None:
    """What the machine itself takes for a row, in seconds."""
    found = [
        time_of(answer, label) for label in answer.get("limits", ()) if label in answer["figures"]
    ]
    floor = min(found) if found else 0.0
    floor += answer.get("parse", 0.0)
    return floor or None


def our_label(answer: Answer) -> str:
    """Which of our figures a row is about; the best there is where a build lacks that way."""
    figures = answer["figures"]
    if answer["ours"] in figures:
        return str(answer["ours"])
    mine = [label for label in figures if label.startswith("ours") and label != "ours C++"]
    return str(min(mine, key=lambda label: time_of(answer, label), default=answer["ours"]))


def verdict(answer: Answer) -> str:
    """What is wanted of a row, and whether it was missed."""
    wanted, got = answer.get("wanted"), ratio(answer)
    if wanted is None or got is None:
        return ""
    if wanted == "fastest":
        ours = time_of(answer, our_label(answer))
        others = [
            time_of(answer, label)
            for label in answer["figures"]
            if not label.startswith("ours") and label not in answer["limits"]
        ]
        return "fastest" + (" **missed**" if ours > min(others, default=ours) else "")
    return f">= {wanted:g}" + (" **missed**" if got < wanted else "")


def ratio(answer: Answer) -> float | None:
    """How much faster than upstream this package is."""
    figures = answer["figures"]
    mine = our_label(answer)
    if mine not in figures or answer["upstream"] not in figures or not time_of(answer, mine):
        return None
    return time_of(answer, answer["upstream"]) / time_of(answer, mine)


def cell(answer: Answer, label: str) -> str:
    """The time of one implementation: minimum (median), or of fresh processes median (maximum)."""
    figure = answer["figures"].get(label)
    if figure is None:
        return ""
    unit = answer.get("unit", "ms")
    shown = ("median", "max") if answer.get("fresh") else ("min", "median")
    return "{} ({})".format(*(in_unit(figure[key], unit) for key in shown))


def number(value: float | None) -> str:
    """A ratio."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def row_line(name: str, answer: Answer) -> str:
    """A row against upstream and the machine."""
    floor = floor_of(answer)
    mine = our_label(answer)
    to_floor = time_of(answer, mine) / floor if floor and mine in answer["figures"] else None
    parts = (
        name,
        answer["unit"],
        cell(answer, answer["upstream"]),
        cell(answer, mine),
        number(ratio(answer)),
        verdict(answer),
        in_unit(floor, answer["unit"]) if floor else "",
        number(to_floor),
    )
    return f"| {' | '.join(parts)} |"


def cost_line(name: str, label: str, figure: Answer) -> str:
    """What one implementation cost besides time."""
    parts = (
        name,
        label,
        in_unit(figure["cpu"], "ms"),
        f"{figure['peak'] / 1e6:,.1f}",
        f"{figure['minor_faults']:,}",
        f"{figure['major_faults']:,}",
    )
    return f"| {' | '.join(parts)} |"


def peer_line(name: str, answer: Answer) -> str:
    """All implementations of a row, quickest first."""
    labels = sorted(
        (label for label in answer["figures"] if label not in answer.get("limits", ())),
        key=lambda label: time_of(answer, label),
    )
    unit = answer["unit"]
    figures = [f"{label} {in_unit(time_of(answer, label), unit)}" for label in labels]
    skipped = [f"{label}: {reason}" for label, reason in answer["skipped"].items()]
    return f"| {name} | {unit} | {', '.join(figures)} | {'; '.join(skipped)[:200]} |"


def table(about: str, rows: Answer, names: list[str]) -> list[str]:
    """Rows against upstream and the machine, below what they are about; nothing without rows."""
    if not names:
        return []
    return [
        about,
        "",
        "| row | unit | upstream | this package | ratio | wanted | limit | ours / limit |",
        "|---|---|---|---|---|---|---|---|",
        *(row_line(name, rows[name]) for name in names),
        "",
    ]


def markdown(results: Answer, names: list[str]) -> str:
    """The tables."""
    machine, rows = results["machine"], results["rows"]
    names = [name for name in names if name in rows]
    first = [name for name in names if rows[name].get("fresh")]
    processes = max(
        (each["repeats"] for name in first for each in rows[name]["figures"].values()), default=0
    )
    sized = "" if results["scale"] == 1 else f" Files scaled by {results['scale']:g}."
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
        f"{machine['system']}; Python {machine['python']}, torch {machine['torch']}, "
        f"NumPy {machine['numpy']}; {machine['date']}; load average "
        f"at the start {machine.get('load', 'unknown')}.{sized}",
        "",
        *table(
            f"The first call of a process. Times: median (maximum) of {processes} processes; "
            "ratios of medians.",
            rows,
            first,
        ),
        *table(
            "Calls that are repeated in one process. Times: minimum (median); ratios of minima.",
            rows,
            [name for name in names if name not in first],
        ),
        "| header | bytes | RapidJSON | RapidJSON, validating UTF-8 | `Header::parse` | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name, times in results["headers"].items():
        if "parse" in times:
            columns = (times[key] * 1e3 for key in ("rapidjson", "rapidjson_validating", "parse"))
            shown = " | ".join(f"{value:.3g} ms" for value in columns)
            lines.append(
                f"| {name} | {times['header_nbytes']:,} | {shown} | {times['ratio']:.2f} |"
            )
    with_peers = [
        name
        for name in names
        if len(rows[name]["figures"])
        + len(rows[name]["skipped"])
        - len(rows[name].get("limits", ()))
        > 2
    ]
    lines += ["", "| row | unit | all, quickest first | skipped |", "|---|---|---|---|"]
    lines += [peer_line(name, rows[name]) for name in with_peers]
    return "\n".join(lines) + "\n"


def costs(results: Answer, names: list[str]) -> str:
    """What each implementation cost besides time."""
    lines = [
        "| row | who | CPU ms | peak MB | minor faults | major faults |",
        "|---|---|---|---|---|---|",
    ]
    rows = results["rows"]
    for name in filter(rows.get, names):
        for label, figure in rows[name]["figures"].items():
            if "cpu" in figure and label not in rows[name].get("limits", ()):
                lines.append(cost_line(name, label, figure))
    return "\n".join(lines) + "\n"


def publish(text: str, page: Path) -> None:
    """Put the tables into a page, between its two marks."""
    begin, end = "<!-- results: begin -->\n", "<!-- results: end -->\n"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} lacks the marks that the tables go between")
    page.write_text(f"{before}{begin}{text}{end}{after}")


def write(results: Answer, names: list[str], folder: Path) -> str:
    """The report into a folder; the tables of times."""
    import plots

    text = markdown(results, names)
    (folder / "results.md").write_text(f"{text}\n{costs(results, names)}")
    plots.draw(results, names, folder)
    print(text)
    return text
