"""Writes weights/src/names/tables.inc: the tables of names and architectures of the weight layer.

    PYTHONPATH=DIR/gguf-py python weights/scripts/gen_weight_tables.py DIR

DIR has the sources of llama.cpp: the sdist of llama-cpp-python 0.3.36 contains them in
vendor/llama.cpp. Names come from their gguf-py, which is newer than the released package gguf, and
styles of rotary embedding from their C++. The canonical names, and facts that neither states, are
in weights/scripts/weight_rules.py. Run this after a change of that file, and with newer sources.
"""

import argparse
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import gguf
import weight_rules as rules
from gguf.constants import MODEL_ARCH_NAMES, TENSOR_NAMES
from gguf.tensor_mapping import TensorNameMap

TABLES = Path(__file__).parents[1] / "src" / "names" / "tables.inc"
HEAD = """// Names and architectures. Written by weights/scripts/gen_weight_tables.py with the
// llama.cpp of llama-cpp-python 0.3.36.
//
// A table has the texts of its rows, sorted and without separators, and rows that begin with the
// end of their text. The comment of a text says what it stands for.
// clang-format off
"""


def numbered(pattern: str) -> list[str]:
    """Returns the patterns with `#` for gguf-py's {bid} and {xid}.

    Where {bid} is part of a word, such as linear_{bid}, they are those for the numbers 0 to 2.
    """
    whole = re.sub(r"(^|\.)\{[bx]id\}(?=\.|$)", r"\1#", pattern)
    if "{bid}" not in whole:
        return [whole]
    return [whole.replace("{bid}", str(number)) for number in range(3)]


def gguf_names() -> dict[str, str | None]:
    patterns = {numbered(name)[0] for name in TENSOR_NAMES.values()}
    patterns |= {f"blk.#.{leaf}" for leaf in rules.LAYER}
    return {pattern: rules.canonical_of_gguf(pattern) for pattern in patterns}


def hf_pattern(name: str) -> str:
    """Returns a name of gguf-py without "model." and the parameter that some of them have."""
    return name.removeprefix("model.").removesuffix(".weight")


def hf_names() -> dict[str, str | None]:
    found: dict[str, set[str | None]] = defaultdict(set)
    maps = [TensorNameMap.mappings_cfg, TensorNameMap.block_mappings_cfg]
    maps += TensorNameMap.arch_block_mappings_cfg.values()
    for tensors in maps:
        for tensor, names in tensors.items():
            ours = rules.canonical_of_gguf(numbered(TENSOR_NAMES[tensor])[0])
            for name in names:
                patterns = numbered(hf_pattern(name))
                for number, pattern in enumerate(patterns):
                    single = len(patterns) == 1 or ours is None
                    found[pattern].add(ours if single else ours.replace("#", str(number)))
    table = dict(rules.HF)
    for pattern, names in found.items():
        if pattern in rules.HF or pattern in rules.HF_SKIPPED:
            continue
        if len(names) != 1:
            sys.exit(f"gguf-py has several meanings of {pattern}: {sorted(map(str, names))}")
        table[pattern] = names.pop()
    for pattern, ours in list(table.items()):
        expert = re.sub(r"\.experts\.(?=\w+$)", ".experts.#.", pattern)
        if ours and expert != pattern and re.fullmatch(r"layers\.#\.ffn\.experts\.\w+", ours):
            table.setdefault(expert, ours.replace(".experts.", ".experts.#."))
    for pattern, ours in list(table.items()):
        for start, other in rules.HF_BEGINNINGS.items():
            if pattern.startswith(start):
                table.setdefault(other + pattern.removeprefix(start), ours)
    return table


def llama_cpp_ropes(source: Path) -> dict[str, str]:
    """Returns the rule of rotary embedding for each architecture of llama.cpp.

    In llama_model_rope_type, groups of cases precede a `return`, or code with conditions.
    """
    arch_names = (source / "src" / "llama-arch.cpp").read_text()
    names = dict(re.findall(r'\{ (LLM_ARCH_\w+), +"([\w-]+)" +\}', arch_names))
    text = (source / "src" / "llama-model.cpp").read_text()
    start = text.index("llama_rope_type llama_model_rope_type(")
    body = re.sub(r"//.*", "", text[start : text.index("\n}\n", start)])
    styles = {"NONE": "none", "NORM": "interleaved", "NEOX": "half"}
    styles |= {"MROPE": "mrope", "IMROPE": "imrope"}
    ropes: dict[str, str] = {}
    for cases, code in re.findall(r"((?:case \w+:\s*)+)(.*?)(?=case |$)", body, re.DOTALL):
        plain = re.match(r"return LLAMA_ROPE_TYPE_(\w+);", code)
        for arch in re.findall(r"case (\w+):", cases):
            if arch not in names:
                continue  # the value for unknown names
            name = names[arch]
            if plain:
                ropes[name] = styles[plain[1]]
            elif name not in rules.ROPE:
                sys.exit(f"weights/scripts/weight_rules.py has no ROPE for {name}: {code.strip()}")
    return ropes


def split_words(table: dict[str, str]) -> dict[str, str]:
    return {word: key for key, words in table.items() for word in words.split()}


def as_table(name: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Returns the C++ of a table whose rows have a text, other values, and a comment."""
    text, body, end = [], [], 0
    for key, values, comment in sorted(rows):
        text.append(f'    "{key}"' + (f"  // {comment}" if comment else ""))
        end += len(key)
        body.append(f"{{{end}, {values}}}" if values else f"{{{end}}}")
    assert end < 1 << 16
    # A no-break space keeps a row on one line.
    lines = textwrap.wrap(", ".join(row.replace(" ", "\xa0") for row in body), 96)
    return (
        f"constexpr char k{name}Text[] =\n" + "\n".join(text) + "\n    ;\n"
        f"constexpr {name}Row k{name}Rows[] = {{\n    "
        + "\n    ".join(lines).replace("\xa0", " ")
        + "};\n"
    )


def tables(llama_cpp: Path) -> str:
    if not Path(gguf.__file__).is_relative_to(llama_cpp.resolve()):
        sys.exit(f"PYTHONPATH has no {llama_cpp}/gguf-py: found {gguf.__file__}")
    stored, hf = gguf_names(), hf_names()
    canonical = sorted({name for name in [*stored.values(), *hf.values()] if name})
    number = {name: i for i, name in enumerate(canonical)}

    def names(table: dict[str, str | None]) -> list[tuple[str, str, str]]:
        left_out = len(canonical)
        return [
            (key, str(number[ours] if ours else left_out), ours or "left out")
            for key, ours in table.items()
        ]

    ropes = llama_cpp_ropes(llama_cpp)
    for arch in MODEL_ARCH_NAMES.values():
        if arch not in ropes and arch not in rules.ROPE:
            sys.exit(f"the rotary embedding of {arch} is not known")
    ropes = {arch: rope for arch, rope in (ropes | rules.ROPE).items() if rope}
    conversion, norms = split_words(rules.CONVERSION), split_words(rules.HF_NORM)
    architectures = []
    for arch, rope in ropes.items():
        fused = str(arch in rules.FUSED_UP.split()).lower()
        change = conversion.get(arch, "unrecorded")
        architectures.append(
            (arch, f"RopeRule::{rope}, Conversion::{change}, {fused}", f"GGUF: {rope}, {change}")
        )
    types = []
    for name, rope in split_words(rules.HF_ROPE).items():
        norm, tells = norms.get(name, "zero"), str(name in rules.NORMS_TELL.split()).lower()
        types.append((name, f"RopeRule::{rope}, NormRule::{norm}, {tells}", f"{rope}, {norm}"))
    return "\n".join(
        [
            HEAD,
            "// Canonical modules; # stands for a number of the source. One more row is empty.",
            as_table("Canonical", [(name, "", "") for name in canonical]),
            "// Modules of GGUF, with the numbers of their canonical modules.",
            as_table("Gguf", names(stored)),
            "// Modules of Hugging Face and MLX, likewise.",
            as_table("Hf", names(hf)),
            "// Architectures of GGUF: rotary embedding, conversion, whether ffn_up has the gate.",
            as_table("Architecture", architectures),
            "// Model types of config.json: rotary embedding, norms, whether norms tell.",
            as_table("ModelType", types),
            "// clang-format on\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path, metavar="DIR", help="sources of llama.cpp")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it differs")
    options = parser.parse_args()
    text = tables(options.llama_cpp)
    if not options.check:
        TABLES.write_text(text)
    elif TABLES.read_text() != text:
        sys.exit(f"{TABLES} is not what the script writes")


if __name__ == "__main__":
    main()
