"""torch without DLPack's C exchange functions gets the same tensors by other means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import safetensors
import safetensors.torch as st
from safetensors import _core, safe_open

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def without_exchange() -> Iterator[None]:
    """Switches the C exchange functions off during a test."""
    _core._use_torch_exchange(False)
    yield
    _core._use_torch_exchange(True)


def tensors_of_every_type() -> dict[str, torch.Tensor]:
    """Returns tensors of each of torch's types, also empty ones and scalars."""
    made = {}
    for code, dtype in st._TYPES.items():
        limit = 2 if dtype == torch.bool else 255
        flat = torch.arange(64, dtype=torch.uint8) % limit
        made[f"{code}.matrix"] = flat.view(dtype).reshape(2, -1).clone()
        made[f"{code}.empty"] = torch.zeros(0, dtype=torch.uint8).view(dtype).reshape(0, 3)
        if dtype != getattr(torch, "float4_e2m1fn_x2", None):
            made[f"{code}.scalar"] = flat[: dtype.itemsize].view(dtype).reshape(())
    return made


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both have the same type, shape and bytes."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(
        a.reshape(-1).view(torch.uint8),
        b.reshape(-1).view(torch.uint8),
    )


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_loads_every_type(tmp_path: Path, backend: str) -> None:
    """Tensors come from capsules, or from bytes if DLPack lacks the type."""
    expected = tensors_of_every_type()
    path = tmp_path / "all.safetensors"
    st.save_file(expected, path)
    loaded = st.load_file(path, backend=backend)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same(loaded[name], tensor), name
        assert loaded[name].storage_offset() == 0
        assert loaded[name].untyped_storage().nbytes() == tensor.nbytes
    with safe_open(path, "pt", backend=backend) as opened:
        assert same(opened.get_slice("F32.matrix")[1:], expected["F32.matrix"][1:])


def test_loads_bytes() -> None:
    """Files in memory load the same tensors."""
    expected = tensors_of_every_type()
    for name, tensor in st.load(st.save(expected)).items():
        assert same(tensor, expected[name]), name


def test_saves_the_same_bytes(tmp_path: Path) -> None:
    """The file is the same without the exchange functions."""
    tensors = tensors_of_every_type()
    slow = st.save(tensors, {"format": "pt"})
    st.save_file(tensors, tmp_path / "slow.safetensors", {"format": "pt"})
    _core._use_torch_exchange(True)
    assert slow == st.save(tensors, {"format": "pt"})
    assert slow == (tmp_path / "slow.safetensors").read_bytes()


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    """A capsule's tensor keeps the mapping; dropping it frees it."""
    path = tmp_path / "a.safetensors"
    st.save_file({"a": torch.arange(1000.0)}, path)
    tensor = st.load_file(path)["a"]
    path.unlink()
    assert torch.equal(tensor, torch.arange(1000.0))
    del tensor


def test_errors_leave_nothing_behind(tmp_path: Path) -> None:
    """A type that torch lacks raises the usual error."""
    path = tmp_path / "f6.safetensors"
    header = b'{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(safetensors.SafetensorError, match="Dtype not understood: F6_E2M3"):
        st.load_file(path)
