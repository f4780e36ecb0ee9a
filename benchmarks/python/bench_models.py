"""Times how long transformers and diffusers take to a model that has computed something.

    python benchmarks/python/bench_models.py --upstream DIR [--repeats 5] [--folder DIR]

Runs in an environment with this package, torch, transformers and diffusers. `--upstream` names a
folder with upstream's package: `pip install --no-deps --target DIR safetensors==0.8.0`. Makes two
models of random BF16 of about 1 GB. Each run is a new process that imports the framework, loads a
model from the page cache by `from_pretrained`, and computes one small forward pass. Runs with the
two packages take turns. Prints a Markdown table of the least times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = ("process", "import", "load", "forward")


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
    )
    return LlamaForCausalLM, lambda: LlamaForCausalLM(config)


def unet() -> Any:
    from diffusers import UNet2DConditionModel

    channels = (256, 512, 1024, 1024)
    return UNet2DConditionModel, lambda: UNet2DConditionModel(block_out_channels=channels)


MODELS = {"transformers": llama, "diffusers": unet}


def forward(model: Any) -> Any:
    import torch

    with torch.no_grad():
        if hasattr(model.config, "vocab_size"):
            return model(input_ids=torch.arange(8)[None]).logits
        sample = torch.ones(1, 4, 16, 16, dtype=model.dtype)
        text = torch.ones(1, 8, model.config.cross_attention_dim, dtype=model.dtype)
        return model(sample, 1, encoder_hidden_states=text).sample


def make(name: str, folder: str) -> None:
    """Saves a model of random weights."""
    import torch

    torch.set_default_dtype(torch.bfloat16)
    _, new = MODELS[name]()
    new().save_pretrained(folder)


def load(name: str, folder: str, expects: str) -> None:
    """Loads a model and prints the seconds of each part."""
    begin = time.perf_counter()
    import torch

    kind, _ = MODELS[name]()
    imported = time.perf_counter()
    model = kind.from_pretrained(folder, dtype=torch.bfloat16)
    loaded = time.perf_counter()
    assert forward(model).isfinite().all()
    end = time.perf_counter()

    import safetensors

    found = "ours" if hasattr(safetensors, "_core") else "upstream"
    assert found == expects, f"{safetensors.__file__} is {found}"
    print(json.dumps([imported - begin, loaded - imported, end - loaded]))


def run(what: str, name: str, folder: str, path: str | None = None, *words: str) -> list[float]:
    """Runs this program, and returns the seconds of the process and what it printed."""
    variables = dict(os.environ, HF_HUB_OFFLINE="1")
    if path is not None:
        variables["PYTHONPATH"] = path
    command = [sys.executable, __file__, what, name, folder, *words]
    begin = time.perf_counter()
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - begin
    return [seconds, *json.loads(done.stdout.splitlines()[-1] if what == "--load" else "[]")]


def main() -> None:
    if sys.argv[1:2] in (["--load"], ["--make"]):
        (load if sys.argv[1] == "--load" else make)(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", action="append", choices=MODELS)
    parser.add_argument("--folder")
    options = parser.parse_args()
    if not Path(options.upstream, "safetensors").is_dir():
        parser.error(f"{options.upstream} has no package safetensors")
    packages = {"upstream": options.upstream, "ours": None}
    print(f"| model | GB | what | upstream | this package | ratio |\n|{'---|' * 6}", flush=True)
    for name in options.rows or MODELS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            run("--make", name, folder)
            size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
            runs: dict[str, list[list[float]]] = {package: [] for package in packages}
            for repeat in range(options.repeats + 1):
                for package, path in packages.items():
                    found = run("--load", name, folder, path, package)
                    if repeat:  # the first one compiles Python and fills the page cache
                        runs[package].append(found)
        for i, part in enumerate(PARTS):
            theirs, ours = (min(each[i] for each in runs[package]) for package in packages)
            print(
                f"| {name} | {size / 1e9:.2f} | {part} | {theirs:.3f} s | {ours:.3f} s "
                f"| {theirs / ours:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
