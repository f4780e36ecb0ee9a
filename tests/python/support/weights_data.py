"""The models in tests/data/weights and their expected values."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from safetensors.numpy import save_file

DATA = Path(__file__).parents[2] / "data" / "weights"
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


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray] | None = None
) -> Path:
    """Writes a GGUF file of F32 tensors. Integers are written as u32, floats as f32."""

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
        shape = values.shape[::-1]
        header += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", 0, len(body))
        body += values.astype("<f4").tobytes()
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
