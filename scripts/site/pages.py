"""Writes the Markdown of the site into build/docs, from which a site builder makes the pages.

The documents of docs/ and the like of CONTRIBUTING.md are taken with their links translated
(links.py). The reference is made: of Python for mkdocstrings, of C++ and C from the headers
(headers.py), of commands from their parser (commands.py). mkdocs.yml lists all pages. Any builder
that reads mkdocs.yml can build them: nothing of the site is in hooks.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import chart
import commands
import headers
import links
import notebook

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
CELL = "<!-- cell -->"
PLOT = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<path>images/[\w-]+\.svg)\)$", re.MULTILINE)
PANEL = re.compile(r'<svg class="panel".*?</svg>', re.DOTALL)
# Modules of the package with a page of the reference each, which is made without importing them.
MODULES = ["torch", "numpy", "flax", "jax", "mlx", "paddle", "tensorflow"]
MODULES += ["plan", "weights", "delta", "dcp", "sums", "signing"]

# The comments of headers, and pages for contributors, have the words of every guide: the search
# shows the guides first.
LESS_FOUND = "---\nsearch:\n  boost: 0.3\n---\n\n"

# Types that signatures name, and that no page of a module has.
TYPES = [f"_typing.{name}" for name in ("Source", "Sources", "Path", "Paths", "Progress")]
TYPES += ["_typing.SumsOption", "_typing.Verify", "plan.Keys", "_torch.AnyDevice"]

# The guides, and the modules that each is about. Names in a guide lead to the reference, and the
# reference of a module to its guides. All of cpp.md is about C++ and C, as its title says.
GUIDES = {
    "tutorial.md": [],
    "howto.md": [],
    "faq.md": [],
    "loading.md": ["torch", "plan"],
    "saving.md": ["torch"],
    "weights.md": ["weights"],
    "verify.md": ["sums", "signing"],
    "patches.md": ["delta"],
    "groups.md": ["torch"],
    "checkpoints.md": ["dcp"],
    "jax.md": ["jax"],
    "engines.md": [],
    "cpp.md": [],
}


def site() -> dict[str, str]:
    """Returns the Markdown of each page, by its name."""
    sources = {f"docs/{path.name}": path.name for path in sorted(DOCS.glob("*.md"))} | PAGES
    translator = links.Translator(ROOT, sources, mentions())
    pages = {
        name: translator.translated(source, (ROOT / source).read_text(encoding="utf-8"))
        for source, name in sources.items()
    }
    for name in PAGES.values():
        pages[name] = LESS_FOUND + pages[name]
    table = (DOCS / "performance.md").read_text(encoding="utf-8")
    pages["index.md"] = pages["index.md"].replace(CHART, chart.chart(table))
    pages["notebooks.md"] = pages["notebooks.md"].replace(CELL, notebook.cell())
    pages["performance.md"] = PLOT.sub(plot, pages["performance.md"])
    guide = (DOCS / "cli.md").read_text(encoding="utf-8")
    pages["cli.md"] = commands.with_links(pages["cli.md"])
    return pages | reference() | commands.pages(guide)


def mentions() -> dict[str, dict[str, str]]:
    """Returns what names in the guides lead to. A page's own modules count before the others.

    Of the others, short names such as `load` or `read` may mean anything, and lead to nothing,
    unless the text says whose they are.
    """
    everywhere = {
        name: f"[{module}.{name}]"
        for module in ("safetensors.torch", "safetensors")
        for name in public_names(module)
        if is_telling(name)
    }
    everywhere |= {f"safetensors {name}": f"(commands/{name}.md)" for name in commands.names()}
    everywhere |= {
        full: f"[{full}]"
        for module in MODULES
        for full in (f"safetensors.{module}.{name}" for name in own_names(module))
    }
    for page, text in header_pages().items():
        for name in re.findall(r"^### (\w+)$", text, re.MULTILINE):
            if is_telling(name):
                everywhere.setdefault(f"C++ {name}", f"({page}#{name.lower()})")
    return {
        page: everywhere
        | {
            name: f"[safetensors.{module}.{name}]"
            for module in modules
            for name in own_names(module)
        }
        for page, modules in GUIDES.items()
    }


def is_telling(name: str) -> bool:
    """Whether a name means the same in any text."""
    return "_" in name or not name.islower()


def plot(image: re.Match[str]) -> str:
    """Returns the panels of a plot, which stand in the page as the chart of the home page does."""
    panels = PANEL.findall((DOCS / image["path"]).read_text(encoding="utf-8"))
    return f'<div class="plot" role="img" aria-label="{image["alt"]}">{"".join(panels)}</div>'


def reference() -> dict[str, str]:
    """Returns the pages of the reference."""
    pages = {"api/safetensors.md": python_page("safetensors", public_names("safetensors"))}
    for module in MODULES:
        pages[f"api/{module}.md"] = python_page(f"safetensors.{module}", own_names(module))
    made = {page: LESS_FOUND + text for page, text in header_pages().items()}
    return pages | made | {"api/types.md": types_page()}


def header_pages() -> dict[str, str]:
    """Returns the reference of C++ and C."""
    cpp = [path for path in sorted(INCLUDE.glob("*.hpp")) if path.name != "export.hpp"]
    c = [INCLUDE / "safetensors.h", INCLUDE_WEIGHTS.with_name("weights.h")]
    weights = sorted(INCLUDE_WEIGHTS.glob("*.hpp"))
    return {
        "api/cpp.md": headers.page("C++ headers", cpp),
        "api/cpp-weights.md": headers.page("C++ headers of the weight layer", weights),
        "api/c.md": headers.page("C headers", c),
    }


def own_names(module: str) -> list[str]:
    """Returns the public names of a module of the package that are not the package's."""
    shared = {*public_names("safetensors"), *MODULES}
    return [name for name in public_names(f"safetensors.{module}") if name not in shared]


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
    last = module.rpartition(".")[2]
    titles = links.titles(ROOT)
    guides = [f"[{titles[page]}](../{page})" for page, own in GUIDES.items() if last in own]
    head = f"Guides: {', '.join(guides)}\n\n" if guides else ""
    return f"# {module}\n\n{head}::: {module}\n{options}"


def types_page() -> str:
    """Returns the page of the types that signatures name."""
    options = "{show_root_heading: true, show_root_full_path: false, show_root_toc_entry: true}"
    blocks = [f"::: safetensors.{name}\n    options: {options}\n" for name in TYPES]
    head = "# Types in signatures\n\nWhat the arguments of functions of several modules may be.\n"
    return "\n".join([head, *blocks])


def write(pages: dict[str, str], folder: Path) -> None:
    """Writes the pages and their files: only what changed, which `mkdocs serve` makes anew."""
    others = [path for path in DOCS.rglob("*") if path.suffix == ".css"]
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
