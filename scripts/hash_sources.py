"""Prints one hash over everything that the Python package is built from."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "CMakeLists.txt",
    "pyproject.toml",
    "cmake",
    "include",
    "python",
    "src",
    *(f"weights/{name}" for name in ("CMakeLists.txt", "bindings", "cmake", "include", "src")),
)


def hash_sources() -> str:
    """Returns the hash. What a build or an interpreter leaves in these folders does not count."""
    total = hashlib.sha256()
    for top in (ROOT / name for name in SOURCES):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                name = path.relative_to(ROOT).as_posix()
                total.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


if __name__ == "__main__":
    print(hash_sources())
