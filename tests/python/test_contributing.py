"""The files that the pages for contributors name exist."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TREE = TEXT[TEXT.index("## The tree") : TEXT.index("## Style")]
TOPS = [
    "benchmarks",
    "conformance",
    "cmake",
    "docs",
    "include",
    "python",
    "scripts",
    "src",
    "tests",
    "weights",
]
ENDINGS = "cpp|hpp|h|py|inc|json|md|sh|toml|txt"


def files():
    """The names of all files of the sources, and their paths."""
    for top in TOPS:
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


@pytest.mark.parametrize(
    ("page", "least"), [("CONTRIBUTING.md", 30), ("weights/CONTRIBUTING.md", 20)]
)
def test_the_recipes(page, least):
    """A recipe may name a file without its folder. NAME is what a change names."""
    text = (ROOT / page).read_text(encoding="utf-8")
    recipes = text[text.index("## Recipes") :]
    known = [path.relative_to(ROOT).as_posix() for path in files()]
    pattern = rf"(?:`|\]\()?((?:[\w.-]+/)*[\w-]*[\w.-]+\.(?:{ENDINGS}))\b"
    named = {name for name in re.findall(pattern, recipes) if "NAME" not in name} - {"llama.cpp"}
    assert len(named) > least
    missing = [
        name
        for name in named
        if not any(path == name or path.endswith("/" + name) for path in known)
    ]
    assert not missing


def parts_of(title):
    """Returns the first column of a table of docs/design.md."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    table = text.split(f"### The parts of {title}\n")[1].split("\n#")[0]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert len(cells) > 5
    return cells[1:]  # without the title


def stems_in(folder):
    return {path.stem for path in (ROOT / folder).iterdir()} - {"__init__", "__pycache__"}


@pytest.mark.parametrize(
    ("title", "folder"),
    [
        ("src/device", "src/device"),
        ("_remote", "python/safetensors/_remote"),
        ("_group", "python/safetensors/_group"),
    ],
)
def test_the_tables_of_rooms(title, folder):
    """Each has all files of its folder, and no others."""
    assert set(re.findall(r"`(\w+)`", " ".join(parts_of(title)))) == stems_in(folder)


def test_the_tables_of_reading_and_writing():
    """They name files of several folders: "FOLDER and FOLDER: FILE", or each with its path."""
    named, folders = set(), []
    for cell in [*parts_of("reading"), *parts_of("the writer")]:
        before, colon, after = cell.rpartition(": ")
        if colon and before != "the same":
            folders = before.split(" and ")
        for name in after.split(", "):
            named |= {f"{folder}/{name}" for folder in folders} if colon else {name}
    assert len(named) > 40
    absent = [
        name for name in named if not (ROOT / name).exists() and not any(ROOT.glob(f"{name}.*"))
    ]
    assert not absent
    assert {f"src/write/{stem}" for stem in stems_in("src/write")} <= named


def test_the_rooms_of_the_weight_layer():
    text = (ROOT / "weights/docs/design.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "weights/src").iterdir() if path.is_dir()}
    assert set(re.findall(r"^src/(\w+)/ ", text, re.MULTILINE)) == rooms
