"""Tiny models of quantisation schemes, and the formulas of their values in NumPy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Types that safetensors has and NumPy lacks, as the name of the type and the bits.
Stored = np.ndarray | tuple[str, np.ndarray]

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_file(
    path: Path, tensors: Mapping[str, Stored], metadata: dict[str, str] | None = None
) -> Path:
    """Writes a safetensors file. A tuple gives the type of its bits, such as "F8_E4M3"."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, stored in tensors.items():
        kind, array = stored if isinstance(stored, tuple) else (_NAMES[stored.dtype.name], stored)
        data = np.ascontiguousarray(array).tobytes()
        shape = list(array.shape)
        if kind == "F4":  # two values a byte
            shape[-1] *= 2
        header[name] = {
            "dtype": kind,
            "shape": shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def write_model(
    folder: Path,
    tensors: Mapping[str, Stored],
    config: dict[str, Any] | None = None,
    *,
    shards: int = 1,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Writes a model. Tensors go to the shards in turn: neighbours are in different ones."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        names = ["model.safetensors"]
    parts: list[dict[str, Stored]] = [{} for _ in range(shards)]
    for i, (name, stored) in enumerate(tensors.items()):
        parts[i % shards][name] = stored
    for file, part in zip(names, parts, strict=True):
        write_file(folder / file, part, metadata)
    if shards > 1:
        places = {name: file for file, part in zip(names, parts, strict=True) for name in part}
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _float_table(exponent_bits: int, fraction_bits: int, bias: int) -> np.ndarray:
    """Returns the values of 256 codes of sign, exponent and fraction, without specials."""
    codes = np.arange(256)
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / 2.0**fraction_bits
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    low = fraction * 2.0 ** (1 - bias)
    return (np.where(exponent == 0, low, normal) * np.where(codes > 127, -1, 1)).astype(np.float32)


E4M3 = _float_table(4, 3, 7)
E4M3[[0x7F, 0xFF]] = np.nan
E5M2 = _float_table(5, 2, 15)
E5M2[[0x7C, 0xFC]] = np.inf, -np.inf
E5M2[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
E4M3FNUZ = _float_table(4, 3, 8)
E4M3FNUZ[0x80] = np.nan
E5M2FNUZ = _float_table(5, 2, 16)
E5M2FNUZ[0x80] = np.nan
E8M0 = np.append(2.0 ** (np.arange(255) - 127), np.nan).astype(np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])
TABLES = {
    "F8_E4M3": E4M3,
    "F8_E5M2": E5M2,
    "F8_E4M3FNUZ": E4M3FNUZ,
    "F8_E5M2FNUZ": E5M2FNUZ,
    "F8_E8M0": E8M0,
}


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Rounds F32 to the bits of BF16, to nearest even. NaN stays NaN."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    values: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def as_stored(kind: str, values: np.ndarray) -> tuple[Stored, np.ndarray]:
    """Returns F32 values as a file has them in "F32", "F16" or "BF16", and the values of that."""
    if kind == "BF16":
        bits = bf16_bits(values)
        return ("BF16", bits), bf16_values(bits)
    if kind == "F16":
        return values.astype(np.float16), values.astype(np.float16).astype(np.float32)
    return values, values


def same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """Checks that F32 values agree bit for bit; all NaNs are equal, and so are the zeros."""
    assert found.dtype == wanted.dtype == np.float32
    assert found.shape == wanted.shape
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(
        (found + np.float32(0)).view(np.uint32)[~nan],
        (wanted + np.float32(0)).view(np.uint32)[~nan],
    )


def check_values(tensor: Any, wanted: np.ndarray) -> None:
    """Checks all values, rows, and the rounding to 16 bits of a tensor."""
    assert tensor.shape == wanted.shape
    same_bits(tensor.numpy(), wanted)
    flat = wanted.reshape(-1, wanted.shape[-1])
    for first, last in ((0, 1), (len(flat) // 3, len(flat) // 2 + 1), (len(flat) - 1, len(flat))):
        same_bits(tensor.numpy(rows=slice(first, last)), flat[first:last])
    with np.errstate(over="ignore"):
        halves = wanted.astype(np.float16).astype(np.float32)
    same_bits(tensor.numpy("float16").astype(np.float32), halves)
    wide = np.empty(wanted.shape, np.uint16)
    tensor._model.dequantize(tensor.name, wide.reshape(-1).view(np.uint8), "bfloat16", 0, -1)
    same_bits(bf16_values(wide), bf16_values(bf16_bits(wanted)))
