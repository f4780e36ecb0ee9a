"""What holds the ABI of the C headers: the assertions that scripts/c_abi.py writes, and abidiff."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "c_abi.py"
CORE = "include/safetensors/safetensors.h"
WEIGHTS = "weights/include/safetensors/weights.h"
pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or shutil.which("cc") is None, reason="there is no compiler"
)

#: Structs of options and callbacks may grow at their end.
GROWTH = """\
[suppress_type]
  name_regexp = ^safetensors_(options|.*_options|watch|source|sink|allocator)$
  type_kind = struct
  has_data_member_inserted_at = end
"""


class Change(NamedTuple):
    """A change of a header: what it replaces and by what."""

    header: str
    old: str
    new: str
    #: Whether the ABI allows it.
    allowed: bool
    #: Whether abidiff finds nothing. It sees no numbers of constants, nor what only a struct that
    #: may grow points to: its callbacks, and an allocator.
    passes: bool


CHANGES = {
    "nothing": Change(CORE, "int32_t", "int32_t", True, True),
    "nothing of the weight layer": Change(WEIGHTS, "int32_t", "int32_t", True, True),
    "a member at the end of options": Change(
        CORE,
        r"(const safetensors_sums\* sums;)(\s*\} safetensors_options)",
        r"\1 uint64_t later;\2",
        True,
        True,
    ),
    "a member before others of options": Change(
        CORE,
        r"(const safetensors_sums\* sums;\s*\} safetensors_options)",
        r"uint64_t earlier; \1",
        False,
        False,
    ),
    "a member at the end of an allocator": Change(
        WEIGHTS, r"(\} safetensors_allocator;)", r"uint64_t later; \1", True, True
    ),
    "a member before others of an allocator": Change(
        WEIGHTS, r"void\* \(\*allocate\)", r"uint64_t earlier; \g<0>", False, True
    ),
    "a tensor that grows": Change(
        CORE, r"uint32_t file;(\s*\} safetensors_tensor)", r"uint32_t file, later;\1", False, False
    ),
    "a weight that grows": Change(
        WEIGHTS, r"(\} safetensors_weight;)", r"uint64_t later; \1", False, False
    ),
    "members that change places": Change(
        CORE,
        r"int32_t os_error;\s*int32_t detail;",
        "int32_t detail; int32_t os_error;",
        False,
        False,
    ),
    "a code of another number": Change(
        CORE, "SAFETENSORS_STOPPED = -2", "SAFETENSORS_STOPPED = -3", False, True
    ),
    "a macro of another number": Change(
        CORE, r"(#define SAFETENSORS_AS_STORED) \(-1\)", r"\1 (-2)", False, True
    ),
    "a size that texts do not have": Change(
        CORE, r"(#define SAFETENSORS_NUL_TERMINATED) SIZE_MAX", r"\1 (SIZE_MAX - 1)", False, True
    ),
    "a macro of the weight layer of another number": Change(
        WEIGHTS, r"(#define SAFETENSORS_ALL_ROWS) \(-1\)", r"\1 (-2)", False, True
    ),
    "a code more": Change(
        CORE,
        "SAFETENSORS_INTERNAL = -1",
        "SAFETENSORS_LATER = 99, SAFETENSORS_INTERNAL = -1",
        True,
        True,
    ),
    "a function less": Change(
        CORE, r"SAFETENSORS_API void safetensors_close\([^;]*;", "", False, False
    ),
    "a function more": Change(
        CORE,
        "SAFETENSORS_API void safetensors_close",
        r"SAFETENSORS_API void safetensors_later(void); \g<0>",
        True,
        True,
    ),
    "a narrower argument": Change(
        CORE,
        r"(safetensors_writer_write\([^;]*)uint64_t begin",
        r"\1uint32_t begin",
        False,
        False,
    ),
    "a narrower argument of the weight layer": Change(
        WEIGHTS,
        r"(safetensors_weights_decode\([^;]*)int64_t rows",
        r"\1int32_t rows",
        False,
        False,
    ),
    "a callback with another argument": Change(
        CORE,
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


def write_headers(folder, change=None):
    """Copies the headers, without comments, and with a change."""
    script = load_script()
    (folder / "safetensors").mkdir(parents=True)
    for name in ("version.h", "export.hpp"):
        shutil.copy(ROOT / "include" / "safetensors" / name, folder / "safetensors")
    for header in script.KEPT:
        text = script.text_of(ROOT / header)
        if change is not None and change.header == header:
            text, count = re.subn(change.old, change.new, text, count=1)
            assert count == 1
        (folder / "safetensors" / Path(header).name).write_text(text, encoding="utf-8")


def build_library(folder, change=None):
    """Builds a library whose functions do nothing, of headers with a change."""
    script = load_script()
    write_headers(folder, change)
    source = ['#include "safetensors/weights.h"\n']
    for header in script.KEPT:
        code = script.code_of(script.text_of(folder / "safetensors" / Path(header).name))
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
    change = CHANGES[name]
    write_headers(tmp_path, change)
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{tmp_path}"]
    kept = ROOT / load_script().KEPT[change.header]
    done = subprocess.run([*command, kept], capture_output=True, check=False)
    assert (done.returncode == 0) == change.allowed


@pytest.mark.skipif(shutil.which("abidiff") is None, reason="there is no abidiff (abigail-tools)")
@pytest.mark.parametrize("name", CHANGES)
def test_abidiff_agrees(name, tmp_path):
    change = CHANGES[name]
    libraries = [build_library(tmp_path / "old"), build_library(tmp_path / "new", change)]
    growth = tmp_path / "growth"
    growth.write_text(GROWTH, encoding="utf-8")
    command = ["abidiff", "--no-added-syms", "--suppressions", growth]
    done = subprocess.run([*command, *libraries], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == change.passes, done.stdout
