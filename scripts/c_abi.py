"""Writes what holds the ABI of the C headers: assertions that a changed header breaks.

    python scripts/c_abi.py            write the files in KEPT
    python scripts/c_abi.py --check    fail if they differ from what would be written

Each file asserts every constant, of enums and macros, the type of every function, the offset and
type of every member, and the size of every struct but those that may grow, which begin with `size`.
A file is written anew to add what is new. Any other difference is a break of the ABI, for which
SAFETENSORS_ABI_VERSION rises.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: For each header the file that holds it.
KEPT = {
    "include/safetensors/safetensors.h": "tests/cpp/c_abi.cpp",
    "weights/include/safetensors/weights.h": "weights/tests/cpp/c_weights_abi.cpp",
}
HEAD = """\
// clang-format off
// Written by scripts/c_abi.py from {header}: do not edit. What programs were
// compiled with must stay as it was, until SAFETENSORS_ABI_VERSION rises.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "{include}"

#if UINTPTR_MAX == UINT64_MAX
"""


def text_of(header: Path) -> str:
    """Returns a header without comments."""
    return re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)


def code_of(text: str) -> str:
    """Returns a header without directives."""
    return re.sub(r"^\s*#.*?(?<!\\)$", "", text, flags=re.MULTILINE | re.DOTALL)


def members_of(body: str) -> dict[str, str]:
    """Returns the members of a struct, each with its type."""
    members = {}
    for member in filter(None, (" ".join(each.split()) for each in body.split(";"))):
        found = re.search(r"(?<=\(\*)\w+(?=\)\()", member) or re.search(
            r"\w+(?=\s*(\[[^]]*\])?$)", member
        )
        members[found[0]] = (member[: found.start()] + member[found.end() :]).strip()
    return members


def structs_of(code: str) -> dict[str, dict[str, str]]:
    """Returns the structs that a header defines, each with its members."""
    found = re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", code, flags=re.DOTALL)
    return {name: members_of(body) for body, name in found}


def numbers_of(text: str) -> list[str]:
    """Returns the C expressions whose values are asserted."""
    code = code_of(text)
    expressions = re.findall(r"^#define (SAFETENSORS_\w+) +\S", text, flags=re.MULTILINE)
    for body in re.findall(r"\benum\s*\{(.*?)\}", code, flags=re.DOTALL):
        expressions += re.findall(r"\b(SAFETENSORS_\w+)\s*=", body)
    for name, members in structs_of(code).items():
        expressions += [] if next(iter(members)) == "size" else [f"sizeof({name})"]
        expressions += [f"offsetof({name}, {member})" for member in members]
    return expressions


def values_of(expressions: list[str], include: str) -> list[str]:
    """Asks a C compiler for values, and returns them as literals."""
    prints = "".join(
        f'printf(({each}) > INT64_MAX ? "%lluu\\n" : "%lld\\n", (long long)({each}));'
        for each in expressions
    )
    program = (
        f"#include <stdio.h>\n#include <stddef.h>\n"
        f'#include "{include}"\nint main(void) {{ {prints} return 0; }}\n'
    )
    folders = [f"-I{ROOT / folder}" for folder in ("include", "weights/include")]
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "probe"))
        command = ["cc", "-std=c99", *folders, "-x", "c", "-", "-o", target]
        subprocess.run(command, input=program, text=True, check=True)
        printed = subprocess.run([target], capture_output=True, text=True, check=True).stdout
    return printed.split()


def assertions_of(header: str) -> str:
    """Returns the file that holds a header."""
    text = text_of(ROOT / header)
    code = code_of(text)
    include = header.partition("include/")[2]
    lines = [HEAD.format(header=header, include=include)]
    expressions = numbers_of(text)
    for expression, value in zip(expressions, values_of(expressions, include), strict=True):
        lines.append(f"static_assert({expression} == {value});\n")
    for name, members in structs_of(code).items():
        for member, kind in members.items():
            lines.append(f"static_assert(std::is_same_v<decltype({name}::{member}), {kind}>);\n")
    for declaration in re.findall(r"SAFETENSORS_API\s+(.*?);", code, flags=re.DOTALL):
        words = " ".join(declaration.split())
        result, name, arguments = re.match(r"(.*?)\s*\b(\w+)\((.*)\)$", words).groups()
        lines.append(f"static_assert(std::is_same_v<decltype({name}), {result}({arguments})>);\n")
    lines.append("#endif\n")
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    status = 0
    for header, name in KEPT.items():
        path = ROOT / name
        text = assertions_of(header)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{name} is not what scripts/c_abi.py writes of {header}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
