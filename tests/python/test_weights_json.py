"""The JSON files of models (config.json, indexes): what is opened, and what memory it takes."""

import os
import pathlib
import subprocess
import sys

import pytest

from safetensors.weights import WeightsError, open_weights
from support.weights_data import DATA

MB = 1 << 20
INDEX = "model.safetensors.index.json"
OPEN = """
import re, sys
from safetensors.weights import WeightsError, open_weights
def status(field):
    with open("/proc/self/status") as file:
        return int(re.search(field + r":\\s+(\\d+) kB", file.read())[1]) << 10
try:
    open_weights(sys.argv[1] + "/absent")
except WeightsError:
    pass
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
before = status("VmRSS")
try:
    open_weights(sys.argv[1])
except WeightsError:
    pass
print(status("VmHWM") - before)
"""
BULK = {
    "objects": b"{}",
    "members": b'{"":0}',
    "numbers": b"0",
    "texts": b'"sixteen letters+"',
}


@pytest.fixture
def model(tmp_path):
    """The directory of a model that opens."""
    source = DATA / "mlx" / "llama_bf16"
    for file in filter(pathlib.Path.is_file, source.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    open_weights(tmp_path).close()
    return tmp_path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_named_pipe_is_not_waited_for(model, name):
    """Refused, or passed over as what is no file."""
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    try:
        open_weights(model).close()
    except WeightsError as error:
        assert name in str(error)  # noqa: PT017


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the peak")
@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize("case", BULK)
def test_memory_is_bounded(model, name, case):
    """At most 8 times the file, and 64 MB."""
    value = BULK[case]
    count = 24 * MB // (len(value) + 1)
    (model / name).write_bytes(b'{"a": [' + (value + b",") * count + value + b"]}")
    command = [sys.executable, "-c", OPEN, model]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(child.stdout) <= 8 * (model / name).stat().st_size + 64 * MB
