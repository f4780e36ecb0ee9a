"""Versions in the header, the Hypothesis profile, and upstream as a fixture."""

import importlib
import os
import signal
import sys
import sysconfig

import pytest
from hypothesis import HealthCheck, settings

from support import fake_cuda, upstream_client

settings.register_profile(
    "safetensors",
    deadline=None,
    print_blob=True,
    # Fixtures here are directories and processes: sharing them between examples is wanted.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("safetensors")

# A shell that starts a program in the background has it, and what that starts, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test module that imports one of these at its top is skipped where it is not installed. So test
# files import what they need as any program does, and none says how to skip.
OPTIONAL = {"numpy", "ml_dtypes", "torch", "tensorflow", "jax", "flax", "mlx", "paddle", "gguf"}
OPTIONAL |= {"obstore", "fsspec", "orbax"}

CRASHES = pytest.StashKey[list]()


class Module(pytest.Module):
    """A test module that is skipped if it needs an optional package that is not installed."""

    def collect(self):
        """Imports the module and yields its tests."""
        try:
            return super().collect()
        except self.CollectError as error:
            missing = getattr(error.__cause__, "name", None) or ""
            if missing.partition(".")[0] not in OPTIONAL:
                raise
            reason = f"{self.path.name} needs {missing}, which is not installed"
            pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Collects every test file as a Module of this file."""
    return Module.from_parent(parent, path=module_path)


def version_of(name):
    """Returns a module's version, or the reason why it cannot be imported."""
    try:
        return getattr(importlib.import_module(name), "__version__", "unknown")
    except ImportError:
        return "not installed"


def pytest_report_header():
    """Returns the versions that the results depend on."""
    lines = [f"{name}: {version_of(name)}" for name in ("safetensors", "torch", "numpy")]
    lines.append(f"ml_dtypes: {version_of('ml_dtypes')}")
    try:
        build = importlib.import_module("safetensors._core").__build__
    except (ImportError, AttributeError) as error:
        build = f"none ({error})"
    return [", ".join(lines), f"safetensors build: {build}"]


def pytest_terminal_summary(terminalreporter, config):
    """Prints which calls killed upstream's process."""
    for report in config.stash.get(CRASHES, []):
        terminalreporter.write_line(report, yellow=True)


@pytest.fixture(scope="session")
def upstream(request):
    """Upstream safetensors in a process of its own; see upstream_client."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("upstream's extension cannot be imported by a free-threaded Python")
    target = upstream_client.directory()
    try:
        upstream_client.install(target)
    except upstream_client.UpstreamUnavailable as error:
        reason = f"upstream {upstream_client.VERSION} cannot be installed: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    peer = upstream_client.Upstream(target)
    request.config.stash[CRASHES] = peer.crashes
    assert peer.version == upstream_client.VERSION
    yield peer
    peer.close()


@pytest.fixture(autouse=True)
def no_save_left():
    """Fails a test that ends before its saves do: its folder may be removed first."""
    yield
    module = sys.modules.get("safetensors._saving.save_async")
    assert module is None or not module._saves.running


@pytest.fixture
def leases(tmp_path):
    """Skips the test unless a write lease tells whether others use a file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("leases are a feature of Linux")
    import numpy as np

    import safetensors
    from safetensors import numpy as stn

    path = tmp_path / "lease"
    stn.save_file({"a": np.zeros(1)}, path)
    try:
        safetensors.update_file(path, {}, in_place=True)
    except safetensors.SafetensorError as error:
        if "the system does not tell" not in str(error):
            raise
        pytest.skip("no leases on this file system, or they do not see mappings")
    path.unlink()


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """One directory for a whole run: Hypothesis writes thousands of files over each other."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="session")
def tensors():
    """Twenty torch tensors of several types and shapes: those of `model`."""
    from support import sharded

    return sharded.make(20)


@pytest.fixture(scope="session")
def model(tensors, tmp_path_factory):
    """A directory with three shards of `tensors` and an index. No test changes it."""
    from support import sharded

    directory = tmp_path_factory.mktemp("model")
    sharded.write(directory, tensors, 3)
    return directory


@pytest.fixture(scope="session")
def mixed_tensors():
    """Torch tensors that fit into a slot of 4096 bytes, and some that do not."""
    from support import fake_device

    return fake_device.make_tensors()


@pytest.fixture(scope="session")
def mixed_path(mixed_tensors, tmp_path_factory):
    """A file of `mixed_tensors`. No test changes it."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("mixed") / "model.safetensors"
    save_file(mixed_tensors, path)
    return path


@pytest.fixture
def opened(mixed_path):
    """The file of `mixed_tensors`, open."""
    from safetensors import safe_open

    with safe_open(mixed_path, "pt", backend="pread") as f:
        yield f


@pytest.fixture
def cuda():
    """A fake CUDA device; see fake_cuda."""
    pytest.importorskip("torch", reason="torch is not installed")
    path = fake_cuda.library()
    if path is None:
        pytest.skip("the fake CUDA driver is not built (cmake --build --preset dev)")
    fake = fake_cuda.FakeCuda(path)
    fake.clear()
    fake.mode(fake_cuda.LAZY)
    put_back = fake.install()
    yield fake
    put_back()
    assert fake.stat(fake_cuda.CONTEXT_DEPTH) == 0
    assert fake.stat(fake_cuda.CALLS_WITHOUT_CONTEXT) == 0
    fake.clear()
    fake.mode(fake_cuda.EAGER)
