"""Writes the Markdown of the site into build/docs, from which a site builder makes the pages.

The documents of docs/ and the like of CONTRIBUTING.md are taken with their links translated
(links.py). The reference is made: of Python for mkdocstrings, of C++ and C from the headers
(headers.py). mkdocs.yml lists all pages. Any builder that reads mkdocs.yml can build them: nothing
of the site is in hooks.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import chart
import headers
import links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TARGET = ROOT / "build" / "docs"
INCLUDE = ROOT / "include" / "safetensors"
INCLUDE_WEIGHTS = ROOT / "weights" / "include" / "safetensors" / "weights"

# Files outside docs/, and the pages of the site that show them.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "weights/CONTRIBUTING.md": "contributing-weights.md",
    "weights/docs/design.md": "design-weights.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "conformance/README.md": "conformance-kit.md",
}
CHART = "<!-- chart -->"
# Modules of the package with a page of the reference each, which is made without importing them.
MODULES = ["torch", "numpy", "flax", "jax", "mlx", "paddle", "tensorflow"]
MODULES += ["plan", "weights", "delta", "dcp", "sums", "signing"]


def site() -> dict[str, str]:
    """Returns the Markdown of each page, by its name."""
    sources = {f"docs/{path.name}": path.name for path in sorted(DOCS.glob("*.md"))} | PAGES
    translator = links.Translator(ROOT, sources)
    pages = {
        name: translator.translated(source, (ROOT / source).read_text(encoding="utf-8"))
        for source, name in sources.items()
    }
    pages["index.md"] = pages["index.md"].replace(CHART, chart.chart(chart.tables(DOCS)))
    return pages | reference()


def reference() -> dict[str, str]:
    """Returns the pages of the reference."""
    pages = {"api/safetensors.md": python_page("safetensors", public_names("safetensors"))}
    shared = {*public_names("safetensors"), *MODULES}
    for module in MODULES:
        names = [name for name in public_names(f"safetensors.{module}") if name not in shared]
        pages[f"api/{module}.md"] = python_page(f"safetensors.{module}", names)
    cpp = [path for path in sorted(INCLUDE.glob("*.hpp")) if path.name != "export.hpp"]
    weights = sorted(INCLUDE_WEIGHTS.glob("*.hpp"))
    return pages | {
        "api/cpp.md": headers.page("C++ headers", cpp),
        "api/cpp-weights.md": headers.page("C++ headers of the weight layer", weights),
        "api/c.md": headers.page("C header", [INCLUDE / "safetensors.h"]),
    }


def public_names(module: str) -> list[str]:
    """Returns __all__ of a module without importing it: functions, then classes."""
    path = ROOT / "python" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
            return sorted(names, key=lambda name: (name[0].isupper(), name))
    raise ValueError(f"{path} has no __all__")


def python_page(module: str, names: list[str]) -> str:
    options = f"    options:\n      members: [{', '.join(names)}]\n"
    return f"# {module}\n\n::: {module}\n{options}"


def write(pages: dict[str, str], folder: Path) -> None:
    """Writes the pages and their files: only what changed, which `mkdocs serve` makes anew."""
    others = [path for path in DOCS.rglob("*") if path.suffix in (".css", ".png", ".svg")]
    files = {path.relative_to(DOCS).as_posix(): path.read_bytes() for path in others}
    files |= {name: text.encode() for name, text in pages.items()}
    for old in [path for path in folder.rglob("*") if path.is_file()]:
        if old.relative_to(folder).as_posix() not in files:
            old.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def main() -> int:
    if not (
        importlib.util.find_spec("safetensors") and importlib.util.find_spec("safetensors._core")
    ):
        print(
            "install this project first: the reference shows its compiled docstrings",
            file=sys.stderr,
        )
        return 1
    try:
        write(site(), TARGET)
    except links.BrokenLink as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
