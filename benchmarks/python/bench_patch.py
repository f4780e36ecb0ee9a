"""Times the codec of patches beside what programs write themselves.

    python benchmarks/python/bench_patch.py [--mb 128] [--rounds 7] [--share 0.01 0.02]

One BF16 tensor, of which a share of the values moves by one ulp. Needs numpy and zstandard. The
implementations take turns. Printed are the minima, in GB of the tensor a second, and the ratios:

* encode: `_extra._encode_patch` against NumPy's mask and flatnonzero, both without digests;
* encode + digest: the same, each with XXH3-128 of the new tensor;
* apply: reading a patch in memory, checking the base and writing, against unzstd and XOR in place;
* size: record and values against XOR and zstd, level 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard

from safetensors import _extra, delta

DIGEST = "xxh3-128:" + 32 * "0"


def make(mb: int, share: float) -> tuple[Any, Any]:
    """Returns the bits of BF16 weights, and of those after a step."""
    rng = np.random.default_rng(1)
    count = mb << 19
    pool = rng.normal(0, 0.02, 1 << 20).astype("f4").view("u4") >> 16
    old = np.resize(pool.astype("u2"), count)
    new = old.copy()
    at = rng.integers(0, count, int(count * share))
    new[at] += (rng.integers(0, 2, at.size) * 2 - 1).astype("u2")
    return old, new


def digest(tensor: Any) -> str:
    """Returns the digest of a tensor."""
    hasher = _extra._TensorHasher("BF16", tensor.shape)
    hasher.update(tensor)
    return hasher.digest()


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds of a call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(mb: int, share: float, rounds: int) -> None:
    """Prints the rows of one share."""
    old, new = make(mb, share)
    xored = zstandard.ZstdCompressor(level=1).compress((old ^ new).tobytes())

    def encode(**digests: str) -> tuple[bytes, bytes, int]:
        encoded = _extra._encode_patch(old, new, "BF16", old.shape, **digests)
        assert encoded is not None, "some units differ"
        return encoded[:3]

    def numpy_encode() -> object:
        return np.flatnonzero(old != new)

    record, values, changed = encode()
    patch = delta.diff({"w": old}, {"w": new})  # of U16, whose units are those of BF16
    tensor = old.copy()

    def apply() -> None:
        patch._change("w").apply(tensor)

    def unzstd_xor() -> None:
        delta = np.frombuffer(zstandard.ZstdDecompressor().decompress(xored), "u2")
        np.bitwise_xor(tensor, delta, out=tensor)

    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "encode": (lambda: encode(base_digest=DIGEST, target_digest=DIGEST), numpy_encode),
        "encode + digest": (
            lambda: encode(base_digest=DIGEST),
            lambda: (numpy_encode(), digest(new)),
        ),
        "apply": (apply, unzstd_xor),
    }
    best = {name: [float("inf"), float("inf")] for name in rows}
    for _ in range(rounds):
        for name, pair in rows.items():
            for i, work in enumerate(pair):
                np.copyto(tensor, old)
                best[name][i] = min(best[name][i], timed(work))
                if name == "apply":
                    assert (tensor == new).all()
    print(f"{mb} MiB, {changed / old.size:.2%} changed")
    for name, (ours, theirs) in best.items():
        speeds = [old.nbytes / seconds / 1e9 for seconds in (ours, theirs)]
        print(f"  {name:16} {speeds[0]:6.2f} GB/s, {speeds[1]:5.2f} GB/s: x {theirs / ours:.1f}")
    size = len(record) + len(values)
    shares = [each / old.nbytes for each in (size, len(xored))]
    print(f"  {'size':16} {shares[0]:6.2%}, {shares[1]:.2%}: x {size / len(xored):.2f}")


def main() -> None:
    """Measures each share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--share", type=float, nargs="+", default=[0.01, 0.02])
    arguments = parser.parse_args()
    for share in arguments.share:
        measure(arguments.mb, share, arguments.rounds)


if __name__ == "__main__":
    main()
