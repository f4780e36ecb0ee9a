"""Makes a wheel of the distribution `safetensors-cpp` from a wheel of this project.

    python scripts/beside_wheel.py dist/safetensors-*.whl FOLDER
    python scripts/beside_wheel.py . FOLDER

The files of the wheel get into `safetensors_cpp/_package`, unchanged. Prints the name of the new
wheel. Nothing is compiled, unless a folder with the sources is given: pip first makes their wheel.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "python"
NAMES = ("safetensors_cpp/**/*.py", "safetensors_cpp/py.typed", "safetensors_cpp_plugins.py")
ENTRY_POINTS = """[console_scripts]
safetensors-cpp = safetensors_cpp._command:main

[sglang.srt.plugins]
safetensors = safetensors_cpp_plugins:sglang

[vllm.general_plugins]
safetensors_direct = safetensors_cpp_plugins:vllm
"""
MODE = 0o100644 << 16  # of a zip entry: a file that its owner may write and all may read


def version() -> str:
    """Returns the version of the new distribution."""
    text = (SOURCES / "safetensors_cpp" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def metadata(text: str) -> str:
    """Returns METADATA with the new name and version. Extras refer to the new distribution."""
    head, blank, description = text.partition("\n\n")
    head = re.sub(r"^Name: .*", "Name: safetensors-cpp", head, flags=re.MULTILINE)
    head = re.sub(r"^Version: .*", f"Version: {version()}", head, flags=re.MULTILINE)
    pattern = r"^Requires-Dist: safetensors(?=\W)"
    head = re.sub(pattern, "Requires-Dist: safetensors-cpp", head, flags=re.MULTILINE)
    return head + blank + description


def sbom(data: bytes) -> bytes:
    """Returns the list of what is compiled in, of the new distribution."""
    found = json.loads(data)
    found["metadata"]["component"].update(name="safetensors-cpp", version=version())
    return json.dumps(found, indent=2).encode()


def contents(wheel: zipfile.ZipFile, old_info: str) -> dict[str, tuple[bytes, int]]:
    """Returns the bytes and the mode of each file of the new wheel but RECORD."""
    new_info = f"safetensors_cpp-{version()}.dist-info"
    files = {}
    for entry in wheel.infolist():
        if entry.is_dir():  # auditwheel adds them
            continue
        folder, _, rest = entry.filename.partition("/")
        data = wheel.read(entry)
        if folder != old_info:
            if folder.endswith(".data") or not rest:
                raise ValueError(f"{wheel.filename}: cannot move {entry.filename}")
            files[f"safetensors_cpp/_package/{entry.filename}"] = (data, entry.external_attr)
        elif rest == "METADATA":
            files[f"{new_info}/{rest}"] = (metadata(data.decode()).encode(), entry.external_attr)
        elif rest == "sboms/safetensors.cdx.json":
            files[f"{new_info}/{rest}"] = (sbom(data), entry.external_attr)
        elif rest not in ("RECORD", "entry_points.txt"):
            files[f"{new_info}/{rest}"] = (data, entry.external_attr)
    for name in NAMES:
        for path in sorted(SOURCES.glob(name)):
            files[path.relative_to(SOURCES).as_posix()] = (path.read_bytes(), MODE)
    files[f"{new_info}/entry_points.txt"] = (ENTRY_POINTS.encode(), MODE)
    return files


def write(target: Path, files: dict[str, tuple[bytes, int]], date: tuple[int, ...]) -> None:
    """Writes the wheel, with RECORD last. The bytes depend only on the arguments."""
    record = ""
    info = f"safetensors_cpp-{version()}.dist-info"
    scratch = target.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (data, mode) in [*sorted(files.items()), (f"{info}/RECORD", (b"", MODE))]:
            if name.endswith("/RECORD"):
                data = (record + f"{name},,\n").encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            entry = zipfile.ZipInfo(name, date)  # type: ignore[arg-type]
            entry.external_attr = mode
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    os.replace(scratch, target)


def main(arguments: list[str]) -> int:
    """Runs the program. Returns the exit status."""
    if len(arguments) != 2:
        print("usage: beside_wheel.py WHEEL|SOURCES FOLDER", file=sys.stderr)
        return 2
    source, folder = map(Path, arguments)
    if not source.is_dir():
        return convert(source, folder)
    with tempfile.TemporaryDirectory() as built:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "-w",
            built,
            os.fspath(source),
        ]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            return done.returncode
        (wheel,) = Path(built).iterdir()
        return convert(wheel, folder)


def convert(source: Path, folder: Path) -> int:
    """Makes the new wheel in a folder, and prints its name. Returns the exit status."""
    parts = source.name.split("-", 2)
    if parts[0] != "safetensors" or len(parts) != 3 or source.suffix != ".whl":
        print(f"{source}: not the name of a wheel of safetensors", file=sys.stderr)
        return 2
    try:
        with zipfile.ZipFile(source) as wheel:
            old_info = f"safetensors-{parts[1]}.dist-info"
            date = wheel.getinfo(f"{old_info}/METADATA").date_time
            files = contents(wheel, old_info)
        if not any(name.startswith("safetensors_cpp/_package/safetensors/_core") for name in files):
            raise ValueError(f"{source}: not a wheel of this project: it has no safetensors/_core")
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"safetensors_cpp-{version()}-{parts[2]}"
        write(target, files, date)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        print(f"beside_wheel.py: {source}: {error}", file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
