"""What holds the ABI of the C headers: the assertions that scripts/c_abi.py writes, and abidiff."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "c_abi.py"
HEADER = "safetensors/safetensors.h"
pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or shutil.which("cc") is None, reason="there is no compiler"
)

#: Structs of options and callbacks may grow at their end.
GROWTH = """\
[suppress_type]
  name_regexp = ^safetensors_(options|.*_options|watch|source|sink)$
  type_kind = struct
  has_data_member_inserted_at = end
"""
#: A change of the header: what it replaces and by what, whether the ABI allows it, and whether
#: abidiff does. It does not see numbers of enumerators, nor callbacks of structs that may grow.
CHANGES = {
    "nothing": ("int32_t", "int32_t", True, True),
    "a member at the end of options": (
        r"(const safetensors_sums\* sums;)(\s*\} safetensors_options)",
        r"\1 uint64_t later;\2",
        True,
        True,
    ),
    "a member before others of options": (
        r"(const safetensors_sums\* sums;\s*\} safetensors_options)",
        r"uint64_t earlier; \1",
        False,
        False,
    ),
    "a tensor that grows": (
        r"uint32_t file;(\s*\} safetensors_tensor)",
        r"uint32_t file, later;\1",
        False,
        False,
    ),
    "members that change places": (
        r"int32_t os_error;\s*int32_t detail;",
        "int32_t detail; int32_t os_error;",
        False,
        False,
    ),
    "a code of another number": (
        "SAFETENSORS_STOPPED = -2",
        "SAFETENSORS_STOPPED = -3",
        False,
        True,
    ),
    "a code more": (
        "SAFETENSORS_INTERNAL = -1",
        "SAFETENSORS_LATER = 99, SAFETENSORS_INTERNAL = -1",
        True,
        True,
    ),
    "a function less": (r"SAFETENSORS_API void safetensors_close\([^;]*;", "", False, False),
    "a function more": (
        "SAFETENSORS_API void safetensors_close",
        r"SAFETENSORS_API void safetensors_later(void); \g<0>",
        True,
        True,
    ),
    "a narrower argument": (
        r"(safetensors_writer_write\([^;]*)uint64_t begin",
        r"\1uint32_t begin",
        False,
        False,
    ),
    "a callback with another argument": (
        r"\(\*interrupt\)\(void\* context\)",
        "(*interrupt)(void* context, int32_t why)",
        False,
        True,
    ),
}


def load_script():
    spec = importlib.util.spec_from_file_location("c_abi", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed_header(folder, change):
    """Copies the headers, without comments and with a change."""
    script = load_script()
    (folder / "safetensors").mkdir(parents=True)
    for name in ("version.h", "export.hpp"):
        shutil.copy(ROOT / "include" / "safetensors" / name, folder / "safetensors")
    text = (ROOT / "include" / HEADER).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text, count = re.subn(change[0], change[1], text, count=1)
    assert count == 1
    (folder / HEADER).write_text(text, encoding="utf-8")
    return script.code_of(folder / HEADER)


def library_of(folder, code):
    """Builds a library whose functions do nothing."""
    source = [f'#include "{HEADER}"\n']
    for declaration in re.findall(r"SAFETENSORS_API\s+([^;]*);", code):
        returns = "" if declaration.startswith("void ") else "return 0;"
        source.append(f"{declaration} {{ {returns} }}\n")
    target = folder / "libstub.so"
    command = ["cc", "-std=c99", "-g", "-w", "-shared", "-fPIC", f"-I{folder}", "-x", "c", "-"]
    subprocess.run([*command, "-o", target], input="".join(source), text=True, check=True)
    return target


def test_assertions_are_those_of_the_headers():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), "run python scripts/c_abi.py"


@pytest.mark.parametrize("name", CHANGES)
def test_assertions_refuse_what_breaks_programs(name, tmp_path):
    changed_header(tmp_path, CHANGES[name])
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{tmp_path}"]
    done = subprocess.run(
        [*command, ROOT / "tests" / "cpp" / "c_abi.cpp"], capture_output=True, check=False
    )
    assert (done.returncode == 0) == CHANGES[name][2]


@pytest.mark.skipif(shutil.which("abidiff") is None, reason="there is no abidiff (abigail-tools)")
@pytest.mark.parametrize("name", CHANGES)
def test_abidiff_agrees(name, tmp_path):
    libraries = [
        library_of(tmp_path / each, changed_header(tmp_path / each, CHANGES[each]))
        for each in dict.fromkeys(("nothing", name))
    ]
    growth = tmp_path / "growth"
    growth.write_text(GROWTH, encoding="utf-8")
    command = ["abidiff", "--no-added-syms", "--suppressions", growth]
    done = subprocess.run(
        [*command, libraries[0], libraries[-1]], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == CHANGES[name][3], done.stdout
