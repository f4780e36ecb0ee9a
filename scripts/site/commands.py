"""Makes a page of the reference for each command of the command line, from its argument parser."""

from __future__ import annotations

import argparse
import re
import textwrap

import links

from safetensors._cli import main

SHARED = {"--help", "--quiet", "--color"}
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
SPECIAL = re.compile(r"(`[^`\n|]+`)|(?<![\w-])(--[a-z][a-z-]*)|([\\*_<>\[\]|`])")
"""Code, an option, or a character that means something in Markdown."""


def pages(guide: str) -> dict[str, str]:
    """Returns the pages by name, given the text of docs/cli.md, to whose sections they lead."""
    found = sections(guide)
    parsers = main.commands(main.parser())
    return {f"commands/{name}.md": page(name, parsers[name], found[name]) for name in parsers}


def names() -> list[str]:
    """Returns the names of all commands."""
    return list(main.commands(main.parser()))


def with_links(guide: str) -> str:
    """Returns docs/cli.md with a link to the page of each command beneath the section's heading."""
    known = names()

    def heading(match: re.Match[str]) -> str:
        own = [name for name in match[1].split(", ") if name in known]
        leads = ", ".join(f"[`{name}`](commands/{name}.md)" for name in own)
        return f"{match[0]}\n\nAll options: {leads}.\n" if own else match[0]

    return HEADING.sub(heading, guide)


def sections(guide: str) -> dict[str, str]:
    """Returns the anchor of the section of each command, such as of "shard, merge"."""
    anchors = {}
    for title in HEADING.findall(guide):
        for name in title.split(", "):
            anchors[name] = re.sub(r"[^\w -]", "", title).replace(" ", "-").lower()
    return anchors


def page(name: str, parser: argparse.ArgumentParser, anchor: str) -> str:
    examples = re.sub(r"^  ", "", (parser.epilog or "").partition(":\n")[2], flags=re.MULTILINE)
    rows = "".join(map(row, (action for action in parser._actions if is_own(action))))
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    usage = usage.replace(" [-h]", "").replace(" [--color {auto,always,never}] [-q]", "")
    usage = textwrap.fill(usage, 80, subsequent_indent="    ", break_on_hyphens=False)
    return f"""# safetensors {name}

{escaped(parser.description or "")}

```text
{usage}
```

| argument | meaning |
|---|---|
{rows}
[All commands](../cli.md#what-all-commands-share) also take `--help`, `--quiet` and `--color`.
The [guide](../cli.md#{anchor}) shows what this command prints.

## Examples

```sh
{examples}
```
"""


def is_own(action: argparse.Action) -> bool:
    """Whether an argument is not one that all commands have."""
    return not SHARED.intersection(action.option_strings)


def row(action: argparse.Action) -> str:
    """Returns the row of an argument: its names, its value, what it means."""
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.choices:
        value = f"{{{','.join(map(str, action.choices))}}}"
    if action.option_strings:
        value = "" if action.nargs == 0 else f" {value}"
        text = ", ".join(f"`{name}{value}`{{ .option }}" for name in action.option_strings)
    else:
        text = f"`{value}{' ...' if action.nargs in ('*', '+') else ''}`"
    meaning = escaped((action.help or "") % {**vars(action), "prog": ""})
    if action.nargs != 0 and action.option_strings and action.default and "default" not in meaning:
        meaning += f" (default: {action.default})"
    return f"| {text} | {meaning} |\n"


def escaped(text: str) -> str:
    """Returns the text of a parser as Markdown. Options, and what is between backquotes, become
    code; a document that it names becomes a link."""

    def piece(found: re.Match[str]) -> str:
        code, option, character = found.groups()
        return code or (f"`{option}`{{ .option }}" if option else f"\\{character}")

    return links.linked(SPECIAL.sub(piece, text), "md")
