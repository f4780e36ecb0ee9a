"""The models in weights/tests/data and their expected values."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from safetensors.numpy import save_file

DATA = Path(__file__).parents[2] / "data"
MLX = sorted(path.name for path in (DATA / "mlx").iterdir())
GGUF = sorted(
    path.name.removesuffix(".expected.json") for path in (DATA / "gguf").glob("*.expected.json")
)


def expected(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def sha_of_values(values: np.ndarray) -> str:
    """Returns the SHA-256 of F32 values, in which -0.0 becomes 0.0."""
    assert values.dtype == np.float32
    return hashlib.sha256((values + np.float32(0)).astype("<f4").tobytes()).hexdigest()


def sha_of_bytes(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


def check_config(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert {key: config[key] for key in wanted} == wanted


class Stored(NamedTuple):
    """A tensor of a GGUF file: the number of its type, its shape, slowest axis first, and bytes."""

    kind: int
    shape: tuple[int, ...]
    data: bytes


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: "dict[str, np.ndarray | Stored] | None" = None,
) -> Path:
    """Writes a GGUF file; arrays become F32 tensors. In metadata, integers are written as u32,
    floats as f32, and arrays of NumPy as i32 or i64."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value: Any) -> tuple[int, bytes]:
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        if isinstance(value, int):
            return 4, struct.pack("<I", value)
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        if isinstance(value, str):
            return 8, text(value)
        if isinstance(value, np.ndarray):
            kind = {"int32": 5, "int64": 11}[value.dtype.name]
            return 9, struct.pack("<IQ", kind, value.size) + value.tobytes()
        items = [typed(item) for item in value]
        body = b"".join(data for _, data in items)
        return 9, struct.pack("<IQ", items[0][0], len(items)) + body

    tensors = tensors or {}
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = typed(value)
        header += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, values in tensors.items():
        body += bytes(-len(body) % 32)
        if isinstance(values, np.ndarray):
            values = Stored(0, values.shape, values.astype("<f4").tobytes())
        shape = values.shape[::-1]
        header += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", values.kind, len(body))
        body += values.data
    path.write_bytes(header + (bytes(-len(header) % 32) if tensors else b"") + body)
    return path


def write_hf(
    path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray] | None = None
) -> Path:
    """Writes a checkpoint of `tensors` or of one embedding."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if tensors is None:
        tensors = {"model.embed_tokens.weight": np.zeros((2, 2), np.float32)}
    save_file(tensors, path / "model.safetensors")
    return path
