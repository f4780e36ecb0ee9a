"""Adds to the site the pages that lie outside docs/, and those of the reference.

Links between files of the repository become links between pages. A link to a file that is no page,
such as a source, becomes its text.
"""

from __future__ import annotations

import ast
import importlib.util
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import headers
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INCLUDE = ROOT / "include" / "safetensors"
INCLUDE_WEIGHTS = ROOT / "weights" / "include" / "safetensors" / "weights"

# Files of the repository, and the pages of the site that show them.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "weights/CONTRIBUTING.md": "contributing-weights.md",
    "weights/docs/design.md": "design-weights.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "conformance/README.md": "conformance-kit.md",
}
# Modules of the package with a page of the reference each, which is made without importing them.
MODULES = ["torch", "numpy", "flax", "jax", "mlx", "paddle", "tensorflow"]
MODULES += ["plan", "weights", "delta", "dcp", "sums", "signing"]

LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)")
INLINE_CODE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")
OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Checks for the package; docstrings.py could only fail at each of its names."""
    if importlib.util.find_spec("safetensors") and importlib.util.find_spec("safetensors._core"):
        return config
    raise PluginError("install this project first: the reference shows its compiled docstrings")


def on_files(files: Files, config: Any) -> Files:
    for source, name in PAGES.items():
        add(files, config, name, (ROOT / source).read_text(encoding="utf-8"))
    add(
        files, config, "api/safetensors.md", python_page("safetensors", public_names("safetensors"))
    )
    shared = {*public_names("safetensors"), *MODULES}
    for module in MODULES:
        names = [name for name in public_names(f"safetensors.{module}") if name not in shared]
        add(files, config, f"api/{module}.md", python_page(f"safetensors.{module}", names))
    cpp = [path for path in sorted(INCLUDE.glob("*.hpp")) if path.name != "export.hpp"]
    add(files, config, "api/cpp.md", headers.page("C++ headers", cpp))
    weights = sorted(INCLUDE_WEIGHTS.glob("*.hpp"))
    add(
        files,
        config,
        "api/cpp-weights.md",
        headers.page("C++ headers of the weight layer", weights),
    )
    c = [INCLUDE / "safetensors.h", INCLUDE_WEIGHTS.with_name("weights.h")]
    add(files, config, "api/c.md", headers.page("C headers", c))
    return files


def add(files: Files, config: Any, name: str, content: str) -> None:
    files.append(File.generated(config, name, content=content))


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


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Translates links; code blocks stay as they are."""
    name = page.file.src_uri
    sources = {page: source for source, page in PAGES.items()}
    folder = posixpath.dirname(sources.get(name, f"docs/{name}"))

    def translated(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if target.startswith(("#", "http:", "https:", "mailto:")):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / path).exists():
            raise PluginError(f"{name}: {target} does not exist")
        if path in PAGES:
            path = PAGES[path]
        elif path.startswith("docs/") and not path.endswith(".py"):
            path = path.removeprefix("docs/")
        else:
            return str(text)
        return f"{picture}[{text}]({path}{'#' if anchor else ''}{anchor})"

    if name.startswith("api/"):
        return markdown
    if name == "index.md":
        page.meta["hide"] = ["navigation"]
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(translated, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Marks the options in inline code, which a line could otherwise break after their hyphens."""
    marked = r'<span class="option">\g<0></span>'
    return INLINE_CODE.sub(lambda code: f"<code>{OPTION.sub(marked, code[1])}</code>", html)
