"""SafeWriter.copy(cast=True): the values of torch, in bounded memory."""

import os

import numpy as np
import pytest
import torch

from safetensors import SafetensorError, safe_open
from safetensors import torch as st
from safetensors._saving.writer import safe_create

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def inputs(code):
    """Returns every value of a type of 8 or 16 bits, else many bit patterns."""
    dtype = DTYPES[code]
    if dtype.itemsize <= 2:
        bits = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        return torch.from_numpy(bits).view(dtype)
    random = np.random.default_rng(0)
    values = torch.from_numpy(random.integers(0, 1 << 32, 1 << 21, dtype="u4")).view(torch.float32)
    # Random bits are seldom near the small types: their values, half way, and next to that.
    near = torch.cat([torch.linspace(-600, 600, 1 << 16), torch.linspace(-7e4, 7e4, 1 << 16)])
    values = torch.cat([values, near, near * 2**-12, near * 2**-20, near * 2**-30])
    if code == "F32":
        return values
    wide = torch.from_numpy(random.integers(0, 1 << 64, 1 << 20, dtype="u8")).view(torch.float64)
    return torch.cat([wide, values.double(), values.double() * (1 + 2**-30)])


def cast(path, tensor, code):
    """Casts a tensor from one file to another."""
    st.save_file({"a": tensor}, path / "in.safetensors")
    with (
        safe_open(path / "in.safetensors", "pt") as file,
        safe_create(path / "out.safetensors", {"a": (code, tensor.shape)}) as writer,
    ):
        writer.copy(file, cast=True)
    return st.load_file(path / "out.safetensors")["a"]


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_values_are_those_of_torch(tmp_path, source, to):
    """Every bit is the same, but for those of NaNs, in which torch's own kernels differ."""
    values = inputs(source)
    if to == "F8_E4M3" and torch.tensor(500.0).to(DTYPES[to]).isnan():
        values = values[values.float().abs() <= 464]  # versions before 2.13 have no largest value
    expected, found = values.to(DTYPES[to]), cast(tmp_path, values, to)
    assert found.dtype == DTYPES[to]
    nan = expected.float().isnan()
    assert torch.equal(found.float().isnan(), nan)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    assert torch.equal(found.view(bits)[~nan], expected.view(bits)[~nan])


def test_shards_are_cast(tmp_path):
    """A writer of several files casts, too."""
    tensors = {str(i): torch.full((1000,), i + 0.5) for i in range(4)}
    st.save_file(tensors, tmp_path / "in.safetensors")
    specs = {name: ("F16", [1000]) for name in tensors}
    with (
        safe_open(tmp_path / "in.safetensors", "pt") as file,
        safe_create(tmp_path / "out", specs, max_shard_size=4000) as writer,
    ):
        writer.copy(file, cast=True)
    assert len(list((tmp_path / "out").glob("model-*"))) == 2
    found = st.load_files(tmp_path / "out")
    assert all(torch.equal(found[name], tensors[name].half()) for name in tensors)


def test_only_tensors_of_another_dtype_are_cast(tmp_path):
    """Integers are copied, and a cast of them is an error that names file, tensor and dtypes."""
    tensors = {"a": torch.ones(3), "i": torch.arange(3), "e": torch.ones(0, 2), "s": torch.ones(())}
    st.save_file(tensors, tmp_path / "in.safetensors")
    specs = {"a": ("BF16", [3]), "i": ("I64", [3]), "e": ("F16", [0, 2]), "s": ("F64", [])}
    with (
        safe_open(tmp_path / "in.safetensors", "pt") as file,
        safe_create(tmp_path / "out.safetensors", specs) as writer,
    ):
        writer.copy(file, "a", cast=True)
        writer.copy(file, cast=True)
    found = st.load_file(tmp_path / "out.safetensors")
    assert {name: each.dtype for name, each in found.items()} == {
        "a": torch.bfloat16,
        "i": torch.int64,
        "e": torch.float16,
        "s": torch.float64,
    }
    assert all(torch.equal(found[name].to(tensors[name].dtype), tensors[name]) for name in tensors)
    for name, code, says in (
        (
            "i",
            "F32",
            r"tensor `i` of .*in.safetensors: I64 cannot be cast to F32: only F64, F32, F16, BF16, "
            r"F8_E4M3 and F8_E5M2 are cast to each other$",
        ),
        ("a", "I8", r"tensor `a` of .*in.safetensors: F32 cannot be cast to I8"),
    ):
        with (
            safe_open(tmp_path / "in.safetensors", "pt") as file,
            safe_create(tmp_path / "new", {name: (code, [3])}) as writer,
        ):
            with pytest.raises(SafetensorError, match=says):
                writer.copy(file, cast=True)
            with pytest.raises(SafetensorError, match="in the specs"):
                writer.copy(file)
            writer.abort()
    with (
        safe_open(tmp_path / "in.safetensors", "pt") as file,
        safe_create(tmp_path / "new", {"a": ("F16", [4])}) as writer,
    ):
        with pytest.raises(SafetensorError, match=r"F16 \[4\] in the specs, but F32 \[3\]"):
            writer.copy(file, cast=True)
        writer.abort()
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]
