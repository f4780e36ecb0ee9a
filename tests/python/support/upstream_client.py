"""Runs upstream safetensors in a separate process, beside the package under test."""

import os
import pickle
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.8.0"
REPOSITORY = Path(__file__).resolve().parents[3]
TESTS = Path(__file__).resolve().parents[1]
SERVER = Path(__file__).with_name("upstream_server.py")
REPLY_SECONDS = 120


class UpstreamUnavailable(Exception):
    """Raised if upstream could not be installed."""


class UpstreamCrashed(Exception):
    """Raised if the process that ran upstream died. The next call starts another."""


def directory():
    """Returns the directory that keeps upstream's package between runs."""
    chosen = os.environ.get("SAFETENSORS_UPSTREAM_DIR")
    return Path(chosen) if chosen else REPOSITORY / ".cache" / f"upstream-{VERSION}"


def install(target):
    """Installs upstream into `target`, atomically, unless it is installed."""
    if (target / "safetensors" / "__init__.py").is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".upstream-", dir=target.parent)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", scratch, f"safetensors=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise UpstreamUnavailable(done.stderr.strip()[-500:])
        if not target.exists():
            os.rename(scratch, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        if not (target / "safetensors").is_dir():
            raise UpstreamUnavailable(str(error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Upstream:
    """Calls operations.py under upstream. `crashes` lists the calls that killed it."""

    def __init__(self, target):
        """Starts the process with the package in `target`."""
        self.target = target
        self.crashes = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = None
        self.version = self._start()

    def run(self, name, /, *args, **kwargs):
        """Returns the Outcome of one operation."""
        if self._process is None:
            self._start()
        try:
            self._process.stdin.write(pickle.dumps((name, args, kwargs)))
            self._process.stdin.flush()
            return self._reply()
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            report = self._bury(f"{name}: {error!r}")
            self.crashes.append(report)
            raise UpstreamCrashed(report) from error

    def evaluate(self, source, /, **variables):
        """Returns the Outcome of one Python expression; see operations.evaluate."""
        return self.run("evaluate", source, **variables)

    def close(self):
        """Ends the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait(timeout=30)
            self._process = None
        self._stderr.close()

    def _start(self):
        paths = os.pathsep.join([str(self.target), str(TESTS)])
        environment = dict(os.environ, PYTHONPATH=paths, PYTHONWARNINGS="ignore")
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), str(self.target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )
        try:
            return self._reply()
        except (EOFError, TimeoutError) as error:
            raise UpstreamCrashed(self._bury("start")) from error

    def _reply(self):
        # Strictly one reply for one request, so nothing waits unseen in the buffer.
        if not select.select([self._process.stdout], [], [], REPLY_SECONDS)[0]:
            raise TimeoutError(f"no reply in {REPLY_SECONDS} s")
        return pickle.load(self._process.stdout)

    def _bury(self, what):
        process, self._process = self._process, None
        process.kill()
        process.stdin.close()
        process.stdout.close()
        status = process.wait(timeout=30)
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace")[-1500:]
        return f"upstream died ({status}) in {what[:300]}\n{tail}"
