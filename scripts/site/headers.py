"""Makes reference pages of headers: comments as text, declarations as code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(
    r"(?:class|struct|enum class|enum|union)\s+(?:SAFETENSORS\w*_API\s+)?(\w+)|using (\w+)|"
    r"\b(?!requires|deprecated)(\w+|operator\S+)\(|\b(\w+)(?:\{|\[| =)"
)
HIDDEN = re.compile(
    r"#|namespace |using namespace|}  // namespace|extern \"C\"|(class|struct) \w+;$|"
    r"// [^-]* -{9,}|}$"
)
FIELD = re.compile(
    r"^(Codes|Faults|Lifetime|Names|Requires|Results|Safe for untrusted input|Strings|"
    r"Thread safety|Throws|Untrusted input):",
    re.MULTILINE,
)


def page(title: str, paths: list[Path]) -> str:
    """Returns Markdown with a section for each header."""
    parts = [f"# {title}\n"]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(path.parents[2 if path.parent.name == "weights" else 1])
        parts.append(f"## {name}\n")
        parts += section(text, "c" if path.suffix == ".h" else "cpp")
    return "\n".join(parts)


def section(text: str, language: str) -> Iterator[str]:
    shown = ""
    text = re.sub(
        r"^namespace detail .*?^}  // namespace detail$", "", text, flags=re.DOTALL | re.MULTILINE
    )
    for comment, code in blocks(text):
        match = NAME.search(code)
        name = next((group for group in match.groups() if group), "") if match else ""
        if code.startswith("enum {"):  # it has no name
            name = comment.partition(".")[0]
        if comment and name and name != shown:
            yield f"### {name}\n"
            shown = name
        if comment:
            yield prose(comment) + "\n"
        if code:
            yield f"```{language}\n{public(code)}\n```\n"


def public(code: str) -> str:
    """Returns declarations without private members and attributes of the compiler."""
    code = re.sub(r"\n*^ private:\n.*?(?=^};)", "\n", code, flags=re.DOTALL | re.MULTILINE)
    lines = []
    removed = 0
    for line in code.split("\n"):
        line = re.sub(rf"^ {{{removed}}}", "", line)  # it continues an aligned declaration
        shorter = re.sub(r"SAFETENSORS\w*_API |\[\[nodiscard\]\] ", "", line)
        removed = 0 if line.endswith((";", "{", "}")) else removed + len(line) - len(shorter)
        lines.append(shorter)
    return "\n".join(lines)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yields (comment, declarations) of the outermost level, in their order."""
    comment: list[str] = []
    code: list[str] = []
    in_comment = is_macro = False
    for line in text.split("\n"):
        if is_macro or line.startswith("#"):
            is_macro = line.endswith("\\")
            continue
        if HIDDEN.match(line) and not in_comment and depth(code) == 0:
            continue
        begins = line.startswith(("/*", "//")) and depth(code) == 0
        if in_comment or begins:
            if code:
                yield "\n".join(comment), "\n".join(code)
                comment, code = [], []
            in_comment = (in_comment or line.startswith("/*")) and "*/" not in line
            comment.append(re.sub(r"^(///?|/\*+| \*/?) ?|\s*\*/$", "", line))
        elif line or depth(code):
            code.append(line)
        elif comment or code:
            yield "\n".join(comment), "\n".join(code)
            comment, code = [], []


def depth(code: list[str]) -> int:
    """Returns how many braces are open."""
    return sum(line.count("{") - line.count("}") for line in code)


def prose(comment: str) -> str:
    """Returns a comment as Markdown. A paragraph that begins indented is code, or a drawing."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", comment.strip("\n")):
        lines = paragraph.split("\n")
        if lines[0].startswith("  "):
            paragraphs.append("\n".join("    " + line for line in lines))
            continue
        pieces = re.split(r"(`[^`]*`)", "\n".join(line.strip() for line in lines))
        pieces[::2] = [re.sub(r"([\\*_<\[\]])", r"\\\1", piece) for piece in pieces[::2]]
        paragraphs.append(FIELD.sub(r"\n**\1:**", "".join(pieces)))
    return "\n\n".join(paragraphs)
