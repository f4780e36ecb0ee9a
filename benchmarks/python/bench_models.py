"""Times what programs of other libraries do with models: load, switch, offload and save them.

    python benchmarks/python/bench_models.py --upstream DIR [--ours DIR] [--repeats 9]

Runs in an environment with this package, torch, transformers, diffusers, peft and accelerate.
`--upstream` names a folder with upstream's package, `--ours` one with this package instead of the
environment's: `pip install --no-deps --target DIR safetensors==0.8.0`. Makes models of random BF16
of about 1 GB. Each run is a new process, which imports the library and then does one thing once;
the files are in the page cache. Runs with the two packages take turns.

Prints a Markdown table: the median and the worst seconds, the median of the processor's seconds,
and the median of the most memory beyond that before the call, with pages of mapped files.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ADAPTERS = 4
RANKS = 2
Act = Callable[[], Any]


class Row(NamedTuple):
    """Something that a program does."""

    model: str
    prepare: Callable[[str], Act]
    """Imports what it needs, and returns what is timed. Takes the folder of the model."""
    ranks: int = 1


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


MODELS = {"llama": llama, "unet": unet}


def loaded(name: str, folder: str, **options: Any) -> Any:
    import torch

    return MODELS[name]()[0].from_pretrained(folder, dtype=torch.bfloat16, **options)


def forward(model: Any) -> Any:
    import torch

    with torch.no_grad():
        if hasattr(model.config, "vocab_size"):
            return model(input_ids=torch.arange(8)[None]).logits
        sample = torch.ones(1, 4, 16, 16, dtype=model.dtype)
        text = torch.ones(1, 8, model.config.cross_attention_dim, dtype=model.dtype)
        return model(sample, 1, encoder_hidden_states=text).sample


# What is timed


def loading(name: str, **options: Any) -> Callable[[str], Act]:
    def prepare(folder: str) -> Act:
        MODELS[name]()
        return lambda: forward(loaded(name, folder, **options))

    return prepare


def without_mapping(folder: str) -> Act:
    from diffusers import UNet2DConditionModel

    return lambda: forward(UNet2DConditionModel.from_pretrained(folder, disable_mmap=True))


def offloading(folder: str) -> Act:
    import accelerate

    assert accelerate
    MODELS["llama"]()
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {"lm_head": "cpu", **{f"model.layers.{i}": "disk" for i in range(8)}}
    offload = str(Path(folder, "offload"))
    return lambda: forward(loaded("llama", folder, device_map=places, offload_folder=offload))


def switching(folder: str) -> Act:
    from peft import PeftModel

    base = loaded("llama", folder)
    model = PeftModel.from_pretrained(base, Path(folder, "adapter0"), "adapter0")

    def act() -> None:
        for i in range(1, ADAPTERS):
            model.load_adapter(Path(folder, f"adapter{i}"), f"adapter{i}")
            model.set_adapter(f"adapter{i}")
            model.delete_adapter(f"adapter{i - 1}")

    return act


def saving(folder: str) -> Act:
    model = loaded("llama", folder)
    old = Path(folder, "old")
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(folder, old, ignore=shutil.ignore_patterns("old", "adapter*", "dcp"))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return lambda: model.save_pretrained(old)


def sharing(folder: str) -> Act:
    import torch.distributed as dist

    MODELS["llama"]()
    dist.init_process_group("gloo")
    return lambda: loaded("llama", folder, tp_plan="auto")


def saving_dcp(folder: str) -> Act:
    import torch.distributed.checkpoint as dcp

    state = loaded("llama", folder).state_dict()
    state = {name: tensor.clone() for name, tensor in state.items()}
    target = str(Path(folder, "dcp"))
    shutil.rmtree(target, ignore_errors=True)
    return lambda: dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(target))


def loading_dcp(folder: str) -> Act:
    import torch
    import torch.distributed.checkpoint as dcp

    _, new = MODELS["llama"]()
    torch.set_default_dtype(torch.bfloat16)
    state = {name: torch.zeros_like(tensor) for name, tensor in new().state_dict().items()}
    return lambda: dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder))


ROWS = {
    "transformers, load and forward": Row("llama", loading("llama")),
    "transformers, two shares by tp_plan": Row("llama", sharing, RANKS),
    "transformers, layers on disk, load and forward": Row("llama", offloading),
    "transformers, save over an old model": Row("llama", saving),
    "peft, switch to three adapters": Row("llama", switching),
    "torch, DCP, save": Row("llama", saving_dcp),
    "torch, DCP, load": Row("llama", loading_dcp),
    "diffusers, load and forward": Row("unet", loading("unet")),
    "diffusers, load with disable_mmap and forward": Row("unet", without_mapping),
}


# The processes


def make(name: str, folder: str) -> None:
    """Saves a model of random weights, and adapters of a language model."""
    import torch

    torch.set_default_dtype(torch.bfloat16)
    _, new = MODELS[name]()
    model = new()
    model.save_pretrained(folder)
    if name != "llama":
        return
    from peft import LoraConfig, get_peft_model

    for i in range(ADAPTERS):
        config = LoraConfig(r=64, target_modules="all-linear", init_lora_weights=False)
        adapted = get_peft_model(new(), config)
        adapted.save_pretrained(Path(folder, f"adapter{i}"))


def status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) << 10


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def act(row: str, folder: str, expects: str) -> None:
    """Does what a row says, and prints the seconds, the processor's seconds and the memory."""
    run = ROWS[row].prepare(folder)
    import safetensors

    found = "ours" if hasattr(safetensors, "_core") else "upstream"
    assert found == expects, f"{safetensors.__file__} is {found}"
    gc.collect()  # which of the two meets the next whole collection is chance
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu, begin = status("VmRSS"), cpu_seconds(), time.perf_counter()
    _kept = run()  # until the memory was looked at
    taken = [time.perf_counter() - begin, cpu_seconds() - cpu, status("VmHWM") - before]
    print(json.dumps(taken), flush=True)
    os._exit(0)


def process(words: list[str], path: str | None, **variables: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, HF_HUB_OFFLINE="1", **variables)
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [sys.executable, __file__, *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def measured(row: str, folder: str, package: str, path: str | None) -> list[float]:
    """Runs a row in new processes, and returns what the slowest of them took."""
    ranks = ROWS[row].ranks
    running = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        given = variables if ranks > 1 else {}
        running.append(process(["--act", row, folder, package], path, **given))
    results = []
    for each in running:
        out, _ = each.communicate()
        if each.returncode != 0:
            raise RuntimeError(f"{row}, {package}: status {each.returncode}")
        results.append(json.loads(out.splitlines()[-1]))
    return [max(values) for values in zip(*results, strict=True)]


def line(row: str, runs: dict[str, list[list[float]]]) -> str:
    cells = [row]
    middle: dict[str, list[float]] = {}
    for package, taken in runs.items():
        seconds, cpu, memory = (list(values) for values in zip(*taken, strict=True))
        middle[package] = [statistics.median(each) for each in (seconds, cpu, memory)]
        cells += [f"{middle[package][0]:.3f} ({max(seconds):.3f})", f"{middle[package][1]:.2f}"]
        cells.append(f"{middle[package][2] / 2**20:.0f}")
    theirs, ours = middle["upstream"], middle["ours"]
    cells.append(f"{theirs[0] / ours[0]:.2f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    if sys.argv[1:2] in (["--act"], ["--make"]):
        (act if sys.argv[1] == "--act" else make)(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--ours")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rows", action="append", choices=ROWS)
    parser.add_argument("--folder")
    options = parser.parse_args()
    if not Path(options.upstream, "safetensors").is_dir():
        parser.error(f"{options.upstream} has no package safetensors")
    packages = {"upstream": options.upstream, "ours": options.ours}
    each = "s (worst) | CPU s | MiB"
    print(f"| what | upstream: {each} | this package: {each} | ratio |\n|{'---|' * 8}", flush=True)
    for name in MODELS:
        rows = [row for row in options.rows or ROWS if ROWS[row].model == name]
        if not rows:
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            if process(["--make", name, folder], options.ours).wait() != 0:
                raise RuntimeError(f"{name} was not made")
            for row in rows:
                runs: dict[str, list[list[float]]] = {package: [] for package in packages}
                for repeat in range(options.repeats + 1):
                    for package, path in packages.items():
                        taken = measured(row, folder, package, path)
                        if repeat:  # the first one compiles Python and fills the page cache
                            runs[package].append(taken)
                print(line(row, runs), flush=True)


if __name__ == "__main__":
    main()
