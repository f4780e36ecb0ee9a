"""`safetensors ls` of models: GGUF, and safetensors by --model."""

import pytest

from support import cli
from weights_support.data import DATA

GGUF = DATA / "gguf" / "llama_q4_k_m.gguf"
MLX = DATA / "mlx" / "llama_mixed"


def test_gguf_is_listed_by_canonical_names():
    lines = [line.split() for line in cli.output("ls", GGUF).splitlines()]
    assert ["format", "gguf"] in lines
    assert ["architecture", "llama"] in lines
    first = next(line for line in lines if line and line[0].endswith("attention.k.weight"))
    assert first[0] == "layers.0.attention.k.weight"
    assert first[1] == "Q4_K"
    assert first[-1] == "blk.0.attn_k.weight"
    assert lines[-1][0] == "total"


def test_json_of_both_formats():
    gguf = cli.parsed("ls", GGUF)
    assert gguf["format"] == "gguf"
    assert gguf["config"]["n_layers"] == 1
    assert gguf["files"] == [str(GGUF)]
    assert gguf["totals"]["Q4_K"]["tensors"] > 1
    mlx = cli.parsed("ls", "--model", MLX)
    assert mlx["format"] == "mlx_safetensors"
    by_name = {tensor["name"]: tensor for tensor in mlx["tensors"]}
    v = by_name["layers.0.attention.v.weight"]
    assert (v["type"], v["code"], v["group_size"]) == ("mlx_q8", 101, 64)
    assert v["source"] == "model.layers.0.self_attn.v_proj.weight"


def test_matching_sorting_totals_and_tree():
    names = [
        t["name"] for t in cli.parsed("ls", GGUF, "--match", "*ffn*", "--sort", "size")["tensors"]
    ]
    assert names
    assert all("ffn" in name for name in names)
    sizes = [t["nbytes"] for t in cli.parsed("ls", GGUF, "--sort", "size")["tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "attn_k" not in cli.output("ls", "--totals", GGUF)
    assert "attention" in cli.output("ls", "--tree", GGUF)


def test_the_order_of_a_file_needs_what_is_stored():
    for path in (GGUF, MLX):
        said = cli.complaint("ls", "--sort", "file", path)
        assert said == f"{path}: --sort file needs --raw, which lists safetensors files as stored"
    assert cli.output("ls", "--sort", "file", "--raw", MLX)


def test_unmapped_names_are_listed_apart():
    text = cli.output("ls", DATA / "gguf" / "types.gguf")
    assert "31 tensors without a canonical name:" in text
    assert "and 21 more" in text


@pytest.mark.parametrize("name", ["dim_prod_wrap.gguf", "arr_deep.gguf"])
def test_an_error_is_one_line(name):
    line = cli.complaint("ls", DATA / "bad" / name)
    assert name in line


def test_warnings_are_notes():
    done = cli.run("ls", "--model", DATA / "bad" / "mlx_layers_1e9")
    assert "1000000000 layers" in done.stderr
    assert cli.run("ls", "-q", "--model", DATA / "bad" / "mlx_layers_1e9").stderr == ""
