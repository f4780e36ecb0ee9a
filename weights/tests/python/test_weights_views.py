"""What notebooks show of models and their tensors."""

import numpy as np
import pytest

import safetensors
from safetensors.numpy import save_file
from safetensors.weights import open_weights
from support import cli
from weights_support.data import DATA

GGUF = DATA / "gguf" / "llama_q4_k_m.gguf"
MLX = DATA / "mlx" / "llama_mixed"


@pytest.mark.parametrize("path", [GGUF, MLX])
def test_models(path):
    with open_weights(path) as w:
        page = w._repr_html_()
        assert len(page) < 64_000
        assert f"{len(w) + len(w.unmapped)} tensors" in page
        assert f"{w.format}, llama" in page
        assert "configuration (" in page
        assert "None" not in page
        assert w._ipython_key_completions_() == [*w, *w.unmapped]
        assert w.nbytes == sum(t.nbytes for t in w.values())
        assert w.parameters == sum(t.numpy().size for t in w.values())
        summary = safetensors.summary(w)
        assert "parameters" in repr(summary)
        assert summary.parameters == safetensors.summary(path).parameters == w.parameters
    assert w._repr_html_() is None


def test_values_of_a_tensor():
    with open_weights(MLX) as w:
        tensor = w["layers.0.attention.v.weight"]
        page = tensor._repr_html_()
        values = tensor.numpy()
        assert tensor.ndim == 2
    assert "in the file: model.layers.0.self_attn.v_proj.weight" in page
    assert f"min {values.min():.5g}  mean {values.mean(dtype='f8'):.5g}" in page
    assert "spread evenly" not in page
    assert page.count("<i ") == 60


def test_large_tensors_are_sampled(tmp_path):
    rows = np.arange(3000, dtype=np.float32)[:, None] + np.zeros(1000, np.float32)
    rows[0, 0] = np.nan
    odd = np.full(4, np.inf, np.float32)
    save_file(
        {"a": rows, "inf": odd, "none": np.zeros((0, 3), np.float32)}, tmp_path / "m.safetensors"
    )
    with open_weights(tmp_path / "m.safetensors") as w:
        page = w["a"]._repr_html_()
        assert "(of 1,024,000 values in rows spread evenly)" in page
        assert "max 2999" in page
        assert "not finite 1" in page
        assert "no finite values" in w["inf"]._repr_html_()
        assert "0 parameters" in w["none"]._repr_html_()


def test_a_configuration_shows_what_is_set():
    with open_weights(GGUF) as w:
        shown = repr(w.config)
        assert shown.startswith("ModelConfig(architecture='llama', dim=")
        assert "None" not in shown
        assert "n_heads_of_layers" not in shown


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_reports(tmp_path, quick):
    target = tmp_path / "r.html"
    for path in (GGUF, MLX):
        cli.output("report", path, "--against", GGUF, "-o", target, "--force", *quick)
        page = target.read_text(encoding="utf-8")
        assert str(DATA) not in page
        assert "layers.0.attention.v.weight" in page
        assert ("12 tensors equal, 0 differ" in page) == (path == GGUF)
        assert "configuration (" in page
