"""Checks the files of a release before they are published.

    python scripts/check_release.py FOLDER [TAG]

FOLDER holds one source archive and the wheels of both distributions. Each wheel must list what is
compiled into it, with RapidJSON and xxHash at the commits that cmake/*.cmake name, and have the
licence of each library. To each wheel of `safetensors` belongs one of `safetensors-cpp`. TAG must
be "v" and the version of `safetensors-cpp`.
"""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import beside_wheel
import make_sdist

PINNED = {"RapidJSON": "rapidjson", "xxHash": "xxhash"}
LICENCES = ("RapidJSON", "libc++", "libstdc++", "pybind11", "xxHash")


def require(condition: bool, text: str) -> None:
    """Raises ValueError unless the condition holds."""
    if not condition:
        raise ValueError(text)


def check_wheel(path: Path) -> None:
    """Checks one wheel."""
    name, version, _ = path.name.split("-", 2)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
        require(f"{info}/sboms/safetensors.cdx.json" in names, "no list of what is compiled in")
        sbom = json.loads(wheel.read(f"{info}/sboms/safetensors.cdx.json"))
    subject = sbom["metadata"]["component"]
    found = (metadata["Name"], metadata["Version"])
    require((subject["name"], subject["version"]) == found, f"the list is not of {' '.join(found)}")
    components = {component["name"]: component for component in sbom["components"]}
    require("pybind11" in components, "the list lacks pybind11")
    for library, pin in PINNED.items():
        purl = components.get(library, {}).get("purl", "nothing")
        commit = make_sdist.pin(pin)[1]
        require(purl.endswith("@" + commit), f"{library}: {purl} instead of the commit {commit}")
    for licence in LICENCES:
        wanted = f"{info}/licenses/LICENSES/{licence}.txt"
        require(wanted in names, f"no {wanted}")


def check_archive(path: Path) -> None:
    """Checks the source archive."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("rapidjson/include/rapidjson/reader.h", "rapidjson/license.txt"):
        require(f"third_party/{name}" in names, f"no third_party/{name}")
    for name in ("xxhash.h", "LICENSE"):
        require(f"third_party/xxhash/{name}" in names, f"no third_party/xxhash/{name}")


def check_folder(folder: Path) -> int:
    """Checks all files, and returns how many wheels there are."""
    subject = folder
    try:
        archives = list(folder.glob("*.tar.gz"))
        require(len(archives) == 1, f"{len(archives)} source archives instead of one")
        subject = archives[0]
        check_archive(subject)
        tags: dict[str, set[str]] = {"safetensors": set(), "safetensors_cpp": set()}
        for subject in sorted(folder.glob("*.whl")):
            name, _, tag = subject.name.split("-", 2)
            require(name in tags, "a wheel of another distribution")
            check_wheel(subject)
            tags[name].add(tag)
        subject = folder
        require(bool(tags["safetensors"]), "no wheels")
        lone = tags["safetensors"] ^ tags["safetensors_cpp"]
        require(not lone, f"only one distribution has a wheel for {', '.join(sorted(lone))}")
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ValueError(f"{subject}: {error}") from error
    return len(tags["safetensors"])


def main(arguments: list[str]) -> int:
    """Runs the program. Returns the exit status."""
    if len(arguments) not in (1, 2):
        print("usage: check_release.py FOLDER [TAG]", file=sys.stderr)
        return 2
    try:
        if len(arguments) == 2:
            wanted = f"v{beside_wheel.version()}"
            require(arguments[1] == wanted, f"the tag is {arguments[1]} instead of {wanted}")
        count = check_folder(Path(arguments[0]))
    except ValueError as error:
        print(f"check_release.py: {error}", file=sys.stderr)
        return 1
    print(
        f"check_release.py: the source archive and {count} wheels of each distribution are complete"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
