"""The models in tests/data/weights, and what is expected of them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent.parent / "data" / "weights"
MLX = sorted(path.name for path in (DATA / "mlx").iterdir())
GGUF = sorted(
    path.name.removesuffix(".expected.json") for path in (DATA / "gguf").glob("*.expected.json")
)


def expected(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def sha_of_values(values: np.ndarray) -> str:
    """Of F32 values; the sign of a zero does not count."""
    assert values.dtype == np.float32
    return hashlib.sha256((values + np.float32(0)).astype("<f4").tobytes()).hexdigest()


def sha_of_bytes(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


def check_config(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert {key: config[key] for key in wanted} == wanted
