"""Names of Hugging Face for the canonical names of a GGUF file."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ._hf_tables import TABLES
from ._model import Weights

# What a checkpoint has in config.json, and a GGUF file as tensors.
_IN_CONFIG = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
# The converter writes the scale of Muse Glimmer's scores as norms of queries and keys.
_SCALE = re.compile(r"layers\.[0-9]+\.attention\.[qk]_norm\.weight")
_IN_LAYER = re.compile(r"layers\.([0-9]+)\.(.+)")
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
_MAX_NUMBERS = 3
_OF_EXPERTS = re.compile(r"\.experts\.(?=[a-z_]+\.[a-z]+$)")
# Of an embedding, PEFT has other names, and GGUF the transposed matrix.
_OF_ADAPTER = re.compile(r"(layers\..+\.weight)\.lora_([ab])")
_DEEPSTACK = re.compile(r"vision\.deepstack\.([0-9]{1,6})\.")
_PARAMS = ("weight", "bias")
_NEXTN_ELSEWHERE = ("qwen3next", "qwen35", "qwen35moe")


class HfName(NamedTuple):
    """A name, or those of the tensors that one tensor stacks, such as experts."""

    name: str
    """For a stack, `{}` is the number of a part."""
    is_stack: bool = False


class HfNames:
    """The names of the checkpoints of an architecture."""

    def __init__(self, weights: Weights) -> None:
        """Requires: is_known(weights)."""
        self._table = TABLES[_table_of(weights)]
        self._has_scale = weights.config.architecture == "muse-glimmer"
        self.left: set[str] = set()
        """Layers without names: those that predict further tokens are outside of `model` in some
        checkpoints."""
        architecture, tokenizer = weights.config.architecture, "tokenizer.ggml.model"
        if architecture in _NEXTN_ELSEWHERE:
            places = (place_of(name) for name in weights)
            self.left = {start for start, rest in places if rest.startswith("nextn.")}
        found = (_DEEPSTACK.match(name) for name in weights)
        self._deepstack = sorted({int(match[1]) for match in found if match})
        """Layers whose output a merger takes: checkpoints number the mergers, and files have the
        number of the layer."""
        self._cut: set[str] = set()
        """Tensors without names: the converter drops the first rows of RoBERTa's positions."""
        if architecture == "bert" and weights.metadata.get(tokenizer) != "bert":
            self._cut = {"position_embedding.weight"}

    @staticmethod
    def is_known(weights: Weights) -> bool:
        return _table_of(weights) in TABLES

    def is_left_out(self, canonical: str) -> bool:
        """Returns whether a checkpoint has no such tensor."""
        is_scale = self._has_scale and _SCALE.fullmatch(canonical) is not None
        return canonical in _IN_CONFIG or is_scale

    def of(self, canonical: str) -> HfName | None:
        """Returns the name of a tensor, or None if there is no rule for it."""
        adapter = _OF_ADAPTER.fullmatch(canonical)
        if adapter is not None:
            weight = self.of(adapter[1])
            if weight is None or weight.is_stack:
                return None
            module = weight.name.removesuffix(".weight")
            return HfName(f"base_model.model.{module}.lora_{adapter[2].upper()}.weight")
        match = _IN_LAYER.fullmatch(canonical)
        if canonical in self._cut or (match and f"layers.{match[1]}." in self.left):
            return None
        numbers = _NUMBER.findall(canonical)[:_MAX_NUMBERS]
        if _DEEPSTACK.match(canonical):
            numbers[0] = str(self._deepstack.index(int(numbers[0])))
        for count in range(len(numbers), -1, -1):
            pattern = _NUMBER.sub("#", canonical, count) if count else canonical
            module, _, param = pattern.rpartition(".")
            stacked = _OF_EXPERTS.sub(".experts.#.", pattern), f"{module}.#.{param}"
            for each in (pattern, *stacked):
                found = self._find(re.sub(r"^layers\.#\.", "#.", each))
                if found is not None:
                    return _spelled(found, numbers[:count])
        return None

    def _find(self, pattern: str) -> str | None:
        """Returns the name of a tensor, or of the only one of a module without a parameter."""
        module, _, param = pattern.rpartition(".")
        if param in (*_PARAMS, "scale"):
            whole = self._table.get(pattern)
            if whole is None and module in self._table and param in _PARAMS:
                whole = f"{self._table[module]}.{param}"
            return whole
        found = (self._table.get(f"{pattern}.{each}") for each in _PARAMS)
        return next((name for name in found if name is not None), None)


def _table_of(weights: Weights) -> str:
    """Returns the key of the table: an architecture, perhaps with one of its variants."""
    name = weights.config.architecture or ""
    if name == "bert" and "token_type_embedding.weight" not in weights:
        return "bert:distilbert"
    if name == "falcon" and "layers.0.attention_norm_2.weight" in weights:
        return "falcon:40b"
    if name in ("t5", "t5encoder") and "encoder.layers.0.ffn.gate.weight" not in weights:
        return f"{name}:relu"
    if name == "clip":  # a tower of images, whose names are those of its projector's class
        keys = ("clip.projector_type", "clip.vision.projector_type")
        return (
            f"clip:{next((weights.metadata[key] for key in keys if key in weights.metadata), '')}"
        )
    # Of the models with state spaces, only Bamba has a rotary embedding.
    if name == "granitehybrid" and weights.metadata.get(f"{name}.rope.scaling.finetuned"):
        return "granitehybrid:bamba"
    return name


_KINDS = {
    "hf": ("Hugging Face's name", "Hugging Face's names"),
    "canonical": ("a canonical name", "canonical names"),
    "own": ("its name in the file", "their names in the file"),
}


class NameCounts:
    """How many tensors of a GGUF file get which names."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(_KINDS, 0)

    def add(self, kind: str) -> None:
        self._counts[kind] += 1

    @property
    def counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self._counts.items() if count}

    def notes(self, unknown: str | None) -> list[str]:
        """Returns a line unless all names are Hugging Face's. `unknown` is an architecture whose
        names are not known."""
        counts = self.counts
        if not counts.keys() - {"hf"}:
            return []
        parts = [
            f"{count:,} {'has' if count == 1 else 'have'} {_KINDS[kind][count > 1]}"
            for kind, count in counts.items()
        ]
        total = sum(counts.values())
        text = f"of {total:,} tensor{'' if total == 1 else 's'}, {', '.join(parts)}"
        if unknown is not None:
            text += f": Hugging Face's are not known for `{unknown}`"
        return [text]


def _spelled(name: str, numbers: Sequence[str]) -> HfName:
    """Puts numbers into a name of a table."""
    if name.startswith("#."):
        name = f"model.layers.{name}"
    for number in numbers:
        name = name.replace("#", number, 1)
    return HfName(name.replace("#", "{}"), "#" in name)


def place_of(canonical: str) -> tuple[str, str]:
    """Returns the beginning of a name with its layer, and the rest."""
    match = _IN_LAYER.fullmatch(canonical)
    return ("", canonical) if match is None else (f"layers.{match[1]}.", match[2])
