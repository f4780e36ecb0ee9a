"""Translates the documents for the site.

* Links between files of the repository become links between pages. A link to a file that is no
  page, such as a source, becomes its text.
* A link whose text is the name of a document is an error: its title says more.
* Options in inline code get a class, because a line could otherwise break after their hyphens.
* The first mention in a section of a function, class or command gets a link to its reference.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"`?[\w/.-]+\.md`?")
OPTION = re.compile(r"(?<!`)`((?:[^`\n]* )?--?[A-Za-z][^`\n]*)`(?!`)")
MENTION = re.compile(rf"^(?:#|    ).*$|{LINK.pattern}|(?<!`)`(?P<code>[^`\n]+)`(?!`)", re.MULTILINE)
"""A heading, an indented line, a link, or what only this program changes: inline code."""
CALL = re.compile(r"^(safetensors \w+) .*|^(\w+)\(.*\)$")
LONGEST = 24
"""The number of characters up to which code with an option stays on one line."""
TITLE = re.compile(r"^ *- (.*): (\S+\.md)$", re.MULTILINE)
NAMED = re.compile(r"\bdocs/([\w-]+)\.md\b")
ROOT = Path(__file__).parents[2]


def titles(root: Path) -> dict[str, str]:
    """Returns the title that the navigation gives each page."""
    nav = (root / "mkdocs.yml").read_text(encoding="utf-8")
    return {page: title for title, page in TITLE.findall(nav)}


def linked(text: str, ending: str) -> str:
    """Returns a text of the reference with links, by their titles, to the documents it names."""
    known = titles(ROOT)

    def link(name: re.Match[str]) -> str:
        if f"{name[1]}.md" not in known:
            raise BrokenLink(f"the reference names {name[0]}, which mkdocs.yml does not list")
        return f"[{known[f'{name[1]}.md']}](../{name[1]}.{ending})"

    return NAMED.sub(link, text)


class BrokenLink(Exception):
    """A link to a file that does not exist, or to no page, or with a file name as its text."""


class Translator:
    """Translates documents.

    `pages` has the files that are pages, and the pages' names. `names` has for some of the pages
    what a mention in inline code leads to: the end of a link, such as `[safetensors.plan.Shard]`.
    """

    def __init__(
        self, root: Path, pages: dict[str, str], names: dict[str, dict[str, str]] | None = None
    ) -> None:
        self._names = names or {}
        self._root = root
        self._pages = pages | {"README.md": "index.md"}

    def translated(self, source: str, text: str) -> str:
        """Returns the Markdown of a page. Code blocks stay as they are."""
        parts = FENCE.split(text)
        for i in range(0, len(parts), 2):
            part = LINK.sub(lambda match: self._link(source, match), parts[i])
            parts[i] = "\n".join(map(_whole_options, part.split("\n")))
        names = self._names.get(self._pages.get(source, ""))
        return "".join(_with_references(parts, names) if names else parts)

    def _link(self, source: str, match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if target.startswith(("#", "http:", "https:", "mailto:")):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (self._root / path).exists():
            raise BrokenLink(f"{source}: {target} does not exist")
        if FILE_NAME.fullmatch(text):
            raise BrokenLink(f"{source}: the link [{text}]: write the title of the page")
        if path.startswith("docs/images/"):
            page = path.removeprefix("docs/")
        elif path in self._pages:
            page = self._pages[path]
        else:
            return text
        return f"{picture}[{text}]({page}{'#' if anchor else ''}{anchor})"


def _with_references(parts: list[str], names: dict[str, str]) -> Iterator[str]:
    """Yields the parts of a document, of which every second is code, with links to `names`."""
    seen: set[str] = set()

    def reference(found: re.Match[str]) -> str:
        if found[0].startswith("## "):
            seen.clear()
        name = CALL.sub(r"\1\2", found["code"] or "")
        if name not in names or name in seen:
            return found[0]
        seen.add(name)
        return f"[{found[0]}]{names[name]}"

    for i, part in enumerate(parts):
        yield part if i % 2 else MENTION.sub(reference, part)


def _whole_options(line: str) -> str:
    """Marks short code with an option in a line, unless the line is a heading."""
    if line.startswith("#"):
        return line
    return OPTION.sub(
        lambda code: code[0] + ("{ .option }" if len(code[1]) <= LONGEST else ""), line
    )
