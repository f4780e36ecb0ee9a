"""Makes the source archive of a release, which builds without a network.

    python scripts/make_sdist.py FOLDER [OPTION...]

The archive holds the files of the last commit and, in third_party, the headers and the licences of
RapidJSON and xxHash, which git fetches at the commits that cmake/*.cmake name. Options go to
`python -m build`.

PROJECT_URL        the repository's URL, for [project.urls] and README's links (default: none)
SOURCE_DATE_EPOCH  the date of the files (default: that of the commit)

Equal commits give equal archives. Prints the name of the archive.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {  # what the archive gets of each
    "rapidjson": ("include/rapidjson", "license.txt"),
    "xxhash": ("xxhash.h", "LICENSE"),
}
URLS = """
[project.urls]
Repository = "{url}"
Changelog = "{url}/blob/{commit}/CHANGELOG.md"
Issues = "{url}/issues"
"""


def git(folder: Path, *arguments: str) -> str:
    """Runs git and returns its output."""
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        message = result.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ValueError(f"git {' '.join(arguments)}: {message[0]}")
    return result.stdout.strip()


def pin(name: str) -> tuple[str, str]:
    """Returns the repository and the commit of a library."""
    text = (ROOT / "cmake" / f"{name}.cmake").read_text(encoding="utf-8")
    found = re.search(r"GIT_REPOSITORY (\S+)\s+GIT_TAG ([0-9a-f]{40})\b", text)
    if found is None:
        raise ValueError(f"cmake/{name}.cmake: no GIT_REPOSITORY and GIT_TAG with a full commit")
    return found[1], found[2]


def extract(repository: Path, commit: str, names: tuple[str, ...], folder: Path) -> None:
    """Writes files of a commit into a folder."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        git(repository, "archive", "--output", archive.name, commit, *names)
        folder.mkdir(parents=True)
        subprocess.run(["tar", "-xf", archive.name, "-C", str(folder)], check=True)


def fetch(name: str, scratch: Path, folder: Path) -> None:
    """Writes a library's files. A commit's name is the hash of its contents, which git checks."""
    url, commit = pin(name)
    repository = scratch / f"{name}.git"
    git(scratch, "clone", "--quiet", "--bare", url, str(repository))
    extract(repository, commit, LIBRARIES[name], folder / name)


def add_urls(tree: Path, url: str, commit: str) -> None:
    """Adds the URLs to pyproject.toml, and makes README's links to files absolute."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", url):
        raise ValueError(f"PROJECT_URL: {url!r} is not an https URL of a repository")
    with open(tree / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(URLS.format(url=url, commit=commit))
    readme = tree / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#)", f"]({url}/blob/{commit}/", text)
    readme.write_text(text, encoding="utf-8")


def assemble(scratch: Path, url: str | None) -> Path:
    """Returns a folder with what the archive holds."""
    commit = git(ROOT, "rev-parse", "HEAD")
    tree = scratch / "tree"
    extract(ROOT, commit, (), tree)
    for name in LIBRARIES:
        fetch(name, scratch, tree / "third_party")
    if url:
        add_urls(tree, url, commit)
    return tree


def main(arguments: list[str]) -> int:
    """Runs the program. Returns the exit status."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: make_sdist.py FOLDER [OPTION...]", file=sys.stderr)
        return 2
    folder, *options = arguments
    try:
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            tree = assemble(scratch, os.environ.get("PROJECT_URL"))
            built = scratch / "dist"
            subprocess.run(
                [sys.executable, "-m", "build", "--sdist", *options, "--outdir", built, tree],
                env={"SOURCE_DATE_EPOCH": git(ROOT, "log", "-1", "--format=%ct"), **os.environ},
                stdout=sys.stderr,
                check=True,
            )
            (archive,) = built.glob("*.tar.gz")
            os.makedirs(folder, exist_ok=True)
            print(shutil.copy(archive, folder))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"make_sdist.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
