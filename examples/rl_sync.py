"""A trainer and a receiver that share a folder: after each step, a patch instead of a model.

    python examples/rl_sync.py

The trainer stands for reinforcement learning of a large model, the receiver for an engine that
generates text with its weights. A patch appears in the folder when it is complete.
"""

import multiprocessing
import pathlib
import tempfile
import time

import torch

from safetensors import delta
from safetensors.torch import load_model, save_model

STEPS = 5


def make_model() -> torch.nn.Module:
    layers = [torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 16)]
    return torch.nn.Sequential(*layers).bfloat16()


def train(folder: pathlib.Path) -> None:
    """Trains a model, and writes a patch after each step."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inputs, wanted = torch.randn(2, 64, 256).bfloat16(), torch.randn(64, 16).bfloat16()
    tracker = delta.Tracker(model.state_dict(), label="0")
    save_model(model, folder / "0.safetensors")
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[step % 2]), wanted).backward()
        optimizer.step()
        path = folder / f"{step}.safetensors-patch"
        tracker.diff(model.state_dict(), path, label=str(step)).close()
    save_model(model, folder / "last.safetensors")


def receive(folder: pathlib.Path) -> None:
    """Follows the trainer, and checks that it has the same model at the end."""
    model = make_model()
    load_model(model, wait_for(folder / "0.safetensors"))
    whole = (folder / "0.safetensors").stat().st_size
    for step in range(1, STEPS + 1):
        path = wait_for(folder / f"{step}.safetensors-patch")
        delta.apply(model.state_dict(), path)
        nbytes = path.stat().st_size
        print(f"step {step}: {nbytes:,} bytes, {nbytes / whole:.1%} of the model")
    last = make_model()
    load_model(last, wait_for(folder / "last.safetensors"))
    pairs = zip(model.parameters(), last.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    print("the receiver has the trainer's weights")


def wait_for(path: pathlib.Path) -> pathlib.Path:
    end = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"the trainer has not written {path}")
        time.sleep(0.01)
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        trainer = multiprocessing.get_context("spawn").Process(
            target=train, args=(pathlib.Path(name),)
        )
        trainer.start()
        receive(pathlib.Path(name))
        trainer.join()
