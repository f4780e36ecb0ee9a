"""What the distribution says about itself: its version, extras and requirements."""

import importlib
import importlib.metadata
import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import safetensors


@pytest.mark.parametrize(
    "wanted", ["==0.8.0", "~=0.8.0", ">=0.8.0", "<1", ">=0.4.3", ">=0.8.0,<0.9", "!=0.7.0"]
)
def test_version_satisfies(wanted):
    """pip, transformers and diffusers compare the distribution's version."""
    version = importlib.metadata.version("safetensors")
    assert SpecifierSet(wanted).contains(version)
    assert safetensors.__version__ == version


def extras(distribution):
    """Returns {extra: names that it requires}; every entry of Requires-Dist belongs to an extra."""
    found = {extra: set() for extra in distribution.metadata.get_all("Provides-Extra")}
    for requirement in map(Requirement, distribution.requires):
        (extra,) = (name for name in found if f'"{name}"' in str(requirement.marker))
        names = requirement.extras if requirement.name == "safetensors" else ()
        found[extra] |= {f"safetensors[{name}]" for name in names} or {requirement.name}
    return found


def test_extras(upstream):
    """safetensors[all,dev] and the like resolve, and require at least what upstream's do."""
    ours = extras(importlib.metadata.distribution("safetensors"))
    (theirs,) = importlib.metadata.distributions(name="safetensors", path=[str(upstream.target)])
    for extra, wanted in extras(theirs).items():
        assert ours[extra] >= wanted - {"setuptools-rust"}, extra  # it builds Rust
    nested = set().union(*ours.values())
    assert {name[12:-1] for name in nested if name.startswith("safetensors[")} <= set(ours)
    assert "cli" in ours


def test_licences():
    """The package brings the licence of each library that is compiled in, and names authors."""
    distribution = importlib.metadata.distribution("safetensors")
    wanted = {
        "LICENSE": "Apache License",
        "LICENSES/RapidJSON.txt": "THL A29 Limited",
        "LICENSES/libc++.txt": "LLVM Exceptions",
        "LICENSES/libstdc++.txt": "GCC RUNTIME LIBRARY EXCEPTION",
        "LICENSES/pybind11.txt": "Wenzel Jakob",
        "LICENSES/xxHash.txt": "Yann Collet",
    }
    assert set(distribution.metadata.get_all("License-File")) == set(wanted)
    for name, text in wanted.items():
        assert text in distribution.read_text(f"licenses/{name}"), name
    assert distribution.metadata["Author"]


def test_list_of_what_is_compiled_in():
    """A CycloneDX file names each compiled-in library, with its version and its licence."""
    distribution = importlib.metadata.distribution("safetensors")
    sbom = json.loads(distribution.read_text("sboms/safetensors.cdx.json"))
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    subject = sbom["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("safetensors", safetensors.__version__)
    components = {component["name"]: component for component in sbom["components"]}
    always = {"RapidJSON", "xxHash", "pybind11"}
    assert always <= set(components) <= always | {"libc++", "libstdc++"}
    for component in components.values():
        assert component["purl"].startswith("pkg:")
        assert component["version"][0].isdigit()
        assert component["licenses"][0]["expression"]
    (dependency,) = sbom["dependencies"]
    assert dependency["dependsOn"] == list(components)


def test_citation():
    """CITATION.cff names the version that is installed."""
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {safetensors.__version__}\n" in citation


def test_changelog():
    """The newest section of CHANGELOG.md names the versions of the sources."""
    root = Path(__file__).parents[2]

    def version_in(path, pattern):
        return re.search(pattern, (root / path).read_text(encoding="utf-8"), re.MULTILINE)[1]

    title = version_in("CHANGELOG.md", "^## (.*)")
    assert re.fullmatch(r"Unreleased|\d{4}-\d\d-\d\d", title.partition(":")[0])
    python = version_in("pyproject.toml", '^version = "(.*)"')
    beside = version_in("python/safetensors_cpp/__init__.py", '^__version__ = "(.*)"')
    library = version_in("CMakeLists.txt", r"^project\(safetensors VERSION (\S+)")
    wanted = f": Python {python}, safetensors-cpp {beside}, C++ {library}"
    assert title.endswith(wanted)


@pytest.mark.parametrize(
    ("group", "name"),
    [("vllm.general_plugins", "safetensors_direct"), ("sglang.srt.plugins", "safetensors")],
)
def test_plug_ins(group, name):
    """Engines find the plug-ins by these names, and call what they load."""
    (found,) = importlib.metadata.entry_points(group=group, name=name)
    assert callable(found.load())


def test_build_description():
    """Users can see which implementation is loaded."""
    core = importlib.import_module("safetensors._core")
    assert core.__build__
