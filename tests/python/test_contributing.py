"""The files that CONTRIBUTING.md names exist."""

import itertools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TREE = TEXT[TEXT.index("## The tree") : TEXT.index("## Style")]
RECIPES = TEXT[TEXT.index("## Recipes") :]
TOPS = [
    "benchmarks",
    "cmake",
    "conformance",
    "docs",
    "include",
    "python",
    "scripts",
    "src",
    "tests",
]
ENDINGS = "cpp|hpp|h|py|inc|json|md|sh|toml|txt"


def files():
    """The names of all files of the sources, and their paths."""
    for top in (
        "benchmarks",
        "conformance",
        "cmake",
        "docs",
        "include",
        "python",
        "scripts",
        "src",
        "tests",
    ):
        yield from (path for path in (ROOT / top).rglob("*") if path.is_file())
    yield from (path for path in ROOT.iterdir() if path.is_file())


def test_the_tree():
    rows = re.findall(r"^\| (`.*?) \|", TREE, re.MULTILINE)
    named = set(itertools.chain(*(re.findall(r"`([^`]+)`", row) for row in rows)))
    assert len(named) > 25
    assert not [path for path in named if not (ROOT / path).exists()]
    for top in ("src", "tests"):
        rooms = {f"{top}/{each.name}" for each in (ROOT / top).iterdir() if each.is_dir()}
        assert rooms - named <= {"tests/data", "tests/typing"}, rooms - named


def test_the_recipes():
    """A recipe may name a file without its folder. NAME is what a change names."""
    known = [path.relative_to(ROOT).as_posix() for path in files()]
    pattern = rf"(?:`|\]\()?((?:[\w.-]+/)*[\w-]*[\w.-]+\.(?:{ENDINGS}))\b"
    named = {name for name in re.findall(pattern, RECIPES) if "NAME" not in name} - {"llama.cpp"}
    assert len(named) > 40
    missing = [
        name
        for name in named
        if not any(path == name or path.endswith("/" + name) for path in known)
    ]
    assert not missing
