"""`safetensors diff` and `safetensors hash`."""

import hashlib
import json

import pytest

from safetensors import _core
from support import cli, file_builder
from support.file_builder import Raw, raw

SAME = "0 changed, 0 only in A, 0 only in B"


def test_the_same_in_another_order_and_in_shards(tmp_path):
    """Order of tensors and number of files do not matter."""
    a = cli.write(tmp_path / "a.safetensors", cli.small(), {"format": "pt"})
    tensors = cli.small()
    b = cli.write(
        tmp_path / "b.safetensors", {n: tensors[n] for n in reversed(tensors)}, {"format": "pt"}
    )
    index = cli.sharded(tmp_path / "shards")
    assert SAME in cli.output("diff", a, b)
    assert SAME in cli.output("diff", index, a)
    digests = [cli.output("hash", "--whole", path) for path in (a, b, index, index.parent)]
    assert len(set(digests)) == 1
    assert cli.output("hash", a) == cli.output("hash", b) == cli.output("hash", index)


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


@pytest.mark.parametrize(
    "other",
    [
        {"a": raw("F32", (4,))},
        {"a": raw("I32", (2, 2))},
        {"a": raw("F32", (2, 2), bytes(16))},
        {"b": raw("F32", (2, 2))},
        {},
    ],
    ids=["shape", "dtype", "bytes", "name", "nothing"],
)
def test_every_property_counts(tmp_path, other):
    """Each property changes the digest, and diff exits with 1."""
    a = cli.write(tmp_path / "a.safetensors", {"a": raw("F32", (2, 2))})
    b = cli.write(tmp_path / "b.safetensors", other)
    assert cli.output("hash", "--whole", a) != cli.output("hash", "--whole", b)
    assert SAME not in cli.output("diff", a, b, status=1)


def test_differences_are_reported(tmp_path):
    """diff reports names on one side only, types, shapes, values and metadata."""
    long = raw("F32", (3_000_000,), bytes(12_000_000))
    changed = bytearray(long.data)
    changed[8_000_000] ^= 1
    changed[8_000_003] ^= 1
    a = {"same": raw("U8", (3,)), "gone": raw("U8", (1,)), "type": raw("U8", (2,)), "long": long}
    b = {
        "same": a["same"],
        "new": raw("F32", (1,)),
        "type": raw("I8", (2,)),
        "long": Raw("F32", (3_000_000,), bytes(changed)),
    }
    paths = [
        cli.write(tmp_path / "a.safetensors", a, {"format": "pt", "k": "v"}),
        cli.write(tmp_path / "b.safetensors", b, {"format": "np", "k": "v"}),
    ]
    assert cli.output("diff", *paths, status=1).splitlines() == [
        "- gone  U8 [1]",
        "+ new  F32 [1]",
        "! long  values differ from element 2,000,000 on, 2 bytes in all",
        "! type  U8 [2] -> I8 [2]",
        "- metadata format=pt",
        "+ metadata format=np",
        "1 same, 2 changed, 1 only in A, 1 only in B, 1 change of metadata",
    ]
    found = cli.parsed("diff", *paths, status=1)
    assert found["changed"]["long"] == {"first_element": 2_000_000, "bytes_that_differ": 2}
    assert found["metadata"] == {"format": {"a": "pt", "b": "np"}}
    assert found["same"] == 1
    header_only = cli.output("diff", "--no-data", "--no-metadata", *paths, status=1)
    assert "long" not in header_only
    assert "metadata" not in header_only


def test_only_metadata_differs(tmp_path):
    """diff reports it, unless an option excludes metadata."""
    a = cli.write(tmp_path / "a.safetensors", cli.small(), {"k": "v"})
    b = cli.write(tmp_path / "b.safetensors", cli.small())
    assert "- metadata k=v" in cli.output("diff", a, b, status=1)
    assert SAME in cli.output("diff", "--no-metadata", a, b)


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
def test_elements_below_a_byte(tmp_path, dtype):
    """The position of the first difference is in elements."""
    a = raw(dtype, (8,))
    b = Raw(dtype, (8,), a.data[:-1] + bytes([a.data[-1] ^ 0x80]))
    paths = [
        cli.write(tmp_path / f"{i}.safetensors", {"a": tensor}) for i, tensor in enumerate((a, b))
    ]
    change = cli.parsed("diff", *paths, status=1)["changed"]["a"]
    assert change["first_element"] == {"F4": 6, "F6_E2M3": 6}[dtype]
    assert change["bytes_that_differ"] == 1


def test_errors(tmp_path):
    """Errors have status 2, because 1 means "different"."""
    a = cli.write(tmp_path / "a.safetensors", cli.small())
    assert "No such file" in cli.complaint("diff", a, tmp_path / "none")
    broken = file_builder.write(tmp_path / "broken.safetensors", a.read_bytes()[:-1])
    assert "truncated?" in cli.complaint("diff", a, broken)
    for command in (["hash", tmp_path], ["diff", a, tmp_path]):
        broken.unlink(missing_ok=True)
        cli.write(tmp_path / "c.safetensors", cli.small())
        assert "is in both" in cli.complaint(*command)


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
