"""diffusers: models and a pipeline saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Spy
from diffusers import AutoencoderKL, DDPMPipeline, DDPMScheduler, ModelMixin, UNet2DModel
from tiny import (
    assert_files_hold,
    assert_same_outputs,
    assert_same_tensors,
    randomize,
    raw_header,
    shards_of,
)

import safetensors.torch

STEM = "diffusion_pytorch_model"


def tiny_model(kind: str) -> ModelMixin:
    """Return a random model with convolutions, norms and attention."""
    if kind == "unet":
        model = UNet2DModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            attention_head_dim=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
    else:
        model = AutoencoderKL(
            block_out_channels=(8, 8),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        )
    randomize(model)
    return model.eval()


@torch.no_grad()
def output(model: ModelMixin) -> torch.Tensor:
    """Run on a fixed image."""
    image = torch.linspace(-1, 1, 3 * 8 * 8, dtype=model.dtype).reshape(1, 3, 8, 8)
    result: torch.Tensor = (
        model(image, 3).sample if isinstance(model, UNet2DModel) else model(image).sample
    )
    assert torch.isfinite(result).all()
    return result


def load(model: ModelMixin, folder: Path, **options: object) -> ModelMixin:
    """Load a model of the same class from local files."""
    loaded = type(model).from_pretrained(
        folder, local_files_only=True, use_safetensors=True, **options
    )
    return loaded.eval()


@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize("kind", ["unet", "vae"])
def test_single_file(kind: str, low_memory: bool, tmp_path: Path, spy: Spy) -> None:
    """One file, loaded onto meta modules or into a built model."""
    saved, loaded = spy(safetensors.torch, "save_file"), spy(safetensors.torch, "load_file")
    model = tiny_model(kind)
    model.save_pretrained(tmp_path)
    assert saved.count == 1
    file = tmp_path / f"{STEM}.safetensors"
    assert raw_header(file)["__metadata__"] == {"format": "pt"}
    assert_files_hold([file], model.state_dict())
    again = load(model, tmp_path, low_cpu_mem_usage=low_memory)
    assert loaded.count >= 1
    assert_same_tensors(again.state_dict(), model.state_dict())
    assert_same_outputs(output(again), output(model))


@pytest.mark.parametrize("kind", ["unet", "vae"])
def test_sharded(kind: str, tmp_path: Path) -> None:
    """Small shards and their index."""
    model = tiny_model(kind)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = shards_of(tmp_path, STEM)
    assert len(shards) > 2
    assert_files_hold(shards, model.state_dict())
    again = load(model, tmp_path)
    assert_same_tensors(again.state_dict(), model.state_dict())
    assert_same_outputs(output(again), output(model))


def test_bfloat16_and_variant(tmp_path: Path) -> None:
    """A bfloat16 variant keeps its bytes."""
    model = tiny_model("unet").to(torch.bfloat16)
    model.save_pretrained(tmp_path, variant="bf16")
    file = tmp_path / f"{STEM}.bf16.safetensors"
    assert_files_hold([file], model.state_dict())
    again = load(model, tmp_path, variant="bf16", torch_dtype=torch.bfloat16)
    assert_same_tensors(again.state_dict(), model.state_dict())


def test_without_mmap(tmp_path: Path, spy: Spy) -> None:
    """disable_mmap goes through load(bytes)."""
    parsed = spy(safetensors.torch, "load")
    model = tiny_model("vae")
    model.save_pretrained(tmp_path)
    again = load(model, tmp_path, disable_mmap=True)
    assert parsed.count == 1
    assert_same_tensors(again.state_dict(), model.state_dict())


def test_disk_offload(tmp_path: Path) -> None:
    """A model that accelerate keeps on disk answers the same."""
    model = tiny_model("unet")
    model.save_pretrained(tmp_path / "model")
    children = [name for name, _ in model.named_children()]
    places = {name: "disk" if name == "mid_block" else "cpu" for name in children}
    again = load(model, tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload")
    assert any(p.is_meta for p in again.parameters())
    assert_same_outputs(output(again), output(model))


def test_pipeline(tmp_path: Path) -> None:
    """A whole pipeline draws the same picture after saving and loading."""

    def draw(pipeline: DDPMPipeline) -> torch.Tensor:
        pipeline.set_progress_bar_config(disable=True)
        picture = pipeline(
            generator=torch.Generator().manual_seed(7), num_inference_steps=2, output_type="np"
        )
        return torch.from_numpy(picture.images)

    pipeline = DDPMPipeline(tiny_model("unet"), DDPMScheduler())
    pipeline.save_pretrained(tmp_path)
    assert (tmp_path / "unet" / f"{STEM}.safetensors").is_file()
    again = DDPMPipeline.from_pretrained(tmp_path, local_files_only=True)
    assert_same_outputs(draw(again), draw(pipeline), tolerance=1e-4)  # each step adds rounding
