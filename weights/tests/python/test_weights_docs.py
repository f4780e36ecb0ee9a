"""The examples of docs/weights.md, on the models that the page makes and on others."""

import re
from pathlib import Path

import pytest

from safetensors.weights import open_weights
from support.pages import BLOCK, run_in_order
from weights_support.data import DATA, MLX

pytest.importorskip("torch")
PAGE = Path(__file__).parents[3] / "docs" / "weights.md"
TEXT = PAGE.read_text(encoding="utf-8")

BLOCKS = BLOCK.findall(TEXT)
PROGRAMS = [block for kind, block, _ in BLOCKS if kind == "python"]
MODELS = [DATA / "mlx" / name for name in MLX]
MODELS += [path for path in sorted((DATA / "gguf").glob("*.gguf")) if path.stem.startswith("l")]


def test_the_page_runs(tmp_path, monkeypatch):
    """All blocks run in their order, from an empty folder, and print what the page shows."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    kinds = [kind for kind, _, _ in BLOCKS]
    assert kinds == [*["python"] * 5, "console", *["python"] * 2]
    found = run_in_order(TEXT, tmp_path)
    assert found["c"].n_layers == 2
    assert "fused" in found
    assert found["eight_rows"].shape == (8, 64)
    assert found["role"] == "weight_scale_inv"
    with open_weights("fp8_model") as w, open_weights("decoded") as decoded:
        assert w.scheme == "fp8"
        assert sum(t.storage == "scheme" for t in w.values()) == 14
        assert decoded.scheme is None
        assert decoded.keys() == w.keys()


def program_with(text):
    """Returns the program that contains the text, with a placeholder for its model."""
    (found,) = (program for program in PROGRAMS if text in program)
    return re.sub(r'(?<=open_weights\()"\w+"', "MODEL", found)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_the_program_runs(path):
    names = {"MODEL": path}
    exec(program_with("eight_rows"), names)
    assert names["eight_rows"].shape[0] == 8
    mixed = path.name in ("llama_mixed", "llama_unnamed_override", "llama_q4_k_m.gguf")
    assert ("parts" in names) == mixed
    assert "fused" in names or mixed or path.name == "phi3_q4_g64_bf16"
    assert ("words" in names) == (names["t"].quant is not None)
    tied = names["c"].tie_word_embeddings
    assert names["head"].name == ("token_embedding.weight" if tied else "output.weight")


# Those of ComfyUI have no canonical names, which the program walks.
SCHEMES = sorted(
    path.parent
    for path in (DATA / "schemes").glob("*/config.json")
    if not path.parent.name.startswith("comfy")
)


@pytest.mark.parametrize("path", SCHEMES, ids=lambda path: path.name)
def test_the_program_for_schemes_runs(path):
    names = {"MODEL": path}
    exec(program_with("scheme_params"), names)
    assert names["array"].size > 0
    assert names["w"] is not None
