"""The recipes of packaging/ name the versions of the sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "packaging").is_dir(), reason="the source archive has no recipes"
)


def find(name: str, pattern: str) -> list[str]:
    found = re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{name}: nothing matches {pattern}"
    return found


LIBRARY = find("include/safetensors/version.h", r'^#define SAFETENSORS_VERSION "(.+)"')[0]
PYTHON = find("python/safetensors_cpp/__init__.py", r'^__version__ = "(.+)"')[0]
ABI = find("include/safetensors/version.h", r"^#define SAFETENSORS_ABI_VERSION (\d+)")[0]
SONAME = LIBRARY.rpartition(".")[0]


def test_versions_of_the_library() -> None:
    assert find("packaging/conan/conandata.yml", r'^  "(.+)":$') == [LIBRARY]
    assert find("packaging/conda/recipe.yaml", r'^  library_version: "(.+)"$') == [LIBRARY]
    port = json.loads((ROOT / "packaging/vcpkg/vcpkg.json").read_text(encoding="utf-8"))
    assert port["version"] == LIBRARY


def test_versions_of_the_python_package() -> None:
    assert find("packaging/debian/changelog", r"^safetensors-cpp \((.+)-\d+\)")[0] == PYTHON
    assert find("packaging/conda/recipe.yaml", r'^  python_version: "(.+)"$') == [PYTHON]


def test_names_of_debians_libraries_have_the_soname() -> None:
    packages = find("packaging/debian/control", r"^Package: (libsafetensors.*\d)$")
    assert packages == [
        f"libsafetensors{SONAME}",
        f"libsafetensors-weights{SONAME}",
        f"libsafetensors-c{ABI}",
    ]
    for package in packages:
        assert (ROOT / f"packaging/debian/{package}.install").is_file()


def test_python_needs_what_the_build_needs() -> None:
    (pybind11,) = find("pyproject.toml", r'^requires = .*"pybind11(>=[\d.]+)')
    (scikit,) = find("pyproject.toml", r'^requires = .*"scikit-build-core(>=[\d.]+)"')
    assert find("packaging/debian/control", r"^ pybind11-dev \((.+)\),$") == [
        pybind11.replace("=", "= ")
    ]
    assert find("packaging/conda/recipe.yaml", r"- scikit-build-core (.+)$") == [scikit]
    assert find("packaging/conda/recipe.yaml", r"- pybind11 ([^,]+)") == [pybind11]
