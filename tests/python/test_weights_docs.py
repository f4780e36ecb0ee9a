"""The examples of docs/weights.md, run on small models."""

import re
from pathlib import Path

import pytest

from support.weights_data import DATA, MLX

pytest.importorskip("torch")
TEXT = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()


PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
MODELS = [DATA / "mlx" / name for name in MLX]
MODELS += [path for path in sorted((DATA / "gguf").glob("*.gguf")) if path.stem.startswith("l")]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_the_program_runs(path):
    program = PROGRAMS[0]
    assert '"model_dir_or_file"' in program
    names = {}
    exec(program.replace("model_dir_or_file", str(path)), names)
    assert names["eight_rows"].shape[0] == 8
    mixed = path.name in ("llama_mixed", "llama_unnamed_override", "llama_q4_k_m.gguf")
    assert ("parts" in names) == mixed
    assert "fused" in names or mixed or path.name == "phi3_q4_g64_bf16"
    assert ("words" in names) == (names["t"].quant is not None)
    tied = names["c"].tie_word_embeddings
    assert names["head"].name == ("token_embedding.weight" if tied else "output.weight")


def test_the_program_runs_from_an_empty_folder(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    program, model, *_ = PROGRAMS
    exec(model, {})
    names = {}
    exec(program, names)
    assert names["c"].n_layers == 2
    assert "fused" in names
    assert names["eight_rows"].shape == (8, 64)


SCHEMES = sorted(path.parent for path in (DATA / "schemes").glob("*/config.json"))


@pytest.mark.parametrize("path", SCHEMES, ids=lambda path: path.name)
def test_the_program_for_schemes_runs(path):
    (program,) = PROGRAMS[2:]
    assert '"model_dir_or_file"' in program
    names = {}
    exec(program.replace("model_dir_or_file", str(path)), names)
    assert names["array"].size > 0
    assert names["w"] is not None
