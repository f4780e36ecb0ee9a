"""Translates the documents for the site.

* Links between files of the repository become links between pages. A link to a file that is no
  page, such as a source, becomes its text.
* A link whose text is the name of a document is an error: its title says more.
* Options in inline code get a class, because a line could otherwise break after their hyphens.
* The first mention in a section of a function, class or command gets a link to its reference: that
  of C++ where the text is about C++, that of the module which the sentence names, or the usual one.
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
OF = re.compile(r"\s+of\s+(?:(?:every|all)\s+frameworks?\b|`(?P<module>safetensors\.\w+)`)")
"""What says after a name which module's it is: many modules', or one's."""
LANGUAGE = re.compile(r"\bIn (C|Python)\b")  # C or C++
SENTENCE_END = re.compile(r"[.:]\s|\n\s*\n|\n[*|]")
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
    Names of C++ and C begin with `C++ ` there, and those of one module with the module's.
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
    above: dict[int, str] = {}  # the headings of the section, by level

    def reference(found: re.Match[str]) -> str:
        if found[0].startswith("#"):
            level = len(found[0]) - len(found[0].lstrip("#"))
            for deeper in [each for each in above if each >= level]:
                del above[deeper]
            above[level] = found[0]
            if level == 2:
                seen.clear()
        name = CALL.sub(r"\1\2", found["code"] or "")
        if not name:
            return found[0]
        is_cpp = any("C++" in heading for heading in above.values())
        target = names.get(_meant(name, found, names, is_cpp=is_cpp))
        if target is None or target in seen:
            return found[0]
        seen.add(target)
        return f"[{found[0]}]{target}"

    for i, part in enumerate(parts):
        yield part if i % 2 else MENTION.sub(reference, part)


def _meant(name: str, found: re.Match[str], names: dict[str, str], *, is_cpp: bool) -> str:
    """Returns the key of `names` for a mention: what the text around it says whose name it is."""
    before, after = found.string[: found.start()], found.string[found.end() :]
    languages = LANGUAGE.findall(before.rpartition("\n\n")[2])
    if languages[-1] == "C" if languages else is_cpp:
        return f"C++ {name}"
    if owner := OF.match(after):
        return f"{owner['module']}.{name}" if owner["module"] else ""
    sentence = SENTENCE_END.split(before)[-1] + SENTENCE_END.split(after, maxsplit=1)[0]
    of_numpy = f"safetensors.numpy.{name}"
    return (
        of_numpy if "NumPy" in sentence and of_numpy in names and "torch" not in sentence else name
    )


def _whole_options(line: str) -> str:
    """Marks short code with an option in a line, unless the line is a heading."""
    if line.startswith("#"):
        return line
    return OPTION.sub(
        lambda code: code[0] + ("{ .option }" if len(code[1]) <= LONGEST else ""), line
    )
