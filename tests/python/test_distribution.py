"""What the distribution says about itself: its version, extras and requirements."""

import importlib
import importlib.metadata

import pytest
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


def test_distribution():
    """The extras are upstream's, and nothing is required without one."""
    metadata = importlib.metadata.metadata("safetensors")
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert {"torch", "numpy", "jax", "tensorflow", "paddlepaddle", "mlx", "all", "cli"} <= extras
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert needed == []


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
