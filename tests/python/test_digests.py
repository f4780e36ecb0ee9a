"""XXH3 of tensors and their blocks, against the package `xxhash`."""

import struct

import pytest

from safetensors import _core, _extra
from support.threads import together

DATA = bytes(i * i % 251 for i in range(300_000))
STEPS = [1000, 65_535, 65_536, 300_000]


def test_published_values():
    """The specification's value of no bytes, and canonical byte order."""
    assert _extra._xxh3_128(b"") == "xxh3-128:99aa06d3014798d86001c324468d497f"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [0, 1, 16, 240, 241, 65_536, 131_073, 300_000])
def test_equal_to_xxhash(size, step):
    """Digests and blocks are those of the other binding, however the bytes are cut."""
    xxhash = pytest.importorskip("xxhash")
    data = DATA[:size]
    hasher = _extra._TensorHasher("BF16", [2, 3], 65_536)
    for begin in range(0, size, step):
        hasher.update(memoryview(data)[begin : begin + step])
    assert hasher.digest() == "xxh3-128:" + xxhash.xxh3_128_hexdigest(b"BF16 [2,3]\n" + data)
    blocks = [
        xxhash.xxh3_64_intdigest(data[begin : begin + 65_536]) for begin in range(0, size, 65_536)
    ]
    assert hasher.blocks() == struct.pack(f"<{len(blocks)}Q", *blocks)
    assert _extra._xxh3_128(data) == "xxh3-128:" + xxhash.xxh3_128_hexdigest(data)


def test_bad_arguments():
    """Each bad argument has one clear error."""
    with pytest.raises(_core.SafetensorError, match="dtype F33 is invalid"):
        _extra._TensorHasher("F33", [])
    with pytest.raises(TypeError, match="dtype"):
        _extra._TensorHasher(3, [])
    with pytest.raises((TypeError, OverflowError), match="shape"):
        _extra._TensorHasher("F32", [-1])
    with pytest.raises(TypeError):
        _extra._TensorHasher("F32", []).update("text")
    with pytest.raises(TypeError):
        _extra._TensorHasher.__new__(_extra._TensorHasher)


def test_threads_hash_at_once():
    """Hashers of several threads do not mix, though the GIL is released."""

    def work(number):
        hasher = _extra._TensorHasher("U8", [number])
        for _ in range(50):
            hasher.update(DATA)
        return hasher.digest()

    wanted = [_extra._xxh3_128(f"U8 [{number}]\n".encode() + DATA * 50) for number in range(4)]
    assert together(work, range(4)) == wanted
