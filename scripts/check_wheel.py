"""Checks wheels for Linux: what their modules export and need, and what the wheels say.

    python scripts/check_wheel.py PYTHON WHEEL...

PYTHON is an executable or libpython of the wheels' version of Python, of any processor. Each symbol
of Python that a module needs must be in its dynamic symbol table. Whether the versions of other
symbols fit the tag is for auditwheel to check. Needs pyelftools.
"""

from __future__ import annotations

import base64
import email
import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

MODULES = {
    "PyInit__core",
    "PyInit__extra",
    "PyInit__weights",
}  # of one file, whose name is the first's
DF_BIND_NOW = 0x8
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
LICENCES = {"LICENSE", "RapidJSON", "libc++", "libstdc++", "pybind11", "xxHash"}
NAME = re.compile(
    r"safetensors(?:_cpp)?-[^-]+-(cp\d+)-\1t?-"
    r"(?:manylinux_(2)_(\d+)|musllinux_\d+_\d+)_(x86_64|aarch64)\.whl"
)


class BadWheel(Exception):
    """What is wrong, in one sentence."""


def check(holds: object, message: str) -> None:
    """Raises BadWheel if the condition does not hold."""
    if not holds:
        raise BadWheel(message)


def symbols(elf: ELFFile, *, defined: bool) -> set[str]:
    """Returns the names of the dynamic symbols that the file defines, or needs."""
    table = elf.get_section_by_name(".dynsym")
    return {
        symbol.name
        for symbol in table.iter_symbols()
        if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
    }


def versions(elf: ELFFile) -> dict[str, tuple[int, ...]]:
    """Returns the newest version of each set of symbols that the file needs: GLIBC, GCC, ..."""
    newest: dict[str, tuple[int, ...]] = {}
    section = elf.get_section_by_name(".gnu.version_r")
    for _, needs in section.iter_versions() if section else ():
        for need in needs:
            library, _, number = need.name.partition("_")
            version = tuple(map(int, number.split(".")))
            newest[library] = max(newest.get(library, (0,)), version)
    return newest


def check_modules(name: str, data: bytes, tag: re.Match[str], python: set[str]) -> str:
    """Checks the file of the compiled modules. Returns what it needs, for a reader."""
    elf = ELFFile(io.BytesIO(data))
    machine = elf.header["e_machine"]
    check(machine == MACHINES[tag[4]], f"{name} is for {machine}")
    exported = symbols(elf, defined=True)
    check(exported == MODULES, f"{name} exports {', '.join(sorted(exported))}")
    wanted = {symbol for symbol in symbols(elf, defined=False) if re.match("_?Py", symbol)}
    check(wanted, f"{name} needs nothing of Python")
    check(
        wanted <= python, f"{name} needs {', '.join(sorted(wanted - python))}: not in this Python"
    )
    entries = list(elf.get_section_by_name(".dynamic").iter_tags())
    paths = [entry for entry in entries if entry.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
    check(not paths, f"{name} has a RUNPATH")
    flags = sum(entry.entry.d_val for entry in entries if entry.entry.d_tag == "DT_FLAGS")
    check(flags & DF_BIND_NOW, f"{name} is not linked with -z now")
    check("__stack_chk_fail" in symbols(elf, defined=False), f"{name} has no stack protector")
    needed = [entry.needed for entry in entries if entry.entry.d_tag == "DT_NEEDED"]
    newest = versions(elf)
    if tag[2]:
        most = (int(tag[2]), int(tag[3]))
        check(newest["GLIBC"] <= most, f"{name} needs glibc 2.{newest['GLIBC'][1]}")
    text = [f"{library} {'.'.join(map(str, number))}" for library, number in newest.items()]
    private = sorted(symbol for symbol in wanted if symbol.startswith("_"))
    return f"{name}: {len(data)} bytes; {', '.join(needed + text)}; private: {', '.join(private)}"


def check_wheel(path: Path, python: set[str]) -> str:
    """Checks one wheel. Returns a line about its modules."""
    tag = NAME.fullmatch(path.name)
    check(tag, "not the name of a wheel of manylinux or musllinux")
    assert tag is not None
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if name[-1] != "/"}
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    for line in files[f"{info}/RECORD"].decode().splitlines():
        name, digest, _ = line.rsplit(",", 2)
        if digest:
            found = hashlib.sha256(files[name]).digest()
            found_text = base64.urlsafe_b64encode(found).rstrip(b"=").decode()
            check(digest == f"sha256={found_text}", f"{name} differs from RECORD")
    about = email.message_from_bytes(files[f"{info}/WHEEL"])
    check(path.stem.endswith(about["Tag"].split("-")[2]), f"WHEEL has the tag {about['Tag']}")
    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    for field in ("Name", "Version", "Summary", "License-Expression", "Requires-Python"):
        check(metadata[field], f"METADATA has no {field}")
    licences = metadata.get_all("License-File", [])
    check({Path(name).stem for name in licences} >= LICENCES, "a licence is missing")
    for name in licences:
        check(files.get(f"{info}/licenses/{name}"), f"{name} is missing")
    modules = sorted(name for name in files if name.endswith(".so"))
    stems = [name.rpartition("/")[2].partition(".")[0] for name in modules]
    check(stems == ["_core"], f"its compiled files are {', '.join(modules)}")
    return check_modules(modules[0], files[modules[0]], tag, python)


def main(arguments: list[str]) -> int:
    """Runs the program. Returns the exit status."""
    if len(arguments) < 2:
        print("usage: check_wheel.py PYTHON WHEEL...", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        with path.open("rb") as file:
            python = symbols(ELFFile(file), defined=True)
        check("PyImport_ImportModule" in python, "not a Python, or one with a libpython: name that")
        for path in map(Path, arguments[1:]):
            line = check_wheel(path, python)
            print(f"{path.name}: {path.stat().st_size} bytes", line, sep="\n    ")
    except (OSError, BadWheel, ELFError, KeyError, zipfile.BadZipFile) as error:
        print(f"check_wheel.py: {path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
