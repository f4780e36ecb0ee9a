"""A virtual environment without network that has upstream and the distribution safetensors-cpp."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import upstream_client

# The wheel of safetensors-cpp, or "".
WHEEL = os.environ.get("SAFETENSORS_BESIDE_WHEEL", "")


class Environment:
    """A virtual environment that has upstream and safetensors-cpp."""

    def __init__(self, folder):
        """Makes it. Without pip, which would take most of the time."""
        done = call(sys.executable, "-m", "venv", "--without-pip", folder)
        assert done.returncode == 0, done.stderr
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "safetensors-cpp"
        done = call(self.python, "-c", "import sysconfig as s; print(s.get_path('purelib'))")
        self.site = Path(done.stdout.strip())
        source = upstream_client.directory()
        try:
            upstream_client.install(source)
        except upstream_client.UpstreamUnavailable as error:
            pytest.skip(f"upstream could not be installed: {error}")
        for path in source.glob("safetensors*"):
            shutil.copytree(path, self.site / path.name)
        self.pth = self.site / "safetensors_cpp.pth"
        self.upstream = str(self.site / "safetensors" / "__init__.py")
        self.ours = str(self.site / "safetensors_cpp/_package/safetensors/__init__.py")

    def pip(self, *arguments):
        """Runs the pip of this process on the environment."""
        done = call(sys.executable, "-m", "pip", "--python", self.python, *arguments)
        assert done.returncode == 0, done.stderr

    def install(self):
        """Installs the wheel."""
        self.pip("install", "--quiet", "--no-index", "--no-deps", WHEEL)

    def run(self, *arguments, **options):
        """Returns the finished interpreter."""
        return call(self.python, *arguments, **options)

    def output(self, *arguments, **options):
        """Returns the words that the interpreter printed. It must succeed and warn of nothing."""
        done = self.run(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.split()


def call(*words, env=(), stdin="", cwd="/"):
    """Returns the finished process. Only `env` is added to its environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**inherited, **dict(env)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
