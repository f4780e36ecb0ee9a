"""Checks the pages of a built site: python check_links.py FOLDER

Every link within the site must lead to a file and, if it has an anchor, to an element of it.
Nothing may be loaded from another server.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                (self.links if tag == "a" else self.loads).append(value)


def faults(folder: Path) -> list[str]:
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    pages.pop((folder / "404.html").resolve(), None)  # its links are paths on the server
    if not pages:
        return [f"{folder} has no pages"]
    found = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    found.append(f"{path.name}: loads {link} from another server")
                continue
            target = (path.parent / unquote(parts.path) if parts.path else path).resolve()
            if not target.is_file():
                found.append(f"{path.name}: {link}: no such file")
            elif target in pages and unquote(parts.fragment) not in pages[target].ids | {""}:
                found.append(f"{path.name}: {link}: no such anchor")
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python check_links.py FOLDER", file=sys.stderr)
        return 2
    for fault in (found := faults(Path(sys.argv[1]))):
        print(fault, file=sys.stderr)
    print(f"site: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
