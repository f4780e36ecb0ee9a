"""Names of Hugging Face for the canonical names of a GGUF file."""

import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ._hf_tables import TABLES

# What a checkpoint has in config.json, and a GGUF file as tensors.
_IN_CONFIG = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
_IN_LAYER = re.compile(r"layers\.([0-9]+)\.(.+)")
_OF_EXPERT = re.compile(r"(.*\.experts\.)(?:([0-9]+)\.)?([a-z]+\.[a-z]+)")
# Of an embedding, PEFT has other names, and GGUF the transposed matrix.
_OF_ADAPTER = re.compile(r"(layers\..+\.weight)\.lora_([ab])")
_PARAMS = ("weight", "bias")
_NEXTN_ELSEWHERE = ("qwen3next", "qwen35", "qwen35moe")


class HfName(NamedTuple):
    """A name, or those of the experts that a tensor stacks."""

    name: str
    """For a stack, `{}` is the number of an expert."""
    is_stack: bool = False


class HfNames:
    """The names of the checkpoints of an architecture."""

    def __init__(self, architecture: Optional[str], canonical: Iterable[str]) -> None:
        """Requires: is_known(architecture)."""
        self._table = TABLES[architecture or ""]
        self.left: Set[str] = set()
        """Layers without names: those that predict further tokens are outside of `model` in some
        checkpoints."""
        if architecture in _NEXTN_ELSEWHERE:
            places = (place_of(name) for name in canonical)
            self.left = {start for start, rest in places if rest.startswith("nextn.")}

    @staticmethod
    def is_known(architecture: Optional[str]) -> bool:
        return architecture in TABLES

    @staticmethod
    def is_left_out(canonical: str) -> bool:
        """Returns whether a checkpoint has no such tensor."""
        return canonical in _IN_CONFIG

    def of(self, canonical: str) -> Optional[HfName]:
        """Returns the name of a tensor, or None if there is no rule for it."""
        adapter = _OF_ADAPTER.fullmatch(canonical)
        if adapter is not None:
            weight = self.of(adapter[1])
            if weight is None or weight.is_stack:
                return None
            module = weight.name.removesuffix(".weight")
            return HfName(f"base_model.model.{module}.lora_{adapter[2].upper()}.weight")
        match = _IN_LAYER.fullmatch(canonical)
        if match is not None and f"layers.{match[1]}." in self.left:
            return None
        layer, pattern = ("", canonical) if match is None else (match[1], f"#.{match[2]}")
        found = self._find(pattern)
        if found is not None:
            return HfName(_spelled(found, layer))
        of_expert = _OF_EXPERT.fullmatch(pattern)
        if of_expert is None:
            return None
        start, which, part = of_expert.groups()
        found = self._find(f"{start}#.{part}")
        if found is None:
            return None
        head, _, tail = found.rpartition(".#.")
        return HfName(_spelled(f"{head}.{which or '{}'}.{tail}", layer), which is None)

    def _find(self, pattern: str) -> Optional[str]:
        """Returns the name of a tensor, or of the only one of a module without a parameter."""
        module, _, param = pattern.rpartition(".")
        if param in (*_PARAMS, "scale"):
            whole = self._table.get(pattern)
            if whole is None and module in self._table and param in _PARAMS:
                whole = f"{self._table[module]}.{param}"
            return whole
        found = (self._table.get(f"{pattern}.{each}") for each in _PARAMS)
        return next((name for name in found if name is not None), None)


_KINDS = {
    "hf": ("Hugging Face's name", "Hugging Face's names"),
    "canonical": ("a canonical name", "canonical names"),
    "own": ("its name in the file", "their names in the file"),
}


class NameCounts:
    """How many tensors of a GGUF file get which names."""

    def __init__(self) -> None:
        self._counts: Dict[str, int] = dict.fromkeys(_KINDS, 0)

    def add(self, kind: str) -> None:
        self._counts[kind] += 1

    @property
    def counts(self) -> Dict[str, int]:
        return {kind: count for kind, count in self._counts.items() if count}

    def notes(self, unknown: Optional[str]) -> List[str]:
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


def _spelled(name: str, layer: str) -> str:
    return f"model.layers.{layer}.{name[2:]}" if name.startswith("#.") else name


def place_of(canonical: str) -> Tuple[str, str]:
    """Returns the beginning of a name with its layer, and the rest."""
    match = _IN_LAYER.fullmatch(canonical)
    return ("", canonical) if match is None else (f"layers.{match[1]}.", match[2])
