"""The Python programs in README.md and in the guides run as they are, and do what the text says."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from safetensors import delta
from safetensors.plugins import vllm
from safetensors.torch import load, load_file, load_files, save_file
from support import console, sharded
from support.pages import ROOT, Page, run_alone, run_in_order, run_on_ranks, site_script


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, where the programs run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_readme(folder):
    """Its variables have the values that the text says."""
    first, second = Page("README.md").programs
    checks = "\nassert bias.sum() == 64, bias\nassert rows.shape == (10, 64), rows\nprint(*tensors)"
    assert sorted(run_alone(first + checks, folder).split()) == ["bias", "embedding"]

    model = ROOT / "weights" / "tests" / "data" / "gguf" / "llama_q4_0.gguf"
    output = run_alone(second.replace("model_dir_or_file.gguf", str(model)), folder)
    summary, weight = output.splitlines()
    assert summary == "gguf llama 64 21"
    assert weight.startswith("Q4_0 (64, 64) ")


def test_loading(folder):
    """The programs run in their order, and have the variables that the page says."""
    page = Page("docs/loading.md")
    first, second, third = page.programs
    scope = page.run(first)
    assert len(list(folder.glob("model_dir/*.safetensors"))) > 1
    tensors = scope["tensors"]
    assert set(tensors) == {f"layers.{i}.norm" for i in range(10)}
    assert scope["norms"] == {name: tensor.norm() for name, tensor in tensors.items()}
    linear = load_file("linear.safetensors")
    sharded.check(scope["model"].state_dict(), linear)
    assert torch.equal(scope["weight"], linear["weight"])

    page.run(second, scope)
    assert scope["layer"].keys() == scope["same"].keys() == {"layers.3.norm"}
    assert torch.equal(scope["layer"]["layers.3.norm"], tensors["layers.3.norm"])

    page.run(third, scope)
    assert len(scope["member"]) > 512 * 1024  # more than the first request
    assert torch.equal(scope["weight"], load(scope["member"])["weight"])


def test_saving(folder):
    """The programs make the files that the text names."""
    page = Page("docs/saving.md")
    assert len(page.programs) == 5
    loaded = page.run("\n".join(page.programs))["tensors"]
    files = {path.name for path in (folder / "model_dir").iterdir()}
    assert len(files) == 3
    assert all(name in page.text for name in files)
    assert len(loaded) == 4
    assert all(torch.equal(each, torch.zeros(250, 1000)) for each in loaded.values())


def test_notebooks(folder):
    """The programs print what the page says, and the cell shows a tree."""
    page = Page("docs/notebooks.md")
    program = "\n".join(page.programs)
    said = [line[2:] for line in program.splitlines() if line.startswith("# ")]
    assert run_alone(program, folder).splitlines() == said
    shown = page.run(program)["f"]._repr_html_()
    assert "0 … 11" in shown
    assert "12 \u00d7 2 tensors" in shown
    assert shown in site_script("notebook").cell(), "which the site shows"
    (block,) = console.BLOCK.findall(page.text)
    console.check(block, folder)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_verify(folder):
    """The whole page, from an empty folder, prints what it shows."""
    pytest.importorskip("model_signing")
    scope = run_in_order(Page("docs/verify.md").text, folder)
    assert scope["bad"] == {"layers.2.weight"}
    assert (folder / "weight.sums.json").exists()


@pytest.mark.slow
def test_groups(folder):
    """On two ranks, whose values are compared."""
    torch.manual_seed(0)
    model = {
        f"{layer}.{name}": torch.rand(shape)
        for layer in range(2)
        for name, shape in {"up.weight": (64, 32), "down.weight": (32, 64), "norm": (32,)}.items()
    }
    (folder / "model").mkdir()
    sharded.write(folder / "model", model)
    torch.save(model, folder / "model.pt")
    check = """
import torch

model = torch.load("model.pt")
rank = mesh.get_local_rank()
assert list(tensors) == list(shares) and set(tensors) == set(model)
for name, values in model.items():
    assert torch.equal(tensors[name], values)
    axis = 1 if "down" in name else 0
    local = values if "norm" in name else values.chunk(2, axis)[rank]
    assert shares[name].shape == values.shape and torch.equal(shares[name].to_local(), local)
"""
    last = "if dist.get_rank() == 0:"
    before, after = Page("docs/groups.md").program().split(last)
    output = run_on_ranks(before + check + last + after, folder, "model")
    assert output.splitlines()[-1] == "6 tensors, 6 shares"


@pytest.mark.slow
def test_checkpoints(folder):
    """On two ranks; the checkpoint is one model."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    run_on_ranks(Page("docs/checkpoints.md").program(), folder)
    loaded = load_files(folder / "checkpoint")
    assert loaded.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert loaded["0.weight"].any()


@pytest.mark.slow
def test_engines(folder):
    """Each rank loads its half of the experts, and all other tensors."""
    names = [f"layers.{i}.experts.{j}.up.weight" for i in range(3) for j in range(8)]
    (folder / "model").mkdir()
    sharded.write(folder / "model", {name: torch.ones(2) for name in ["a", "b", *names]})
    output = run_alone(Page("docs/engines.md").program(), folder)
    assert output == "14 tensors on this rank, 24 weights of experts on all\n"


def test_the_settings_of_engines():
    """The versions, and the table of the settings of the load format."""
    text = Page("docs/engines.md").text
    contracts = json.loads((ROOT / "tests" / "plugins" / "contracts.json").read_text())
    for name, contract in (("vLLM", contracts["vllm"]), ("sglang", contracts["sglang"])):
        assert f"{name} {contract['version']}" in text
    table = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", text, re.M)
    defaults = {field: getattr(vllm._Options(), field) for field, _ in table}
    assert defaults == {
        "weights": None,
        "concurrency": None,
        "budget_bytes": 1 << 30,
        "distributed": False,
    }
    assert dict(table)["budget_bytes"] == "1 GiB"


def test_patches(folder):
    """The whole page prints what it shows; the receiver has the weights by small patches."""
    page = Page("docs/patches.md")
    scope = run_in_order(page.text, folder)
    trained, served = (scope[name].state_dict() for name in ("trained", "served"))
    assert all(torch.equal(served[name], trained[name]) for name in trained)
    for step in (1, 2, 3):
        assert (folder / f"{step}.safetensors-patch").stat().st_size < 2500
    assert load_file("again.safetensors").keys() == scope["tuned"].keys()
    assert Path("again.safetensors").read_bytes() == Path("tuned.safetensors").read_bytes()
    assert load_file("received.safetensors")["weight"].nonzero().tolist() == [
        [7, i] for i in range(10)
    ]


def test_no_loader_takes_a_patch_for_a_model(folder):
    """Folders with patches load as if they were not there, as docs/patches.md says."""
    save_file({"a": torch.ones(2)}, "model.safetensors")
    delta.diff({"a": torch.ones(2)}, {"a": torch.zeros(2)}, "1.safetensors-patch").close()
    assert load_files(folder).keys() == load_file("model.safetensors").keys() == {"a"}


@pytest.mark.slow
def test_the_example_of_patches(folder):
    """A trainer and a receiver in two processes."""
    program = (ROOT / "examples" / "rl_sync.py").read_text(encoding="utf-8")
    output = run_alone(program, folder)
    assert output.count("bytes, ") == 5
    assert output.endswith("the receiver has the trainer's weights\n")
