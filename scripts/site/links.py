"""Translates the documents for the site.

* Links between files of the repository become links between pages. A link to a file that is no
  page, such as a source, becomes its text.
* A link whose text is the name of a document gets the title that the navigation gives its page.
* Options in inline code get a class, because a line could otherwise break after their hyphens.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"`?[\w/.-]+\.md`?")
OPTION = re.compile(r"(?<!`)`((?:[^`\n]* )?--?[A-Za-z][^`\n]*)`(?!`)")
LONGEST = 24
"""The number of characters up to which code with an option stays on one line."""
TITLE = re.compile(r"^ *- (.*): (\S+\.md)$", re.MULTILINE)


class BrokenLink(Exception):
    """A link of a document to a file that does not exist."""


class Translator:
    """Translates documents. `pages` has the files that are pages, and the pages' names."""

    def __init__(self, root: Path, pages: dict[str, str]) -> None:
        self._root = root
        self._pages = pages | {"README.md": "index.md"}
        nav = (root / "mkdocs.yml").read_text(encoding="utf-8")
        self._titles = {page: title for title, page in TITLE.findall(nav)}

    def translated(self, source: str, text: str) -> str:
        """Returns the Markdown of a page. Code blocks stay as they are."""
        parts = FENCE.split(text)
        for i in range(0, len(parts), 2):
            part = LINK.sub(lambda match: self._link(source, match), parts[i])
            parts[i] = "\n".join(map(_whole_options, part.split("\n")))
        return "".join(parts)

    def _link(self, source: str, match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if target.startswith(("#", "http:", "https:", "mailto:")):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (self._root / path).exists():
            raise BrokenLink(f"{source}: {target} does not exist")
        if path.startswith("docs/images/"):
            page = path.removeprefix("docs/")
        elif path in self._pages:
            page = self._pages[path]
        else:
            return text
        if FILE_NAME.fullmatch(text):
            text = self._titles[page]
        return f"{picture}[{text}]({page}{'#' if anchor else ''}{anchor})"


def _whole_options(line: str) -> str:
    """Marks short code with an option in a line, unless the line is a heading."""
    if line.startswith("#"):
        return line
    return OPTION.sub(
        lambda code: code[0] + ("{ .option }" if len(code[1]) <= LONGEST else ""), line
    )
