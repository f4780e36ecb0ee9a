"""Damaged GGUF headers: if this package and gguf-py both read a file, the results agree."""

import contextlib
import logging
import random
import signal
import struct
import warnings
from collections import Counter
from typing import Any

import gguf
import numpy as np
import pytest

from safetensors.weights import WeightsError, open_weights
from weights_support.data import DATA

EXAMPLES = 300
# Counts and types that headers trip over.
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 24, 31, 32, 33, 64, 127, 128, 255, 256, 1 << 16, 1 << 31]
WIDE = [*NUMBERS, 1 << 32, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]


class TookTooLong(Exception):
    pass


def _stop(*_: object) -> None:
    raise TookTooLong


@contextlib.contextmanager
def at_most(seconds: float):
    """Stops gguf-py, which may iterate over 2^30 elements that the file does not have."""
    before = signal.signal(signal.SIGALRM, _stop)
    # Again and again: Python drops an exception that is raised within a callback of its collector.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def theirs(path):
    """Returns gguf-py's reader, or None if it raises any error."""
    try:
        with at_most(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gguf.GGUFReader(path)
    except Exception:
        return None


def ours(path):
    try:
        return open_weights(path)
    except WeightsError:
        return None


def value_of(field: Any) -> Any:
    """Returns a field's value; NotImplemented for nested arrays, whose shape gguf-py drops."""
    kinds = gguf.GGUFValueType
    if field.types[0] == kinds.ARRAY:
        if len(field.types) > 2:
            return NotImplemented
        kind = field.types[1] if len(field.types) > 1 else None
        return [scalar_of(kind, field.parts[i]) for i in field.data]
    return scalar_of(field.types[0], field.parts[field.data[0]])


def scalar_of(kind: Any, part: Any) -> Any:
    if kind == gguf.GGUFValueType.STRING:
        raw = bytes(part)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    return part[0].item()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


def compare(model, reader) -> None:
    fields = [field for field in reader.fields.values() if not field.name.startswith("GGUF.")]
    assert list(model.metadata) == [field.name for field in fields]
    for field in fields:
        wanted = value_of(field)
        if wanted is not NotImplemented:
            assert same(model.metadata[field.name], wanted), field.name
    tensors = {model[name].source: model[name] for name in [*model, *model.unmapped]}
    assert set(tensors) == {tensor.name for tensor in reader.tensors}
    for wanted in reader.tensors:
        tensor = tensors[wanted.name]
        assert list(tensor.shape) == [int(size) for size in reversed(wanted.shape)]
        assert tensor.code == int(wanted.tensor_type)
        assert tensor.nbytes == wanted.n_bytes
        np.testing.assert_array_equal(
            tensor.packed(), np.ascontiguousarray(wanted.data).reshape(-1).view(np.uint8)
        )


def damaged(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    end = min(len(changed) - 8, 5000)
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        at = choose.randrange(4, end)
        match choose.randrange(5):
            case 0:
                changed[at] = choose.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
            case 1:
                changed[at] ^= 1 << choose.randrange(8)
            case 2:
                changed[at : at + 4] = struct.pack("<I", choose.choice(NUMBERS))
            case 3:
                changed[at : at + 8] = struct.pack("<Q", choose.choice(WIDE))
            case _:
                start, size = choose.randrange(4, end), choose.randrange(1, 9)
                changed[at : at + size] = changed[start : start + size]
    return bytes(changed)


def seeds() -> list[bytes]:
    """Small files that both read, and one of every type."""
    small = [path for path in sorted((DATA / "bad").glob("*.gguf")) if path.stat().st_size < 3000]
    good = [path.read_bytes() for path in small if ours(path) and theirs(path)]
    return [*good, (DATA / "gguf" / "types.gguf").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(2))
def test_damaged_headers(tmp_path, seed):
    logging.getLogger("gguf.gguf_reader").setLevel(logging.CRITICAL)
    choose = random.Random(seed)
    good = seeds()
    path = tmp_path / "m.gguf"
    seen: Counter[str] = Counter()
    for _ in range(EXAMPLES):
        path.write_bytes(damaged(choose.choice(good), choose))
        model, reader = ours(path), theirs(path)
        if model is None:
            seen["refused"] += 1
        elif reader is None:
            seen["read by us only"] += 1
        else:
            compare(model, reader)
            seen["read by both"] += 1
    assert seen["read by both"] > EXAMPLES // 10, seen
    assert seen["refused"] > EXAMPLES // 10, seen
