"""Tiny random models, and comparisons that trust no safetensors library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

VOCABULARY = 96

_FORMAT_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


def randomize(model: torch.nn.Module) -> None:
    """Give every parameter distinct values: fresh norms and biases are constant."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.08)


def tiny_model(kind: str, **config: Any) -> PreTrainedModel:
    """Return a random transformers model of a few ten thousand weights, in eval mode."""
    model: PreTrainedModel
    if kind == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=32,
                n_embd=32,
                n_layer=3,
                n_head=4,
                bos_token_id=0,
                eos_token_id=0,
                **config,
            )
        )
    elif kind == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=32,
                **config,
            )
        )
    else:
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=32,
                **config,
            )
        )
    randomize(model)
    return model.eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    """Run the model on fixed tokens."""
    tokens = torch.arange(24).reshape(2, 12) * 7 % VOCABULARY
    result: torch.Tensor = model(input_ids=tokens).logits
    assert torch.isfinite(result).all()
    return result


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the values of a tensor as the bytes a file must hold."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def assert_same_tensors(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Demand the same names, dtypes, shapes and bytes: NaN and -0.0 count too."""
    assert sorted(actual) == sorted(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert actual[name].shape == tensor.shape, name
        assert raw_bytes(actual[name]) == raw_bytes(tensor), name


def assert_same_outputs(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5
) -> None:
    """Demand the same results but for rounding, relative to the largest one.

    Weights at other addresses take other paths through torch's kernels, which then round
    differently: a loaded model repeats its values exactly and its results only nearly.
    """
    largest = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * largest)


def raw_header(path: Path) -> dict[str, Any]:
    """Parse the header with nothing but json."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
    return header


def names_in(paths: Iterable[Path]) -> set[str]:
    """Return the tensor names in some files."""
    return {name for path in paths for name in raw_header(path) if name != "__metadata__"}


def assert_files_hold(paths: Iterable[Path], expected: Mapping[str, torch.Tensor]) -> None:
    """Read files by hand and demand exactly these tensors, each once."""
    seen: set[str] = set()
    for path in paths:
        content = path.read_bytes()
        header = raw_header(path)
        header.pop("__metadata__", None)
        data = 8 + int.from_bytes(content[:8], "little")
        assert data % 8 == 0
        for name, entry in header.items():
            assert name not in seen, f"{name} is in two files"
            seen.add(name)
            begin, end = entry["data_offsets"]
            assert entry["dtype"] == _FORMAT_NAMES[expected[name].dtype], name
            assert entry["shape"] == list(expected[name].shape), name
            assert content[data + begin : data + end] == raw_bytes(expected[name]), name
    assert seen == set(expected)


def shards_of(folder: Path, stem: str = "model") -> list[Path]:
    """Return the shard files that an index names, after checking the index against them."""
    index = json.loads((folder / f"{stem}.safetensors.index.json").read_text())
    weight_map: dict[str, str] = index["weight_map"]
    files = sorted({folder / name for name in weight_map.values()})
    for file in files:
        named = {name for name, holder in weight_map.items() if holder == file.name}
        assert named == names_in([file]), file.name
    return files
