"""`safetensors diff` and `safetensors hash`."""

import hashlib
import json

import pytest

from safetensors import _extra
from support import cli, file_builder
from support.file_builder import raw


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def xxh3_128(data):
    return _extra._xxh3_128(data).removeprefix("xxh3-128:")


@pytest.mark.parametrize(
    ("algorithm", "digest"), [("sha256", sha256), ("xxh3-128", xxh3_128)], ids=["sha256", "xxh3"]
)
def test_the_digest_is_what_the_help_says(tmp_path, algorithm, digest):
    """The digest covers type, shape and bytes; a model's covers one line for each tensor."""
    tensors = cli.small()
    path = cli.write(tmp_path / "m.safetensors", tensors)
    words = ("--algorithm", algorithm)
    found = cli.parsed("hash", path, *words)
    lines = ""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        expected = digest(f"{dtype} [{','.join(map(str, shape))}]\n".encode() + data)
        assert found["tensors"][name] == expected
        lines += f"{json.dumps(name)} {expected}\n"
    assert (found["algorithm"], found["whole"]) == (algorithm, digest(lines.encode()))
    assert cli.output("hash", "--whole", path, *words) == found["whole"] + "\n"
    printed = cli.output("hash", path, *words)
    assert f"{found['whole']}  whole\n" in printed
    assert (cli.output("hash", path) == printed) == (algorithm == "sha256")


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """A tensor of 268 MB is read in a few megabytes of memory."""
    for name in "ab":
        path = tmp_path / f"{name}.safetensors"
        header = file_builder.from_entries({"a": file_builder.entry("F32", (1 << 26,), 0, 1 << 28)})
        path.write_bytes(header)
        with path.open("r+b") as file:
            file.truncate(len(header) + (1 << 28))
    status, most = cli.peak_memory("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert status == 0
    assert most < 150_000_000
    status, most = cli.peak_memory("hash", tmp_path / "a.safetensors")
    assert status == 0
    assert most < 150_000_000


def test_digests_of_long_tensors(tmp_path):
    """Tensors longer than one step have the digests of all their bytes."""
    tensor = raw("U8", (9_000_001,))
    path = cli.write(tmp_path / "m.safetensors", {"a": tensor})
    covered = b"U8 [9000001]\n" + tensor.data
    found = cli.parsed("hash", path, "--algorithm", "xxh3-128")["tensors"]["a"]
    assert found == xxh3_128(covered)
    assert cli.parsed("hash", path)["tensors"]["a"] == sha256(covered)
