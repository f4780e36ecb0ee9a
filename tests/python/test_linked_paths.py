"""Paths with a link and "..", which lead a save where they lead the system."""

import os

import numpy as np
import pytest

from safetensors import delta, recover, safe_create, sums, update_file
from safetensors.numpy import load_file, save_file, save_file_async, save_files

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the links are POSIX's")

OLD = {"a": np.arange(5)}
NEW = {"a": np.arange(5) + 1}


@pytest.fixture
def above(tmp_path):
    """A path to the folder "real", from which os.path.abspath makes that of `tmp_path`."""
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/below")
    return os.path.join(tmp_path, "link", "..")


def update(path):
    save_file(OLD, path)
    update_file(path, NEW, in_place=True, shared=True)


def apply(path):
    save_file(OLD, path)
    delta.diff(OLD, NEW, path + ".patch")
    delta.apply_file(path, path + ".patch", path)


def create(path):
    with safe_create(path, {"a": ("int64", [5])}) as writer:
        writer.write("a", NEW["a"])


SAVES = {
    "save_file": lambda path: save_file(NEW, path),
    "save_file_async": lambda path: save_file_async(NEW, path).result(),
    "safe_create": create,
    "update_file": update,
    "apply_file": apply,
}


@pytest.mark.parametrize("name", SAVES)
def test_files(name, above, tmp_path, monkeypatch):
    SAVES[name](os.path.join(above, "m.safetensors"))
    np.testing.assert_array_equal(load_file(tmp_path / "real" / "m.safetensors")["a"], NEW["a"])
    monkeypatch.chdir(tmp_path / "real")
    SAVES[name]("below/../relative.safetensors")
    assert (tmp_path / "real" / "relative.safetensors").exists()
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_models(above, tmp_path):
    folder = os.path.join(above, "m", ".", "")
    save_files(OLD, folder)
    assert [path.name for path in (tmp_path / "real" / "m").iterdir()] == ["model.safetensors"]
    assert recover(folder) == "clean"
    sums.write(folder)
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_checkpoints(above, tmp_path):
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    from safetensors.dcp import StorageWriter

    path = os.path.join(above, "m")
    checkpoint.save({"a": torch.arange(5)}, storage_writer=StorageWriter(path), no_dist=True)
    assert (tmp_path / "real" / "m" / "model.safetensors").exists()
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
