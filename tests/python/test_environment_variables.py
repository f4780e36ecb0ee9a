"""docs/loading.md lists all environment variables of the package, and one place reads each."""

import re
from collections import Counter
from pathlib import Path

from support.pages import Page

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("src", "weights/src", "python")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".cpp", ".hpp", ".py")
]


def test_the_table():
    read = Counter(
        name
        for path in SOURCES
        for name in re.findall(r'"(SAFETENSORS_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    )
    shown = re.findall(r"^\| `(\w+)` \| ", Page("docs/loading.md").text, re.MULTILINE)
    assert read == Counter(name for name in shown if name.startswith("SAFETENSORS_"))
