"""`safetensors convert`."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

import safetensors
from safetensors._cli.main import main
from safetensors._cli.source_model import ModelSource
from safetensors._cli.source_npz import NpzSource
from safetensors._dtypes import BITS
from safetensors._paths import is_folder_target
from support import cli, file_builder
from support.dtype_table import TABLE
from support.file_builder import raw


def test_types_are_the_cores():
    """The table of types has all that the core has."""
    assert {d.name: d.bits for d in TABLE} == BITS


def test_bytes_are_those_of_save_file(tmp_path):
    """A file of every type, in any order and with unusual names, gets the canonical bytes."""
    buffer = np.arange(1024).astype(np.uint8)
    specs, tensors = {}, {}
    for dtype in TABLE:
        if dtype.spec is None or dtype.bits == 6:
            continue
        for name in ("b", 'a\n"\\\x01é😀', "\x7f"):
            key = dtype.name + name
            nbytes = dtype.nbytes((2, 6))
            specs[key] = safetensors.TensorSpec(
                dtype=dtype.spec,
                shape=(2, 3) if dtype.bits == 4 else (2, 6),
                data_ptr=buffer.ctypes.data,
                data_len=nbytes,
            )
            tensors[key] = raw(dtype.name, (2, 6), buffer[:nbytes].tobytes())
    metadata = {"z": "1", "é": '"\t\x00', "a": ""}
    source = cli.write(tmp_path / "m.safetensors", dict(reversed(tensors.items())), metadata)
    cli.run("convert", source, tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == safetensors.serialize(specs, metadata)


def test_split_and_merge(tmp_path):
    """A file is split into shards with an index, and merged to the same bytes."""
    names = [f"layer.{i}.{kind}" for i in range(12) for kind in ("weight", "bias")]
    tensors = {name: raw("F32", (10,) if "weight" in name else (2,)) for name in names}
    source = cli.write(tmp_path / "m.safetensors", tensors, {"format": "pt"})
    cli.run("convert", source, tmp_path / "canonical.safetensors")
    canonical = (tmp_path / "canonical.safetensors").read_bytes()
    said = cli.output("convert", source, tmp_path / "out", "--max-shard-size", "200B")
    assert said.startswith(f"{tmp_path / 'out'}: 24 tensors, 576 B, 3 shards\n")
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path / "out")) == [*shards, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 576}
    assert index["weight_map"].keys() == tensors.keys()
    assert index["weight_map"]["layer.2.bias"] == shards[0], "neighbours lie together"
    assert index["weight_map"]["layer.10.bias"] == shards[2]
    assert "3 shards" in cli.output("check", tmp_path / "out")
    cli.run("convert", tmp_path / "out", tmp_path / "merged.safetensors")
    assert (tmp_path / "merged.safetensors").read_bytes() == canonical
    assert source.read_bytes() == file_builder.to_bytes(tensors, {"format": "pt"})


NPZ = {
    "plain": np.arange(10, dtype="<i8"),
    "fortran": np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)),
    "big endian": np.arange(7, dtype=">f8"),
    "both": np.asfortranarray(np.arange(6, dtype=">u2").reshape(2, 3)),
    "scalar": np.array(2.5, "<f2"),
    "none": np.zeros((0, 3), "<f4"),
    "flags": np.array([True, False]),
    "complex": np.array([1 + 2j], "<c8"),
    "large": np.arange(3_000_000, dtype=">i4"),
}


@pytest.mark.parametrize(
    "save", [np.savez, pytest.param(np.savez_compressed, marks=pytest.mark.slow)]
)
def test_npz(tmp_path, save):
    """Arrays of every layout and byte order keep their values."""
    save(tmp_path / "m.npz", **NPZ)
    cli.run("convert", tmp_path / "m.npz", tmp_path / "m.safetensors")
    with safetensors.safe_open(tmp_path / "m.safetensors", framework="np") as f:
        assert f.metadata() is None
        assert set(f.keys()) == set(NPZ)
        for name, array in NPZ.items():
            assert f.get_tensor(name).dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(f.get_tensor(name), array)


def npy(descr="<f4", shape="(2,)", data=bytes(8), fortran="False"):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"a.npy": npy(shape="(1000000000000,)")},
            "`a` has 8 bytes, but its shape and type require 4,0",
        ),
        ({"a.npy": npy(data=bytes(9))}, "`a` has 9 bytes"),
        ({"a.npy": npy(descr="|O")}, "`a` holds Python objects: refused"),
        (
            {"a.npy": npy(descr="<U1", data=bytes(8))},
            "m.npz: array `a`: the format has no type str",
        ),
        ({"a.npy": npy(descr="<c16", data=bytes(32))}, "`a`: the format has no type complex128"),
        ({"a.npy": b"what"}, "EOF"),
        ({"a.npy": npy(shape="__import__('os')")}, ""),
        ({"notes.txt": b"x"}, "`notes.txt` is not an array"),
    ],
)
def test_npz_errors(tmp_path, members, said):
    """An error is one line, and no file is written."""
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert said in cli.complaint("convert", tmp_path / "m.npz", tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == ["m.npz"]


def test_an_npz_is_no_folder(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.ones(1))
    said = cli.complaint("convert", tmp_path / "m.npz", tmp_path / "out.safetensors", "--name", "m")
    assert said == f"name and variant choose a model of a folder, and {tmp_path}/m.npz is none"


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors"])
def test_a_source_that_is_written_to_meanwhile(tmp_path, monkeypatch, capsys, name):
    """Before the second of two shards is written: one would have the old values."""
    path = tmp_path / name
    arrays = {"a": np.zeros(1000, "f4"), "b": np.zeros(1000, "f4")}
    if name == "m.npz":
        np.savez(path, **arrays)
    else:
        cli.write(path, {key: raw("F32", (1000,)) for key in arrays})
    kind = NpzSource if name == "m.npz" else ModelSource
    write = kind.write

    def change(self, writer, names):
        if "b" in names:
            os.utime(path, ns=(0, 0))
        write(self, writer, names)

    monkeypatch.setattr(kind, "write", change)
    words = ["convert", str(path), f"{tmp_path}/out/", "--max-shard-size", "4KB"]
    assert main(words) == 2
    said = f"safetensors: {path} was replaced or written to while it was read\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_a_damaged_npz(tmp_path):
    """The damage is found while reading, and no file is left."""
    np.savez_compressed(tmp_path / "m.npz", a=np.random.default_rng(0).random(100_000))
    content = bytearray((tmp_path / "m.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "m.npz").write_bytes(content)
    said = cli.complaint("convert", tmp_path / "m.npz", tmp_path / "m.safetensors")
    assert "m.npz: array `a`: " in said
    (tmp_path / "m.npz").write_bytes(content[:1000])
    assert "zip" in cli.complaint("convert", tmp_path / "m.npz", tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == ["m.npz"]


@pytest.mark.slow
def test_memory_and_ctrl_c(tmp_path):
    """An array of 400 MB is converted in a few megabytes; Ctrl-C leaves no file."""
    shape = (100_000_000,)
    options = {"mode": "w", "compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with (
        zipfile.ZipFile(tmp_path / "m.npz", **options) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(npy(shape="(100000000,)", data=b""))
        for _ in range(100):
            member.write(bytes(4_000_000))
    words = ["convert", tmp_path / "m.npz", tmp_path / "m.safetensors"]
    status, most = cli.peak_memory(*words)
    assert status == 0
    assert most < 200_000_000
    assert cli.parsed("ls", tmp_path / "m.safetensors")["files"][0]["tensors"][0]["shape"] == [
        shape[0]
    ]
    (tmp_path / "m.safetensors").unlink()
    process = subprocess.Popen(
        [sys.executable, "-m", "safetensors", *map(str, words)], stderr=subprocess.PIPE
    )
    while not list(tmp_path.glob(".m.safetensors.*.tmp")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b"safetensors: interrupted\n"
    assert process.returncode == 130
    assert os.listdir(tmp_path) == ["m.npz"]


@pytest.mark.slow
def test_memory_of_merging(tmp_path):
    """Tensors of 500 MB are not read whole."""
    header = file_builder.from_entries({"a": file_builder.entry("U8", (1 << 29,), 0, 1 << 29)})
    source = tmp_path / "m.safetensors"
    source.write_bytes(header)
    os.truncate(source, len(header) + (1 << 29))
    status, most = cli.peak_memory("convert", source, tmp_path / "out.safetensors")
    assert status == 0
    assert most < 150_000_000
    assert cli.output("diff", "--no-data", source, tmp_path / "out.safetensors")


def test_targets(tmp_path):
    """Without --force, no file is replaced and no two models are mixed in a folder."""
    source = cli.write(tmp_path / "m.safetensors", cli.small())
    out = tmp_path / "out"
    words = ["convert", source, out, "--max-shard-size"]
    cli.run(*words, "40B")
    before = sorted(os.listdir(out))
    assert "exists; --force replaces it" in cli.complaint(*words, "40B")
    cli.run(*words, "40B", "--force")
    assert sorted(os.listdir(out)) == before
    for options in (["1GB"], ["1GB", "--force"]):
        assert "two models in one folder get mixed up" in cli.complaint(*words, *options)
    target = cli.write(tmp_path / "old.safetensors", {"old": raw("U8", (1,))})
    old = target.read_bytes()
    assert "exists; --force" in cli.complaint("convert", source, target)
    assert target.read_bytes() == old
    cli.run("convert", source, target, "--force")
    assert "0 changed, 0 only in A" in cli.output("diff", source, target)
    cli.run("convert", source, f"{tmp_path}/new/")
    assert os.listdir(tmp_path / "new") == ["model.safetensors"]
    assert "a folder" in cli.complaint("convert", source, target, "--max-shard-size", "1GB")
    cli.run("convert", source, source, "--force")
    assert "0 changed" in cli.output("diff", source, target)


def test_what_is_no_other_model(tmp_path):
    """What macOS and killed saves leave in a folder, and patches, no reader takes for a model."""
    source = cli.write(tmp_path / "m.safetensors", cli.small())
    beside = {
        "._model.safetensors",
        ".model.safetensors.0123456789abcdef.tmp",
        "step1.safetensors-patch",
    }
    (tmp_path / "out").mkdir()
    for name in beside:
        (tmp_path / "out" / name).write_bytes(b"x")
    cli.run("convert", source, f"{tmp_path}/out/")
    assert set(os.listdir(tmp_path / "out")) == {*beside, "model.safetensors"}


@pytest.mark.parametrize("of_model", [False, True])
def test_what_a_target_is(tmp_path, of_model):
    """A name without an ending is a folder for a model, and a question for a file."""
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("x/", "there"):
        assert is_folder_target(f"{tmp_path}/{name}", of_model)
    for name in ("x.safetensors", "pipe", "file"):
        assert not is_folder_target(f"{tmp_path}/{name}", of_model)
        assert is_folder_target(f"{tmp_path}/{name}", of_model, is_sharded=True)
    for name in ("x.gguf", "x.npz", "x.bin", "x.pt"):
        said = f": the result is in safetensors, and {name[1:]} is the ending of another format$"
        for spelling in (name, name.upper()):
            with pytest.raises(ValueError, match=f"^{spelling}{said}"):
                is_folder_target(spelling, of_model)
    for name in ("x", "x.v2", "Llama-3.1-8B"):
        if of_model:
            assert is_folder_target(name, of_model)
            continue
        said = rf"^{name}: a folder \({name}/\) or a file \({name}.safetensors\)\?$"
        with pytest.raises(ValueError, match=said):
            is_folder_target(name, of_model)


def test_a_failure_removes_the_shards(tmp_path):
    """Shards that were written before the failure are removed."""
    np.savez_compressed(tmp_path / "m.npz", a=np.arange(9), b=np.random.default_rng(0).random(9999))
    content = bytearray((tmp_path / "m.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "m.npz").write_bytes(content)
    said = cli.complaint("convert", tmp_path / "m.npz", tmp_path / "out", "--max-shard-size", "100")
    assert "array `b`" in said
    assert os.listdir(tmp_path) == ["m.npz"]


def test_an_array_that_memory_cannot_hold(tmp_path, monkeypatch, capsys):
    """The error is one line that names file and array."""
    numpy = pytest.importorskip("numpy")
    from safetensors._cli import source_npz
    from safetensors._cli.main import main

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(source_npz, "_read_exactly", fail)
    numpy.savez(tmp_path / "a.npz", a=numpy.ones(1))
    source = str(tmp_path / "a.npz")
    assert main(["convert", source, str(tmp_path / "a.safetensors")]) == 2
    said = capsys.readouterr().err
    assert said == f"safetensors: {source}: array `a`: not enough memory\n"
