"""The programs of docs/tutorial.md and docs/howto.md, and the scripts that build the site."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support import console

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


@pytest.mark.parametrize(("page", "programs", "commands"), [("tutorial", 9, 5), ("howto", 6, 0)])
def test_the_page_runs(
    page: str, programs: int, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks run in their order, from an empty folder, and print what the page shows."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    kinds = [kind for kind, _, _ in blocks]
    assert (kinds.count("python"), kinds.count("console")) == (programs, commands)
    scope: dict[str, object] = {"__name__": "__main__"}
    for kind, block, shown in blocks:
        if kind == "console":
            console.check(block, tmp_path)
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page, "exec"), scope)
        assert out.getvalue() == shown


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs.yml, which only the step `site` of .ci/run reads, names each page of docs/."""
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [path.name for path in DOCS.glob("*.md") if f": {path.name}\n" not in text]
    assert not missing


def test_every_module_is_in_the_reference() -> None:
    """scripts/site/hooks.py lists each public module of the package, and mkdocs.yml its page."""
    package = DOCS.parent / "python" / "safetensors"
    names = {path.stem for path in package.glob("[a-z]*.py")} | {"weights"}
    hooks = (DOCS.parent / "scripts" / "site" / "hooks.py").read_text(encoding="utf-8")
    listed = "".join(re.findall(r"^MODULES \+?= (\[.*\])$", hooks, re.MULTILINE))
    assert sorted(re.findall(r'"(\w+)"', listed)) == sorted(names)
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f" safetensors.{name}: api/{name}.md\n" in text for name in names)


def script(name: str) -> ModuleType:
    """Returns a module of scripts/site."""
    path = DOCS.parent / "scripts" / "site" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"site_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_class() -> None:
    """Each class of a public header has a heading, and its code ends where the class ends."""
    headers = script("headers")
    folder = DOCS.parent / "include" / "safetensors"
    weights = DOCS.parent / "weights" / "include" / "safetensors" / "weights"
    paths = sorted([*folder.glob("*.hpp"), *weights.glob("*.hpp")])
    assert {path.parent.name for path in paths} == {"safetensors", "weights"}
    found = 0
    for path in paths:
        page = headers.page("C++", [path])
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^namespace detail .*?^}", "", text, flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(r"^(?:class|struct|enum class) .*?(\w+)(?: :.*)? \{$", text, re.M):
            assert f"\n### {name}\n" in page or f" {name} " in page, (path.name, name)
            found += 1
        assert page.count("```") % 2 == 0
        assert all(
            code.count("{") == code.count("}")
            for code in re.findall(r"```cpp\n(.*?)```", page, re.S)
        ), path.name
        assert "private:" not in page
    assert found > 60


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Of five links, those to a missing file and a missing anchor, and a foreign script, fail."""
    links = ["b.html", "b.html#here", "b.html#gone", "c.html", "#top"]
    text = "".join(f'<a href="{link}">x</a>' for link in links)
    script_tag = '<script src="https://host.example/x.js"></script>'
    (tmp_path / "a.html").write_text(f'<p id="top">{text}{script_tag}')
    (tmp_path / "b.html").write_text('<p id="here">')
    assert script("check_links").faults(tmp_path) == [
        "a.html: b.html#gone: no such anchor",
        "a.html: c.html: no such file",
        "a.html: loads https://host.example/x.js from another server",
    ]


def test_the_link_checker_explains_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_links.py"])
    assert script("check_links").main() == 2
    assert capsys.readouterr().err == "usage: python check_links.py FOLDER\n"
