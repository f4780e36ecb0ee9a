"""The effect of torch's global modes on tensors from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from safetensors import _core, safe_open
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one tensor."""
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3)}, path)
    return path


@pytest.fixture
def default_device_is_meta(path: Path) -> Iterator[None]:
    """Makes new tensors on the meta device after writing the file."""
    assert path.exists()
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.usefixtures("default_device_is_meta")
def test_slices_stay_on_the_device_of_the_handle(path: Path, backend: str) -> None:
    """Upstream's slices follow the default device; its tensors do not."""
    with safe_open(path, "pt", backend=backend) as opened:
        assert opened.get_slice("a")[:].device.type == "cpu"
        assert opened.get_slice("a")[1:].tolist() == [[3.0, 4.0, 5.0]]
        assert opened.get_tensor("a").device.type == "cpu"


def test_tensors_are_real_in_fake_mode(path: Path) -> None:
    """Upstream raises when a tensor is requested, this package when one is used."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), safe_open(path, "pt") as opened:
        tensor = opened.get_tensor("a")
        assert type(tensor) is torch.Tensor
        with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors first"):
            tensor + tensor
    assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("exchange", [True, False])
def test_every_type_is_real_in_fake_mode(tmp_path: Path, exchange: bool) -> None:
    """Versions of torch before 2.10 do not take FP8 by DLPack; it is viewed as bytes then."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    path = tmp_path / "f8.safetensors"
    save_file({"a": torch.arange(4.0).to(torch.float8_e4m3fn), "b": torch.arange(4)}, path)
    _core._use_torch_exchange(exchange)
    try:
        with FakeTensorMode():
            found = load_file(path)
    finally:
        _core._use_torch_exchange(True)
    assert {type(tensor) for tensor in found.values()} == {torch.Tensor}
    assert found["a"].float().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_inference_mode_makes_inference_tensors(path: Path, backend: str) -> None:
    """Upstream makes them, too."""
    with safe_open(path, "pt", backend=backend) as opened:
        with torch.inference_mode():
            assert opened.get_tensor("a").is_inference()
        assert not opened.get_tensor("a").is_inference()
