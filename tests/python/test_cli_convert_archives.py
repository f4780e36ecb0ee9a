"""`safetensors convert` of archives that lie about what they hold."""

import os
import pickle
import zipfile

import numpy as np
import pytest

from safetensors._cli import torch_archive
from safetensors._cli.errors import CliError
from safetensors._cli.main import main

torch = pytest.importorskip("torch")


def complaint(capsys, folder, name):
    """Returns what `convert` says as it refuses the only file of a folder."""
    assert main(["convert", str(folder / name), str(folder / "out.safetensors")]) == 2
    assert os.listdir(folder) == [name]
    return capsys.readouterr().err


def rewrite(path, change, compression=zipfile.ZIP_STORED):
    """Writes a checkpoint of two tensors, and its members again as `change(name, data)` says."""
    torch.save({"a": torch.arange(100.0), "b": torch.ones(100_000)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, change(name.partition("/")[2], data))


def test_compressed_values(tmp_path, capsys):
    """They are not taken for the values themselves, as torch does when it maps a file."""
    rewrite(tmp_path / "m.pt", lambda name, data: data, zipfile.ZIP_DEFLATED)
    assert "is compressed, which torch.save never does" in complaint(capsys, tmp_path, "m.pt")


def test_a_storage_with_the_bytes_of_others(tmp_path, capsys):
    """A size that the pickle claims must be that of the member."""

    def change(name, data):
        if name == "data.pkl":
            assert data.count(b"Kd") == 2  # the storage and the shape of `a` have 100 elements
            return data.replace(b"Kd", b"M\xe8\x03")
        return data

    rewrite(tmp_path / "m.pt", change)
    said = complaint(capsys, tmp_path, "m.pt")
    assert "the storage `0` has 400 bytes, but its type and size require 4,000" in said


def test_a_member_twice(tmp_path, capsys):
    rewrite(tmp_path / "m.pt", lambda name, data: data)
    with zipfile.ZipFile(tmp_path / "m.pt", "a") as archive:
        archive.writestr("other/data/0", bytes(400))
    assert "`data/0` is twice in the archive" in complaint(capsys, tmp_path, "m.pt")


def test_a_damaged_archive_that_an_index_names(tmp_path):
    """torch takes it for an archive by its first bytes."""
    rewrite(tmp_path / "m.pt", lambda name, data: data)
    with open(tmp_path / "m.pt", "ab") as file:
        file.write(b"PK\5\6")
    with pytest.raises(CliError, match="m.pt: a damaged zip archive"):
        torch_archive.check(str(tmp_path / "m.pt"))


def doubled(depth):
    """Returns a pickle whose key has 2^depth values."""
    return b"\x80\x02}K\x01q\0" + b"h\0\x86q\0" * depth + b"K\x01s."


def nested(depth):
    """Returns a pickle whose key is nested."""
    return b"\x80\x02}K\x01" + b"\x85" * depth + b"K\x01s."


@pytest.mark.parametrize("pickled", [doubled(60), nested(300_000)])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_key_that_is_never_hashed(tmp_path, capsys, pickled, zipped):
    """Hashing it would take centuries, or overflow the stack."""
    if zipped:
        rewrite(tmp_path / "m.pt", lambda name, data: pickled if name == "data.pkl" else data)
    else:
        heads = (0x1950A86A20F9469CFC6C, 1001, {})
        head = b"".join(pickle.dumps(each, protocol=2) for each in heads)
        (tmp_path / "m.pt").write_bytes(head + pickled)
    assert "a key of a dictionary has more than 1000 values" in complaint(capsys, tmp_path, "m.pt")


def test_a_header_of_gigabytes_in_an_npz(tmp_path, capsys):
    """It is not read: what an archive stores as a kilobyte may have any size."""
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x02\0" + (1 << 31).to_bytes(4, "little")
        archive.writestr("a.npy", start + b" " * (4 << 20))
    said = complaint(capsys, tmp_path, "m.npz")
    assert "expected 2147483648 bytes got 16372" in said


def test_an_array_in_fortran_order_that_is_blown_up(tmp_path, capsys):
    """Such an array is held in memory."""
    np.savez_compressed(tmp_path / "m.npz", a=np.zeros((9000, 9000), np.uint8, order="F"))
    said = complaint(capsys, tmp_path, "m.npz")
    assert "array `a` would take 81.0 MB of memory, but the archive stores only " in said
