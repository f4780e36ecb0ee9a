"""The core without the weight layer: it is configured, and nothing that it runs is in weights/."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    not (
        shutil.which("cmake")
        and shutil.which("ninja")
        and Path("/usr/include/doctest/doctest.h").exists()
    ),
    reason="needs what builds the C++ tests",
)
def test_the_core_is_built_and_tested_without_the_weight_layer(tmp_path: Path) -> None:
    options = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    options += ["-DSAFETENSORS_BUILD_WEIGHTS=OFF", "-DSAFETENSORS_BUILD_TESTS=ON"]
    options += ["-DSAFETENSORS_BUILD_BENCHMARKS=ON"]

    def output(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    output("cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja", *options)
    commands = json.loads((tmp_path / "compile_commands.json").read_text(encoding="utf-8"))
    weights = str(ROOT / "weights")
    assert len(commands) > 200
    assert not [each for each in commands if weights in each["file"] + each["command"]]
    # A missing file is an error. What the core's tests run may read no model of the weight layer.
    output("ninja", "-C", str(tmp_path), "-n")
    tests = json.loads(output("ctest", "--test-dir", str(tmp_path), "--show-only=json-v1"))
    assert {"test_header", "replay_header"} <= {each["name"] for each in tests["tests"]}
    assert weights not in json.dumps(tests)
