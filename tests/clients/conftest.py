"""Offline settings and the proof that this package, not another, served the client."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile

# Clients read these when they are imported, so they are set before any import of one.
_HOME = tempfile.mkdtemp(prefix="clients-home-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    HF_HOME=_HOME,
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    DIFFUSERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_VERBOSITY="error",
    CUDA_VISIBLE_DEVICES="",
)

import importlib.metadata  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402

ALLOW_UPSTREAM = os.environ.get("SAFETENSORS_TEST_ALLOW_UPSTREAM") == "1"


def _is_ours() -> bool:
    return hasattr(getattr(safetensors, "_core", None), "__build__")


@pytest.fixture(scope="session", autouse=True)
def this_package() -> None:
    """Fail at once when a client brought the upstream package back over this one."""
    if ALLOW_UPSTREAM:
        return
    assert _is_ours(), f"{safetensors.__file__} is not this project's package"
    version = importlib.metadata.version("safetensors")
    if "_package" in Path(safetensors.__file__).parts:
        assert version == "0.8.0"  # safetensors-cpp is installed beside upstream
    else:
        assert version.startswith("0.8.0+cpp"), version
        assert safetensors.__version__ == version
    extensions = [p.name for p in Path(safetensors.__file__).parent.glob("_safetensors_rust*.so")]
    assert not extensions, f"the upstream extension lies beside ours: {extensions}"


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse connections that leave the machine: every test here must work offline."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        local = self.family == socket.AF_UNIX or str(address[0]).startswith(("127.", "::1"))
        if not local and address[0] != "localhost":
            raise OSError(f"a test tried to connect to {address!r}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(20260101)


class Calls:
    """Counts the calls to a function of this package and passes them on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Wrap ``function``."""
        self.function = function
        self.count = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count, then call."""
        self.count += 1
        return self.function(*args, **kwargs)


Spy = Callable[[ModuleType, str], Calls]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Count what a client module calls through one of its own imported names.

    The name must be bound to a function of this package, not to a copy that the client has.
    """
    ours = [*vars(safetensors).values(), *vars(safetensors.torch).values()]

    def watch(module: ModuleType, name: str) -> Calls:
        original = getattr(module, name)
        assert any(original is value for value in ours), f"{module.__name__}.{name} is not ours"
        calls = Calls(original)
        monkeypatch.setattr(module, name, calls)
        return calls

    return watch
