"""JSON files of models (config.json, indexes): types of files, and memory."""

import os
import pathlib

import pytest

from safetensors.weights import WeightsError, open_weights
from support import children, memory
from weights_support.data import DATA

MB = 1 << 20
INDEX = "model.safetensors.index.json"
OPEN = """
    import contextlib, sys
    from safetensors.weights import WeightsError, open_weights
    from support import memory

    def open_model(path):
        with contextlib.suppress(WeightsError):
            open_weights(path)

    open_model(sys.argv[1] + "/absent")  # imports what is imported on first use
    print(memory.peak_growth(open_model, sys.argv[1]))
"""
BULK = {
    "objects": b"{}",
    "members": b'{"":0}',
    "numbers": b"0",
    "texts": b'"sixteen letters+"',
}


@pytest.fixture
def model(tmp_path):
    """The directory of a valid model."""
    source = DATA / "mlx" / "llama_bf16"
    for file in filter(pathlib.Path.is_file, source.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    open_weights(tmp_path).close()
    return tmp_path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_named_pipe_is_not_waited_for(model, name):
    """It is refused, or ignored as a missing file."""
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    try:
        open_weights(model).close()
    except WeightsError as error:
        assert name in str(error)  # noqa: PT017


@pytest.mark.skipif(not memory.can_measure_peak(), reason="the peak cannot be measured")
@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize("case", BULK)
@pytest.mark.parametrize("nbytes", [9 * MB, 24 * MB])
def test_memory_is_bounded(model, name, case, nbytes):
    """It is at most 8 times the file and 64 MB."""
    value = BULK[case]
    count = nbytes // (len(value) + 1)
    (model / name).write_bytes(b'{"a": [' + (value + b",") * count + value + b"]}")
    assert int(children.run(OPEN, model)) <= 8 * (model / name).stat().st_size + 64 * MB
