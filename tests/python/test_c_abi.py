"""The assertions that hold the ABI of the C headers are those that scripts/c_abi.py writes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "c_abi.py"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc")
def test_assertions_are_those_of_the_headers() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), "run python scripts/c_abi.py"
