"""Tiny models of transformers, and their GGUF files as llama.cpp's own converter writes them.

The converter is in the sources of llama.cpp, whose folder SAFETENSORS_LLAMA_CPP names; PYTHONPATH
has their gguf-py.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from .tiny_models import COMMON, OMIT, Tiny

SOURCES = os.environ.get("SAFETENSORS_LLAMA_CPP")


def without_omitted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not OMIT}


def rename(path: Path, names: tuple[str, str]) -> None:
    tensors = {re.sub(*names, name): each.copy() for name, each in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


def make(tiny: Tiny, folder: Path) -> Any:
    """Returns a model with random weights, also of norms and biases, saved in the folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, f"{tiny.name}{tiny.head}")
    settings = {**COMMON, **tiny.changes}
    if "text_config" in tiny.changes:
        settings = {**tiny.changes, "text_config": {**COMMON, **tiny.changes["text_config"]}}
        settings["text_config"] = without_omitted(settings["text_config"])
    settings = without_omitted(settings)
    config = getattr(transformers, tiny.config or f"{tiny.name}Config")(**settings)
    model = kind(config).eval()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                values.add_(torch.rand_like(values))
            elif values.dim() == 1 and isinstance(values, torch.nn.Parameter):
                # Steps of which one more and one less are exact.
                values.add_((torch.randn_like(values) * 100).round() / 1024)
            elif isinstance(values, torch.nn.Parameter) and not 1e-3 < values.std() < 10:
                values.copy_(torch.randn_like(values) / 50)  # it was not initialised
    for name, values in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # the converter stores it in F16
            values.data.copy_(values.half())
    model.save_pretrained(folder)
    if tiny.transposed:
        tensors = load_file(folder / "model.safetensors")
        for name in tensors:
            if re.search(tiny.transposed, name):
                tensors[name] = tensors[name].swapaxes(-1, -2).copy()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if tiny.published[0]:
        rename(folder / "model.safetensors", tiny.published)
    # The converters of Gemma count the tokens.
    tokens = {str(i): i for i in range(COMMON["vocab_size"])}
    table = {"model": {"vocab": tokens, "type": "WordPiece"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(table))
    tokens = {"added_tokens_decoder": {"3": {"content": "[IMG_BREAK]"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    size = {"longest_edge": 16, "shortest_edge": 4}
    images = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return model


def whole(modify: Any) -> Any:
    """Returns a generator function that also yields what another one returns, which the converter
    of StableLM forgets."""

    def changed(*args: Any) -> Any:
        more = yield from modify(*args)
        yield from more or ()

    return changed


@contextlib.contextmanager
def as_published(folder: Path, tiny: Tiny) -> Iterator[None]:
    """A checkpoint has the configuration and the names that the converter reads."""
    paths = [folder / "config.json", folder / "model.safetensors"]
    saved = {path: path.read_bytes() for path in paths}
    raw = without_omitted({**json.loads(saved[paths[0]]), **tiny.raw})
    paths[0].write_text(json.dumps(raw))
    if tiny.hub[0]:
        rename(paths[1], tiny.hub)
    try:
        yield
    finally:
        for path, data in saved.items():
            path.write_bytes(data)


def to_gguf(folder: Path, target: Path, tiny: Tiny, fuses: bool = False) -> Path:
    """Converts a checkpoint to a GGUF file of F32, without a vocabulary. If `fuses`, with the
    options --fuse-qkv and, for architectures that have it, --fuse-gate-up-exps."""
    assert SOURCES is not None
    sys.path.insert(0, SOURCES)
    try:
        import conversion
        import gguf
        import torch

        with (
            as_published(folder, tiny),
            torch.inference_mode(),
            contextlib.redirect_stdout(sys.stderr),
        ):
            hparams = {**conversion.ModelBase.load_hparams(folder, False), **tiny.raw}
            hparams = without_omitted(hparams)
            options = {"hparams": hparams} if tiny.raw else {}
            types = conversion.ModelType
            kind = types.MMPROJ if tiny.is_tower else types.TEXT
            name = conversion.get_model_architecture(hparams, kind)
            found = conversion.get_model_class(name, mmproj=tiny.is_tower)
            found.no_mtp = True  # it takes a configuration without a number for one layer more
            converter = found(folder, gguf.LlamaFileType.ALL_F32, target, **options)
            converter = getattr(converter, "impl", converter)
            kinds = gguf.MODEL_TENSORS[converter.model_arch]
            converter.fuse_qkv = fuses
            converter.fuse_gate_up_exps = fuses and gguf.MODEL_TENSOR.FFN_GATE_UP_EXP in kinds
            converter.modify_tensors = whole(converter.modify_tensors)
            if not tiny.is_tower:
                writer = converter.gguf_writer
                converter.set_vocab = lambda: writer.add_tokenizer_model(tiny.tokenizer)
            converter.write()
    finally:
        sys.path.remove(SOURCES)
    return target
