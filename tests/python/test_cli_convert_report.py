"""What `safetensors convert` says at its end."""

import shlex
import shutil

import numpy as np
import pytest

from support import cli
from support.file_builder import raw
from weights_support.data import DATA, write_gguf

SHARDED = DATA / "mlx" / "llama_sharded"


@pytest.fixture
def model(tmp_path):
    """A quantised model with small files."""
    return shutil.copytree(SHARDED, tmp_path / "in")


def rows_of(said):
    """Returns the lines after the first, as a dict of labels and texts."""
    rows = {}
    label = ""
    for line in said.splitlines()[1:]:
        assert len(line) <= 80 or " " not in line[12:], line
        label = line[:12].strip() or label
        rows.setdefault(label, []).append(line[12:])
    return {label: " ".join(lines) for label, lines in rows.items()}


def test_a_quantised_model(model):
    """Which schemes were decoded, and which small files the folder got."""
    said = cli.output("convert", "in", "out", "--dtype", "bf16", "--verify", cwd=model.parent)
    rows = rows_of(said)
    assert rows["verified"] == "all tensors are as in the source"
    assert rows["decoded"].endswith("mlx_q4 g64")
    assert rows["copied"] == "config.json, expected.json"
    assert rows["next"] == "safetensors ls out"
    again = rows_of(cli.output("convert", "in", "2", "--dtype", "bf16", cwd=model.parent))
    assert again["next"] == "safetensors check 2 safetensors ls 2"
    assert "verified" not in again


def test_json(model):
    """A program gets the same as one object, and nothing else."""
    words = ["convert", "in", "out", "--dtype", "bf16"]
    found = cli.parsed(*words, cwd=model.parent)
    shards = sorted(model.glob("*.safetensors"))
    assert found["source"] == {
        "path": "in",
        "tensors": 53,
        "nbytes": sum(shard.stat().st_size for shard in shards),
    }
    written = model.parent / "out" / "model.safetensors"
    assert found["target"]["path"] == "out"
    assert found["target"]["nbytes"] == written.stat().st_size
    assert found["decoded"] == {"mlx_q4 g64": 16}
    assert found["dtypes"] == {"BF16": found["target"]["tensors"]}
    assert (found["written"], found["verified"]) == (True, False)
    dry = cli.parsed(*words, "--force", "--dry-run", cwd=model.parent)
    assert (dry["written"], dry["next"], dry["target"]["nbytes"]) == (False, [], None)
    assert dry["decoded"] == found["decoded"]


def test_quiet(model):
    done = cli.run("convert", "in", "out", "--dtype", "bf16", "-q", cwd=model.parent)
    assert (done.stdout, done.stderr) == ("", "")


def test_names_of_gguf(tmp_path):
    """How many tensors have which names."""
    values = np.ones((2, 32), np.float32)
    source = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "nothing"},
        {"output_norm.weight": values[0], "mine.weight": values},
    )
    done = cli.run("convert", "m.gguf", "out/", cwd=tmp_path)
    rows = rows_of(done.stdout)
    assert rows["names"] == "1 canonical, 1 as in the source"
    assert cli.parsed("convert", source, "2/", cwd=tmp_path)["names"] == {"canonical": 1, "own": 1}


def test_what_is_left_out(tmp_path):
    """Scales of activations, with the reason."""
    codes = raw("F8_E4M3", (4, 32), bytes(128))
    tensors = {}
    for layer in "abc":
        scales = {f"{layer}.{name}": raw("F32", (1,)) for name in ("weight_scale", "input_scale")}
        tensors |= {f"{layer}.weight": codes, **scales}
    source = tmp_path / "in"
    source.mkdir()
    cli.write(source / "model.safetensors", tensors)
    found = cli.parsed("convert", source, tmp_path / "out", "--dtype", "f32")
    assert found["left_out"] == {
        "it scales activations": ["a.input_scale", "b.input_scale", "c.input_scale"]
    }
    assert found["source"]["tensors"] == 9
    rows = rows_of(cli.output("convert", source, tmp_path / "2", "--dtype", "f32"))
    assert rows["left out"] == (
        "`a.input_scale`, `b.input_scale` and 1 more: it scales activations"
    )


def test_the_last_line_is_a_command_that_runs(tmp_path):
    """Both commands succeed on what was written."""
    found = cli.parsed(
        "convert", DATA / "gguf" / "gemma2_f32.gguf", tmp_path / "out of gguf", "--dtype", "bf16"
    )
    for command in found["next"]:
        cli.run(*shlex.split(command)[1:])
