"""A save uses the dict's content at the call, even if code that runs during the save changes it."""

import gc

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import TensorSpec, serialize

NAMES = ["first", "second", "third"]


def own_text(text):
    """Returns the text as a new object that nothing else refers to."""
    return "".join([text[:1], text[1:]])


class Emptying(np.ndarray):
    """An array that empties a dict when it is converted for saving."""

    victim: dict

    def astype(self, *args, **kwargs):
        converted = np.asarray(self).astype(*args, **kwargs)
        self.victim.clear()
        # What is let go is used again at once.
        self.kept = [own_text(f"{'#' * 20}{i}") for i in range(1000)]
        gc.collect()
        return converted


def emptying_arrays():
    """Returns arrays whose conversion empties the dict."""
    victim = {}
    for i, name in enumerate(NAMES):
        array = np.full((3, 4), i, ">f4").view(Emptying)
        array.victim = victim
        victim[own_text(f"{name} of them")] = array
    return victim


@pytest.mark.parametrize("to_disk", [False, True])
def test_arrays(tmp_path, to_disk):
    arrays = emptying_arrays()
    if to_disk:
        for_numpy.save_file(arrays, tmp_path / "f")
        loaded = for_numpy.load_file(tmp_path / "f")
    else:
        loaded = for_numpy.load(for_numpy.save(arrays))
    assert arrays == {}
    assert sorted(loaded) == [f"{name} of them" for name in NAMES]
    for i, name in enumerate(NAMES):
        np.testing.assert_array_equal(loaded[f"{name} of them"], np.full((3, 4), i, "f4"))


class EmptyingMode(torch.overrides.TorchFunctionMode):
    """Empties a dict at the first torch function that is called."""

    def __init__(self, victim):
        super().__init__()
        self.victim = victim

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.victim.clear()
        self.kept = [own_text(f"{'#' * 20}{i}") for i in range(1000)]
        gc.collect()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("to_disk", [False, True])
def test_tensors(tmp_path, to_disk):
    tensors = {own_text(f"{name} of them"): torch.full((3, 4), i) for i, name in enumerate(NAMES)}
    with EmptyingMode(tensors):
        if to_disk:
            for_torch.save_file(tensors, tmp_path / "f")
        else:
            data = for_torch.save(tensors)
    loaded = for_torch.load_file(tmp_path / "f") if to_disk else for_torch.load(data)
    assert tensors == {}
    assert sorted(loaded) == [f"{name} of them" for name in NAMES]
    for i, name in enumerate(NAMES):
        assert loaded[f"{name} of them"].tolist() == [[i] * 4] * 3


def test_specs_and_metadata_are_taken_at_the_call():
    array = np.arange(4, dtype="f4")
    specs = {
        own_text(f"{name} of them"): TensorSpec(
            dtype="float32", shape=[4], data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name in NAMES
    }
    metadata = {own_text(f"key {i}"): own_text(f"value {i}") for i in range(9)}
    data = serialize(specs, metadata)
    specs.clear()
    metadata.clear()
    assert sorted(for_numpy.load(data)) == [f"{name} of them" for name in NAMES]
