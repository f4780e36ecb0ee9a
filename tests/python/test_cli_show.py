"""`safetensors show`."""

import re

import numpy as np
import pytest

from safetensors._cli.decode import can_decode, decoded
from support import cli, file_builder
from support.dtype_table import TABLE
from support.file_builder import Raw


def of(array, dtype):
    return Raw(dtype, array.shape, array.tobytes())


def test_large_means_and_ranges(tmp_path):
    """A large mean does not cancel the deviation; the widest range does not overflow."""
    shifted = np.tile(np.array([1e9, 1e9 + 2]), 2_000_000)
    widest = np.array([-1.7e308, 1.7e308, 0, 5e-324])
    path = cli.write(tmp_path / "m.safetensors", {"a": of(shifted, "F64"), "b": of(widest, "F64")})
    a, b = cli.parsed("show", path, "a", "b", "--bins", "2")
    assert a["statistics"]["deviation"] == pytest.approx(1)
    assert a["statistics"]["mean"] == pytest.approx(1e9 + 1)
    assert b["histogram"]["counts"] == [1, 3]
    assert b["statistics"]["deviation"] is None


def test_integers_are_summed_exactly(tmp_path):
    """The mean is rounded once; large values keep their deviation, across chunks too."""
    low, high = -(1 << 63), (1 << 63) - 1
    far = np.full(1_500_000, 1 << 62, "<i8")
    far[::2] += 1
    arrays = {
        "extremes": (np.array([low, high], "<i8"), "I64", -0.5, 2.0**63),
        "highest": (np.array([high, high, high - 1], "<i8"), "I64", float(high), 2**0.5 / 3),
        "unsigned": (np.array([0, (1 << 64) - 1], "<u8"), "U64", 2.0**63, 2.0**63),
        "lowest": (np.full(3, low, "<i8"), "I64", -(2.0**63), 0),
        "far": (far, "I64", float(1 << 62), 0.5),
        "steps": (np.repeat([0.0, 3.0], [1_000_000, 2_000_000]), "F64", 2.0, 2**0.5),
        "thirds": (np.array([0, 0, 1], "<i4"), "I32", 1 / 3, 2**0.5 / 3),
        "truths": (np.array([1, 0, 1], "u1"), "BOOL", 2 / 3, 2**0.5 / 3),
    }
    tensors = {name: of(array, dtype) for name, (array, dtype, *_) in arrays.items()}
    path = cli.write(tmp_path / "m.safetensors", tensors)
    for found in cli.parsed("show", path, *arrays, "--bins", "0"):
        _, _, mean, deviation = arrays[found["name"]]
        assert found["statistics"]["mean"] == mean, found
        assert found["statistics"]["deviation"] == pytest.approx(deviation), found
    assert "mean -0.5  std 9.2234e+18" in cli.output("show", path, "extremes")


@pytest.mark.parametrize("without", [(), ("rich",)])
@pytest.mark.parametrize("columns", [30, 50, 80, 120])
def test_bars_fit_the_terminal(tmp_path, columns, without):
    """Bars do not wrap, with rich or without."""
    line = of(np.linspace(-1, 1, 1000, dtype="<f4"), "F32")
    model = cli.write(tmp_path / "m.safetensors", {"line": line})
    shown = cli.on_terminal("show", model, "line", columns=columns, without=without)
    bars = [line for line in shown.replace("\r", "").splitlines() if "█" in line]
    bars = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in bars]
    assert len(bars) == 16
    assert {len(bar) for bar in bars} == {min(columns, 100)}


@pytest.mark.parametrize("dtype", TABLE, ids=lambda dtype: dtype.name)
def test_every_type_is_decoded(dtype):
    """Every 8-bit and 16-bit pattern has the value of NumPy and ml_dtypes."""
    if not can_decode(dtype.name):
        assert dtype.bits == 6
        return
    if dtype.needs_ml_dtypes:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        wanted = np.dtype(getattr(ml_dtypes, dtype.numpy))
    else:
        wanted = np.dtype(dtype.numpy).newbyteorder("<")
    codes = np.arange(1 << 16, dtype="<u2") if dtype.bits > 8 else np.arange(256, dtype=np.uint8)
    data = codes.tobytes()
    if dtype.name == "BOOL":
        data = bytes([0, 1])
    found = decoded(data, dtype.name)
    if dtype.bits == 4:
        halves = np.stack((codes & 15, codes >> 4), axis=-1).reshape(-1)
        expected = halves.view(wanted)
    else:
        expected = np.frombuffer(data, wanted)
    kind = np.complex128 if dtype.name == "C64" else np.float64
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.astype(kind), expected.astype(kind))


def test_without_numpy(tmp_path):
    path = cli.write(tmp_path / "m.safetensors", cli.small())
    said = cli.complaint("show", path, "mask", without=["numpy"])
    assert said == "show needs NumPy: pip install numpy"


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """A tensor of 268 MB is read in a few megabytes of memory."""
    header = file_builder.from_entries({"a": file_builder.entry("U8", (1 << 28,), 0, 1 << 28)})
    path = tmp_path / "m.safetensors"
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(len(header) + (1 << 28))
    status, most = cli.peak_memory("show", path, "a", "--bins", "0")
    assert status == 0
    assert most < 250_000_000
