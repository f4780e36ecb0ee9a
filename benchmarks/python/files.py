"""The files that everything is measured on, made here."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Shapes = dict[str, tuple[int, ...]]
ITEMSIZE = {"F32": 4, "BF16": 2}
BLOCK = 1 << 24


@dataclass(frozen=True)
class Spec:
    """What a file holds."""

    name: str
    about: str
    dtype: str
    shapes: Shapes

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        count = int(sum(math.prod(shape) for shape in self.shapes.values()))
        return count * ITEMSIZE[self.dtype]


def scaled(width: int, scale: float) -> int:
    """A width for which a matrix of two of them has `scale` of the elements."""
    return max(8, round(width * scale**0.5 / 8) * 8)


def gpt2(scale: float) -> Shapes:
    """160 tensors as in GPT-2, 548 MB of F32 at full size."""
    width, seen = scaled(768, scale), scaled(1024, scale)
    shapes: Shapes = {"wte.weight": (50257, width), "wpe.weight": (seen, width)}
    for layer in range(12):
        block: Shapes = {
            "attn.bias": (1, 1, seen, seen),
            "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width),
            "attn.c_proj.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width),
            "mlp.c_proj.bias": (width,),
        }
        norms: Shapes = {f"ln_{n}.{kind}": (width,) for n in (1, 2) for kind in ("weight", "bias")}
        shapes |= {f"h.{layer}.{name}": shape for name, shape in (block | norms).items()}
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def vision(scale: float) -> Shapes:
    """1,719 tensors as in VGGT: transformer blocks of two widths, and convolutions; 4.6 GB."""
    shapes: Shapes = {}
    blocks = [(f"{part}.{i}", 1024) for part in ("patch", "frame", "global") for i in range(24)]
    for name, wide in [*blocks, *((f"camera.{i}", 2048) for i in range(4))]:
        width = scaled(wide, scale)
        matrices = {"qkv": (3, 1), "proj": (1, 1), "fc1": (4, 1), "fc2": (1, 4)}
        for part, (rows, columns) in matrices.items():
            shapes[f"{name}.{part}.weight"] = (rows * width, columns * width)
            shapes[f"{name}.{part}.bias"] = (rows * width,)
        for part in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1", "ls2"):
            shapes[f"{name}.{part}"] = (width,)
        for part in ("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"):
            shapes[f"{name}.{part}"] = (64,)
    channels = scaled(190, scale)
    for i in range((1719 - len(shapes)) // 2):
        shapes[f"dense.{i}.weight"] = (channels, channels, 3, 3)
        shapes[f"dense.{i}.bias"] = (channels,)
    return shapes | {"camera.token": (1, 2, 1, 1024)}


def experts(count: int) -> Shapes:
    """Small tensors with the names of a mixture of experts, 1 KB each."""
    return {
        f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.gate_proj.weight": (16, 16)
        for i in range(count)
    }


def adapter(scale: float) -> Shapes:
    """160 tensors as in a LoRA of rank 16, 20 MB of BF16."""
    width = scaled(4096, scale * scale)
    return {
        f"model.layers.{layer}.self_attn.{part}.lora_{side}.weight": shape
        for layer in range(40)
        for part in ("q_proj", "v_proj")
        for side, shape in (("A", (16, width)), ("B", (width, 16)))
    }


def all_specs(scale: float) -> dict[str, Spec]:
    """Every file, at full size or scaled down."""
    count = max(100, int(100_000 * scale))
    specs = (
        Spec("gpt2", "shaped like GPT-2", "F32", gpt2(scale)),
        Spec("vggt", "shaped like VGGT", "F32", vision(scale)),
        Spec("moe", "a mixture of experts", "F32", experts(count)),
        Spec("lora", "a LoRA", "BF16", adapter(scale)),
        Spec("small", "16 tensors, 1 MB", "F32", {f"t{i}": (128, 128) for i in range(16)}),
        Spec("tiny", "16 tensors, 256 KB", "F32", {f"t{i}": (64, 64) for i in range(16)}),
    )
    return {spec.name: spec for spec in specs}


def header_of(spec: Spec) -> bytes:
    """The length and the header of a file."""
    entries, begin = {}, 0
    for name, shape in spec.shapes.items():
        end = begin + math.prod(shape) * ITEMSIZE[spec.dtype]
        entries[name] = {"dtype": spec.dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def data_blocks(nbytes: int) -> Iterator[memoryview]:
    """Random numbers that are finite in every type: the same at each run, no two blocks alike."""
    random = np.random.default_rng(7)
    block = random.integers(0, 1 << 16, BLOCK // 2, np.uint16) & np.uint16(0xBFFF)
    while nbytes > 0:
        yield memoryview(block.tobytes())[:nbytes]
        nbytes -= BLOCK
        block = np.roll(block, 977)


def make(spec: Spec, path: Path) -> Path:
    """Write the file unless it is there."""
    header = header_of(spec)
    size = len(header) + spec.nbytes
    if path.exists() and path.stat().st_size == size:
        with path.open("rb") as file:
            if file.read(len(header)) == header:
                return path
    need_space(path.parent, size)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(header)
        for block in data_blocks(spec.nbytes):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return path


def check_space(specs: dict[str, Spec], folder: Path) -> None:
    """End the program when the disk has no room for all files, peers' own copies and one saved."""
    missing = max(spec.nbytes for spec in specs.values() if spec.name != "vggt")
    for spec in specs.values():
        suffixes = (".safetensors",) if spec.name == "moe" else (".safetensors", ".pt", ".tensors")
        there = sum((folder / f"{spec.name}{suffix}").exists() for suffix in suffixes)
        missing += spec.nbytes * (len(suffixes) - there)
    need_space(folder, missing)


def need_space(folder: Path, nbytes: int) -> None:
    """End the program when the disk has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < nbytes + (1 << 28):
        raise SystemExit(
            f"{folder}: {free / 1e9:.1f} GB free, {nbytes / 1e9:.1f} GB needed; "
            "choose another folder by --folder, or smaller files by --scale"
        )
