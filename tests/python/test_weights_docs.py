"""What docs/weights.md shows, run on small models."""

import re
from pathlib import Path

import pytest
from weights_data import DATA

pytest.importorskip("torch")
TEXT = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()


@pytest.mark.parametrize("name", ["mlx/llama_mixed", "mlx/llama_q4_g64_bf16"])
def test_the_whole_way(name):
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert '"model_dir_or_file"' in program
    names = {}
    exec(program.replace("model_dir_or_file", str(DATA / name)), names)
    assert names["eight_rows"].shape[0] == 8
    assert ("parts" in names) == (name == "mlx/llama_mixed")
    assert names["head"].name == "output.weight"
