"""Writes python/safetensors/weights/_hf_tables.py: names of Hugging Face for architectures of GGUF.

    python weights/scripts/gen_hf_names.py

For each architecture, it makes small models of transformers' own classes (5.23, which needs to be
installed, and torch), saves them, and asks the weight layer for the canonical names of the tensors
that they have. The models are those of weights/tests/python/weights_support/tiny_models.py.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "python" / "safetensors" / "weights" / "_hf_tables.py"
HEAD = '''"""Names of Hugging Face, by architecture of GGUF and canonical name.

Written by weights/scripts/gen_hf_names.py. `#.` at the beginning stands for `layers.N.` and for
`model.layers.N.`, `#` elsewhere for a number of both names: of a layer, an expert, or a part of a
stack. A name that ends in `.weight`, `.bias` or `.scale` is that of one tensor, the others are
modules. Where models of an architecture have different names, the key has a variant
after a colon.
"""

# ruff: noqa: E501

TABLES: dict[str, dict[str, str]] = {
'''
#: Architectures whose code is not a part of transformers, and those with the same names.
SAME = {"dream": "qwen2", "minicpm": "smollm3", "deepseek": "dots1"}


#: Names that the weight layer does not map, because other models use them otherwise, or because
#: the GGUF file has the module under another name.
EXTRA = {
    "granite_swa": {"#.ffn.shared_expert.up": "#.shared_mlp.input_linear"},
    "granitehybrid": {
        "#.ffn.down": "#.shared_mlp.output_linear",
        "#.ffn.gate_up": "#.shared_mlp.input_linear",
    },
    "t5": {"token_embedding": "shared"},
    "t5:relu": {"token_embedding": "shared"},
    "t5encoder": {"token_embedding": "shared"},
    "t5encoder:relu": {"token_embedding": "shared"},
}
#: Names in EXTRA, and parameters that GGUF files have in their metadata.
ELSEWHERE = r"^shared\.weight$|\.act_fn\."


def patterns_of(ours: str, theirs: str) -> tuple[str, str]:
    """Returns the names with `#` for the numbers of both, such as those of layers and experts."""
    numbers = re.compile(r"(?<=\.)\d+(?=\.|$)")
    count = len(numbers.findall(ours))
    if 0 < count <= len(numbers.findall(theirs)):
        ours, theirs = numbers.sub("#", ours), numbers.sub("#", theirs, count)
    return re.sub(r"^layers\.#\.", "#.", ours), re.sub(r"^model\.layers\.#\.", "#.", theirs)


def names_of(folder: Path, lost: str) -> dict[str, str]:
    """Returns the name of each module of a checkpoint by its canonical name."""
    from safetensors.weights import open_weights

    found = {}
    with open_weights(folder) as weights:
        unknown = [name for name in weights.unmapped if not re.match(lost, name)]
        unknown = [name for name in unknown if not re.search(ELSEWHERE, name)]
        if unknown:
            sys.exit(f"{folder.name}: no canonical name of {unknown}")
        for name in weights:
            if re.match(lost, weights[name].source):
                continue
            ours, theirs = patterns_of(name, weights[name].source)
            module, _, param = ours.rpartition(".")
            if param in ("weight", "bias") and theirs.endswith(f".{param}"):
                found[module] = theirs.removesuffix(f".{param}")
            elif param in ("weight", "bias", "scale"):
                found[ours] = theirs
            else:  # GGUF gives a parameter without a name this one
                found[f"{ours}.weight"] = theirs
    return found


def tables() -> dict[str, dict[str, str]]:
    sys.path.insert(0, str(ROOT / "weights" / "tests" / "python"))
    from weights_support.llama_cpp import make
    from weights_support.tiny_models import MODELS

    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as top:
        for name, tiny in MODELS.items():
            make(tiny, Path(top) / name)
            table = found.setdefault(tiny.architecture or name, {})
            for ours, theirs in names_of(Path(top) / name, tiny.lost).items():
                if table.setdefault(ours, theirs) != theirs:
                    sys.exit(f"{name}: {ours} is {theirs}, and elsewhere {table[ours]}")
    for name, other in SAME.items():
        found[name] = found[other]
    for name, extra in EXTRA.items():
        found[name] = {**found[name], **extra}
    return dict(sorted(found.items()))


def text_of(found: dict[str, dict[str, str]]) -> str:
    lines = [HEAD]
    for name, table in found.items():
        lines.append(f'    "{name}": {{\n')
        lines += [f'        "{ours}": "{theirs}",\n' for ours, theirs in sorted(table.items())]
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it differs")
    options = parser.parse_args()
    found = text_of(tables())
    if not options.check:
        TARGET.write_text(found)
    elif TARGET.read_text() != found:
        sys.exit(f"{TARGET} is not what the script writes")


if __name__ == "__main__":
    main()
