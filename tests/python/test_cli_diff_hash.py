"""`safetensors diff` and `safetensors hash`."""

import hashlib
import json

import pytest

from safetensors import _core
from support import cli, file_builder
from support.file_builder import raw


def test_the_digest_is_what_the_help_says(tmp_path):
    """The digest covers type, shape and bytes; a model's covers one line for each tensor."""
    tensors = cli.small()
    path = cli.write(tmp_path / "m.safetensors", tensors)
    found = cli.parsed("hash", path)
    lines = ""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        shape = ",".join(map(str, shape))
        digest = hashlib.sha256(f"{dtype} [{shape}]\n".encode() + data).hexdigest()
        assert found["tensors"][name] == digest
        lines += f"{json.dumps(name)} {digest}\n"
    assert found["whole"] == hashlib.sha256(lines.encode()).hexdigest()
    assert cli.output("hash", "--whole", path) == found["whole"] + "\n"
    assert f"{found['whole']}  whole\n" in cli.output("hash", path)


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


def test_the_command_takes_an_algorithm(tmp_path):
    """`hash --algorithm` hashes the same texts; the default is SHA-256."""
    tensors = cli.small()
    path = cli.write(tmp_path / "m.safetensors", tensors)
    assert cli.output("hash", path) == cli.output("hash", path, "--algorithm", "sha256")
    found = cli.parsed("hash", path, "--algorithm", "xxh3-128")
    lines = ""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        text = f"{dtype} [{','.join(map(str, shape))}]\n"
        digest = _core._xxh3_128(text.encode() + data).removeprefix("xxh3-128:")
        assert found["tensors"][name] == digest
        lines += f"{json.dumps(name)} {digest}\n"
    assert found["algorithm"] == "xxh3-128"
    assert found["whole"] == _core._xxh3_128(lines.encode()).removeprefix("xxh3-128:")
    assert found["whole"] + "  whole\n" in cli.output("hash", path, "--algorithm", "xxh3-128")
    assert cli.output("hash", "--whole", path, "--algorithm", "xxh3-128") == found["whole"] + "\n"
    assert "invalid choice" in cli.complaint("hash", path, "--algorithm", "md5")


def test_digests_of_long_tensors(tmp_path):
    """Tensors longer than one step have the digests of all their bytes."""
    tensor = raw("U8", (9_000_001,))
    path = cli.write(tmp_path / "m.safetensors", {"a": tensor})
    covered = b"U8 [9000001]\n" + tensor.data
    found = cli.parsed("hash", path, "--algorithm", "xxh3-128")["tensors"]["a"]
    assert "xxh3-128:" + found == _core._xxh3_128(covered)
    assert cli.parsed("hash", path)["tensors"]["a"] == hashlib.sha256(covered).hexdigest()
