"""What notebooks show of models and their tensors."""

import json
import os
import re
import shutil

import numpy as np
import pytest

import safetensors
from safetensors._cli.weight_model import WeightFile
from safetensors._model_folder import BY_RULE
from safetensors._weight_models import is_weight_model
from safetensors.numpy import save_file
from safetensors.weights import WeightsError, open_weights
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
        assert "n_experts" not in page, "the model has none"
        assert not re.search(r"\d\.\d{9}", page), "floats are shown as those of 32 bits"
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
    few, none = np.array([0, 0, 0, 1], np.float32), np.zeros((0, 3), np.float32)
    tensors = {"a": rows, "few": few, "inf": odd, "none": none}
    save_file(tensors, tmp_path / "m.safetensors")
    with open_weights(tmp_path / "m.safetensors") as w:
        page = w["a"]._repr_html_()
        assert "(of 1,024,000 values in rows spread evenly)" in page
        assert "max 2999" in page
        assert "not finite 1" in page
        assert "zeros 75.00%" in w["few"]._repr_html_()
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
        assert f"check: {path.name}: ok: " in page


def test_a_report_compares_rows_in_one_order(tmp_path):
    """llama.cpp reorders rows of q and k, which a report undoes as `diff --stats` does."""
    plain, packed = DATA / "gguf" / "llama_f32.gguf", DATA / "mlx" / "llama_q4_g64_bf16"
    cli.output("report", plain, "--against", packed, "-o", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    cells = re.search(r"<td>layers.0.attention.q.weight</td>(.*)</tr>", page)[1]
    relative = float(re.findall(r"<td>([\d.]+)%</td>", cells)[0])
    assert 0 < relative < 10


def test_parts_of_tensors_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    with WeightFile(str(MLX), BY_RULE, "native") as file:
        for tensor in file.tensors:
            count = int(np.prod(tensor.shape))
            whole = np.concatenate([values for values, _ in file.values(tensor)])
            for begin in (0, count // 3, max(0, count - 7)):
                end = min(count, begin + int(rng.integers(1, 300)))
                found = file.values_between(tensor, begin, end)
                np.testing.assert_array_equal(found, whole[begin:end])


def folder_with(tmp_path, name, source):
    """Returns a folder with a copy of a file, or of a folder's files."""
    folder = tmp_path / name
    if source.is_dir():
        shutil.copytree(source, folder)
    else:
        folder.mkdir()
        shutil.copy(source, folder)
    return folder


def test_one_rule_of_what_opens_as_a_model(tmp_path):
    """`summary`, `report`, `ls` and `show` have the same answer."""
    plain = folder_with(tmp_path, "plain", DATA / "mlx" / "llama_bf16")
    beside = folder_with(tmp_path, "beside", MLX)
    (beside / "model.safetensors").rename(beside / "other.safetensors")
    older = folder_with(tmp_path, "older", DATA / "schemes" / "gptq")
    config = json.loads((older / "config.json").read_text())
    (older / "quantize_config.json").write_text(json.dumps(config.pop("quantization_config")))
    (older / "config.json").write_text(json.dumps(config))
    indexed = DATA / "mlx" / "llama_sharded"
    (index,) = indexed.glob("*.index.json")
    (shard, *_) = sorted(indexed.glob("*.safetensors"))
    answers = {
        GGUF: True,
        DATA / "gguf" / "llama_split_q4_0-00002-of-00003.gguf": True,
        folder_with(tmp_path, "gguf", GGUF): True,
        MLX: True,
        MLX / "model.safetensors": True,
        index: True,
        DATA / "schemes" / "gptq": True,
        older: True,
        plain: False,
        plain / "model.safetensors": False,
        beside / "other.safetensors": True,
        shard: False,
        DATA / "bad" / "mlx_config_none": False,
        tmp_path / "nothing": False,
    }
    for path, answer in answers.items():
        assert is_weight_model(path) == is_weight_model(os.fsencode(path)) == answer, path
        if not path.exists():
            continue
        said = repr(safetensors.summary(path))
        assert said.startswith(f"{path.name}: safetensors") != answer
        listed = cli.parsed("ls", "--json", path)
        assert ("parameters" in listed) == answer
        if answer:
            assert listed["parameters"] == safetensors.summary(path).parameters
        cli.output("report", path, "-o", tmp_path / "r.html", "--force", "--quick")
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert ("safetensors, " in page or "gguf, " in page) == answer, path


def test_a_refused_model_is_not_summed_up_as_another():
    for name in ("data_cut.gguf", "mlx_bits_7"):
        with pytest.raises(WeightsError):
            safetensors.summary(DATA / "bad" / name)
