"""One environment for each implementation, under one folder; all share one torch and NumPy."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = os.environ.get("TORCH_SPEC", "torch==2.13.0")
SHARED = ("numpy==2.4.6", "matplotlib==3.11.2")
# What pip installs for each peer, and what must then be importable.
PEERS = {
    "upstream": ("safetensors==0.8.0", "safetensors"),
    "fastsafetensors": ("fastsafetensors==0.5.0", "fastsafetensors"),
    "runai": ("runai-model-streamer==0.17.0", "runai_model_streamer"),
    "tensorizer": ("tensorizer==2.12.1", "tensorizer"),
    "mlx": ("mlx[cpu]==0.32.4", "mlx.core"),
}


@dataclass(frozen=True)
class Environment:
    """An interpreter that can import one implementation."""

    name: str
    python: Path
    variables: dict[str, str] = field(default_factory=dict)


class Unavailable(Exception):
    """Why an environment cannot be had."""


def run_quietly(*command: str | Path) -> None:
    """Run a command; what it printed matters only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable("; ".join(lines[-3:]) or f"exit status {done.returncode}")


def has(python: Path, module: str) -> bool:
    """Whether that interpreter can import the module."""
    command = [str(python), "-c", f"import {module}"]
    return not subprocess.run(command, cwd="/", capture_output=True, check=False).returncode


class Environments:
    """Makes environments on demand and keeps them from run to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base" / "bin" / "python"

    def make_base(self) -> None:
        """The environment with torch, pinned and first, which all others see."""
        stamp = self.folder / "base" / "complete"
        wanted = "\n".join((TORCH, *SHARED))
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"installing {TORCH} and {', '.join(SHARED)}", flush=True)
        venv.create(self.folder / "base", with_pip=True, symlinks=os.name != "nt")
        options = shlex.split(os.environ.get("TORCH_PIP_OPTIONS", ""))
        pip = (self.base, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run_quietly(*pip, *options, TORCH)
        run_quietly(*pip, *SHARED)
        stamp.write_text(wanted)

    def site_packages(self, name: str) -> Path:
        """Where the packages of an environment lie."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / name / "lib" / version / "site-packages"

    def bare(self, name: str) -> Path:
        """An environment that sees what the base has."""
        python = self.folder / name / "bin" / "python"
        if not python.exists():
            venv.create(self.folder / name, symlinks=os.name != "nt")
        path = self.site_packages(name) / "base.pth"
        path.write_text(f"{self.site_packages('base')}\n")
        return python

    def install(self, name: str, *words: str) -> None:
        """Install into an environment, leaving torch and NumPy as they are."""
        pins = self.folder / "pins.txt"
        pins.write_text("\n".join((TORCH, SHARED[0])) + "\n")
        python = self.folder / name / "bin" / "python"
        pip = (self.base, "-m", "pip", "--python", python, "--disable-pip-version-check")
        run_quietly(*pip, "install", "-q", "-c", pins, *words)

    def peer(self, name: str) -> Environment:
        """The environment of a peer. Raises Unavailable with the reason."""
        package, module = PEERS[name]
        python = self.bare(name)
        stamp = self.folder / name / "complete"
        if not stamp.exists() or stamp.read_text() != package:
            print(f"installing {package}", flush=True)
            self.install(name, package)
            if not has(python, module):
                raise Unavailable(f"{package} is installed but cannot be imported")
            stamp.write_text(package)
        return Environment(name, python)

    def ours(self, package: Path | None) -> Environment:
        """This checkout, built and installed; or the package in a folder, as it is."""
        python = self.bare("ours")
        if package is not None:
            found = Environment("ours", python, {"PYTHONPATH": str(package)})
            # As pip does: else every first import would compile.
            run_quietly(python, "-m", "compileall", "-q", package / "safetensors")
        else:
            found = Environment("ours", python)
            stamp = self.folder / "ours" / "complete"
            command = [sys.executable, str(ROOT / "scripts" / "hash_sources.py")]
            sources = subprocess.check_output(command, text=True)
            if not stamp.exists() or stamp.read_text() != sources:
                print("building and installing this checkout", flush=True)
                self.install("ours", "--force-reinstall", "--no-deps", str(ROOT))
                stamp.write_text(sources)
        command = [str(python), "-c", "import safetensors; safetensors._core.__build__"]
        variables = {**os.environ, **found.variables}
        if subprocess.run(command, cwd="/", env=variables, check=False).returncode:
            raise Unavailable("the safetensors found is not this package")
        return found
