"""The programs of docs/tutorial.md and docs/howto.md, and the scripts that build the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from safetensors._cli.main import commands, parser
from support.pages import BLOCK, run_in_order
from support.pages import site_script as script

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "programs", "commands"), [("tutorial", 9, 5), ("howto", 7, 1)])
def test_the_page_runs(
    page: str, programs: int, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks run in their order, from an empty folder, and print what the page shows."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    kinds = [kind for kind, _, _ in BLOCK.findall(text)]
    assert (kinds.count("python"), kinds.count("console")) == (programs, commands)
    run_in_order(text, tmp_path)


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs.yml, which only the step `site` of .ci/run reads, names each page of docs/."""
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [path.name for path in DOCS.glob("*.md") if f": {path.name}\n" not in text]
    assert not missing


def test_a_page_has_the_title_of_the_navigation() -> None:
    """So links, tabs of the browser and the page itself have one name for it."""
    pages = script("pages").site()
    titles = script("links").titles(DOCS.parent)
    assert len(titles) > 60
    for page, title in titles.items():
        command = "safetensors " if page.startswith("commands/") else ""
        if page != "index.md":
            assert f"# {command}{title}\n" in pages[page][:80], page


def test_every_module_is_in_the_reference() -> None:
    """scripts/site/pages.py lists each public module of the package, and mkdocs.yml its page."""
    package = DOCS.parent / "python" / "safetensors"
    names = {path.stem for path in package.glob("[a-z]*.py")} | {"weights"}
    assert sorted(script("pages").MODULES) == sorted(names)
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f" safetensors.{name}: api/{name}.md\n" in text for name in names)


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


@pytest.mark.parametrize(
    ("source", "text", "page"),
    [
        ("docs/faq.md", "[how](howto.md#show-progress)", "[how](howto.md#show-progress)"),
        ("docs/faq.md", "[the program](../examples/rl_sync.py)", "the program"),
        ("docs/faq.md", "[this](../README.md)", "[this](index.md)"),
        ("docs/faq.md", "![a](images/growth.svg)", "![a](images/growth.svg)"),
        ("CHANGELOG.md", "[a](docs/faq.md), [b](SECURITY.md)", "[a](faq.md), [b](security.md)"),
        ("docs/faq.md", "```\n[a](nowhere.md)\n```", "```\n[a](nowhere.md)\n```"),
        ("docs/faq.md", "`ls --tree` and `-`", "`ls --tree`{ .option } and `-`"),
        ("docs/faq.md", "## The option `--tree`", "## The option `--tree`"),
    ],
)
def test_links_are_translated(source: str, text: str, page: str, tmp_path: Path) -> None:
    files = ["docs/faq.md", "docs/howto.md", "docs/format.md", "README.md", "SECURITY.md"]
    for name in [*files, "CHANGELOG.md", "examples/rl_sync.py", "docs/images/growth.svg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    pages = {name: name.removeprefix("docs/").lower() for name in files if name != "README.md"}
    assert script("links").Translator(tmp_path, pages).translated(source, text) == page


NAMES = {"load_files": "[t.load_files]", "safetensors check": "(commands/check.md)"}


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("`load_files`, `load_files`", "[`load_files`][t.load_files], `load_files`"),
        ("`load_files(path)`", "[`load_files(path)`][t.load_files]"),
        (
            "`load_files`\n## a\n`load_files`",
            "[`load_files`][t.load_files]\n## a\n[`load_files`][t.load_files]",
        ),
        ("`safetensors check FILE`", "[`safetensors check FILE`](commands/check.md)"),
        ("[by\n`load_files`](#a)", "[by\n`load_files`](#a)"),
        ("# `load_files`", "# `load_files`"),
        ("    `load_files`", "    `load_files`"),
        ("```\n`load_files`\n```", "```\n`load_files`\n```"),
        ("`load`", "`load`"),
    ],
)
def test_the_first_mention_leads_to_the_reference(text: str, page: str, tmp_path: Path) -> None:
    pages = {"docs/a.md": "a.md", "docs/b.md": "b.md"}
    translator = script("links").Translator(tmp_path, pages, {"a.md": NAMES})
    assert translator.translated("docs/a.md", text) == page
    assert translator.translated("docs/b.md", text) == text


OF_MODULES = {
    "load_file": "[t.load_file]",
    "safetensors.numpy.load_file": "[n.load_file]",
    "C++ Sums": "(cpp.md#sums)",
    "Sums": "[s.Sums]",
}


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (
            "NumPy arrays of\n`load_file` are views.",
            "NumPy arrays of\n[`load_file`][n.load_file] are views.",
        ),
        ("NumPy. `load_file`", "NumPy. [`load_file`][t.load_file]"),
        ("torch and NumPy: `load_file`", "torch and NumPy: [`load_file`][t.load_file]"),
        ("`load_file` of `safetensors.numpy`", "[`load_file`][n.load_file] of `safetensors.numpy`"),
        ("`load_file` of every framework", "`load_file` of every framework"),
        (
            "`load_file`, `safetensors.numpy.load_file`",
            "[`load_file`][t.load_file], [`safetensors.numpy.load_file`][n.load_file]",
        ),
        ("In C++, a. `Sums`", "In C++, a. [`Sums`](cpp.md#sums)"),
        ("In C++, a.\n\n`Sums`", "In C++, a.\n\n[`Sums`][s.Sums]"),
        ("In C++, a. In Python, `Sums`", "In C++, a. In Python, [`Sums`][s.Sums]"),
        ("## C++\n### a\n`Sums`, `load_file`", "## C++\n### a\n[`Sums`](cpp.md#sums), `load_file`"),
        ("## C++\n## a\n`Sums`", "## C++\n## a\n[`Sums`][s.Sums]"),
    ],
)
def test_a_mention_leads_to_what_the_text_is_about(text: str, page: str, tmp_path: Path) -> None:
    translator = script("links").Translator(tmp_path, {"docs/a.md": "a.md"}, {"a.md": OF_MODULES})
    assert translator.translated("docs/a.md", text) == page


def test_every_command_has_a_page() -> None:
    """Made of its parser; docs/cli.md leads to it, it leads back, and mkdocs.yml lists it."""
    pages = script("pages").site()
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    found = commands(parser())
    for name, command in found.items():
        page = pages[f"commands/{name}.md"]
        for action in command._actions:
            if action.option_strings and action.option_strings[0] not in ("-h", "--color", "-q"):
                assert f"| `{action.option_strings[0]}" in page
        assert f"safetensors {name} " in page[page.index("## Examples") :]
        assert f" [`{name}`](commands/{name}.md)" in pages["cli.md"]
        (anchor,) = re.findall(r"\[guide\]\(\.\./cli\.md#(.*?)\)", page)
        assert name in anchor.split("-")
        assert f"          - {name}: commands/{name}.md\n" in nav
    assert nav.count(": commands/") == len(found)
    assert "`--patch`{ .option } writes the differences to a file" in pages["commands/diff.md"]
    assert "`diff --patch`" in pages["commands/patch.md"]


def test_guides_and_reference_lead_to_each_other() -> None:
    pages = script("pages").site()
    assert "[`load_into`][safetensors.torch.load_into]" in pages["loading.md"]
    assert "[`open_weights`][safetensors.weights.open_weights]" in pages["weights.md"]
    assert (
        "Guides: [Loading models](../loading.md), [Saving models](../saving.md)"
        in pages["api/torch.md"]
    )


def test_a_link_to_no_file_is_an_error(tmp_path: Path) -> None:
    links = script("links")
    with pytest.raises(links.BrokenLink, match=r"^docs/a\.md: b\.md does not exist$"):
        links.Translator(tmp_path, {}).translated("docs/a.md", "[b](b.md)")


@pytest.mark.parametrize("text", ["a.md", "docs/a.md", "`docs/a.md`"])
def test_a_file_name_as_the_text_of_a_link_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").touch()
    links = script("links")
    with pytest.raises(links.BrokenLink, match=r"write the title of the page$"):
        links.Translator(tmp_path, {"a.md": "a.md"}).translated("b.md", f"[{text}](a.md)")


def test_only_pages_that_changed_are_written(tmp_path: Path) -> None:
    """The rest keeps its time, which `mkdocs serve` watches; pages that are gone are removed."""
    pages = script("pages")
    pages.write({"a.md": "a", "api/b.md": "b"}, tmp_path)
    before = (tmp_path / "a.md").stat().st_mtime_ns
    pages.write({"a.md": "a", "api/c.md": "c"}, tmp_path)
    assert (tmp_path / "a.md").stat().st_mtime_ns == before
    assert {path.name for path in tmp_path.rglob("*.md")} == {"a.md", "c.md"}
    assert (tmp_path / "site.css").exists()


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
