"""The files of conformance/cases.json, which tests/cpp reads too."""

import importlib.util
from pathlib import Path

KIT = Path(__file__).resolve().parents[3] / "conformance"


def load(name):
    """Returns a module of the conformance kit."""
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", KIT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KIT_CASES = load("cases")
ALL = KIT_CASES.reads()
LIGHT = [case for case in ALL if not case.heavy]
HEAVY = [case for case in ALL if case.heavy]
