"""Sums that are written when a model is saved, and old sums, which a save removes."""

import os

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError
from safetensors import numpy as stn
from safetensors._checking import sums as _sums
from support import cli
from support.cli import sums_of
from support.file_builder import raw

BLOCK = 4 << 20
MANY = {
    "long": np.arange(2 * BLOCK + 9, dtype="u1"),
    "middle": np.arange(300_000, dtype="f4"),
    "scalar": np.array(2.5),
    "none": np.zeros((0, 3), "i2"),
    'a\u00e9\u4e2d\U0001f600"\\\n': np.ones(3, "i8"),
}


def check_as_hash(path, *words, model=None):
    """Checks that the sums beside a file are the bytes that `hash --write` writes."""
    saved = sums_of(path).read_bytes()
    cli.output("hash", model or path, "--write", *words)
    assert saved == sums_of(path).read_bytes()
    cli.output("hash", model or path, "--check")


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (True, []),
        ("xxh3-128", []),
        ("sha256", ["--algorithm", "sha256"]),
        (["xxh3-128", "sha256"], ["--algorithm", "sha256"]),
    ],
)
def test_as_hash_writes_them(tmp_path, sums, words):
    """The same bytes, with either algorithm, for long, short, scalar and empty tensors."""
    path = tmp_path / "m.safetensors"
    stn.save_file(MANY, path, {"k": "v"}, sums=sums)
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.sums.json"]
    check_as_hash(path, *words)


def test_all_dtypes(tmp_path):
    """Each dtype of the format that NumPy has."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {}
    for code, row in safetensors._core._dtypes().items():
        name = row["numpy"] or row["ml_dtypes"]
        if name:
            dtype = np.dtype(name if row["numpy"] else getattr(ml_dtypes, name))
            arrays[code] = np.ones((2, 4), dtype)
    assert len(arrays) > 15
    path = tmp_path / "m.safetensors"
    stn.save_file(arrays, path, sums=True)
    check_as_hash(path)
    stn.save_file({"swapped": np.arange(5, dtype=">i4")}, path, sums=True)
    check_as_hash(path)


def test_torch(tmp_path):
    """Plain tensors, those that need preparation, and models."""
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    path = tmp_path / "m.safetensors"
    plain = {name: torch.from_numpy(array) for name, array in MANY.items()}
    stt.save_file(plain, path, sums=True)
    check_as_hash(path)
    stt.save_file({"conj": torch.tensor([1 + 2j]).conj()}, path, sums="sha256")
    check_as_hash(path, "--algorithm", "sha256")
    stt.save_model(torch.nn.Linear(3, 4), path, sums=True)
    check_as_hash(path)
    assert _sums.read(str(sums_of(path))).tensors.keys() == {"weight", "bias"}


@pytest.mark.parametrize("framework", ["flax", "tensorflow", "paddle", "mlx"])
def test_frameworks(tmp_path, framework):
    """Those that save by way of NumPy pass the argument on."""
    module = pytest.importorskip(f"safetensors.{framework}")
    make = {
        "flax": lambda: __import__("jax").numpy.ones((2, 3)),
        "tensorflow": lambda: __import__("tensorflow").ones((2, 3)),
        "paddle": lambda: __import__("paddle").ones((2, 3)),
        "mlx": lambda: __import__("mlx.core").core.ones((2, 3)),
    }[framework]
    path = tmp_path / "m.safetensors"
    module.save_file({"a": make()}, path, sums=True)
    check_as_hash(path)


def test_wrong_options(tmp_path):
    """Unknown algorithms, and names that are no safetensors files, change nothing."""
    for sums in ("md5", ["md5"], [True], 3.5):
        with pytest.raises((ValueError, TypeError)):
            stn.save_file(MANY, tmp_path / "m.safetensors", sums=sums)
    with pytest.raises(ValueError, match="ends with .safetensors"):
        stn.save_file(MANY, tmp_path / "m.bin", sums=True)
    os.mkfifo(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="sums are of files"):
        stn.save_file(MANY, tmp_path / "p.safetensors", sums=True)
    assert os.listdir(tmp_path) == ["p.safetensors"]


@pytest.mark.parametrize("none", [None, False, []])
def test_a_save_without_sums_removes_the_old_ones(tmp_path, none):
    """Of this file only."""
    path = tmp_path / "m.safetensors"
    others = [tmp_path / name for name in ("m.json", "n.sums.json", "m.sums.json.bak")]
    for other in others:
        other.write_text("x")
    stn.save_file(MANY, path, sums=True)
    stn.save_file({"a": np.zeros(3)}, path, sums=none)
    assert not sums_of(path).exists()
    assert all(other.read_text() == "x" for other in others)


def test_a_save_through_a_link(tmp_path):
    """The sums beside the link and those beside the file are removed; new ones are by the link."""
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "r.safetensors", tmp_path / "l.safetensors"
    stn.save_file(MANY, real, sums=True)
    link.symlink_to(real)
    cli.output("hash", link, "--write")
    stn.save_file({"a": np.zeros(3)}, link, sums=True)
    assert link.is_symlink()
    assert not sums_of(real).exists()
    check_as_hash(link)


def test_commands_remove_the_old_sums(tmp_path):
    """`meta`, `rename`, `update_file` and a writer."""
    path = cli.write(tmp_path / "m.safetensors", cli.small(), {"k": "v"})

    def written():
        cli.output("hash", path, "--write")
        return sums_of(path).exists()

    for words in (
        ["meta", path, "--set", "k=w"],
        ["rename", path, "--map", f"{next(iter(cli.small()))}=renamed"],
    ):
        assert written()
        cli.output(*words)
        assert not sums_of(path).exists(), words
    assert written()
    safetensors.update_file(path, {"added": np.zeros(3)}, add=True)
    assert not sums_of(path).exists()


def test_a_folder_with_the_name_of_the_sums(tmp_path):
    """Is no file of sums: a save leaves it alone; sums cannot be written, and nothing is saved."""
    path = tmp_path / "m.safetensors"
    sums_of(path).mkdir()
    stn.save_file(MANY, path)
    before = path.read_bytes()
    with pytest.raises(SafetensorError, match=r"m\.sums\.json"):
        stn.save_file({"a": np.zeros(3)}, path, sums=True)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.sums.json"]


ARRAYS = {f"layers.{i}": np.full(300_000, i, "f4") for i in range(4)} | {"none": np.zeros(0)}


@pytest.mark.parametrize("most", ["5GB", "2MB"])
@pytest.mark.parametrize("sums", [True, "sha256"])
def test_save_files(tmp_path, most, sums):
    """One file or several; the sums are those of the model, with the names of its files."""
    words = ["--algorithm", "sha256"] if sums == "sha256" else []
    for _ in range(2):
        paths = stn.save_files(ARRAYS, tmp_path, max_shard_size=most, sums=sums)
        assert len([name for name in os.listdir(tmp_path) if name.endswith("sums.json")]) == 1
        check_as_hash(tmp_path / "model.safetensors", *words, model=tmp_path)
    assert len(paths) == (1 if most == "5GB" else 4)
    stn.save_files({"a": np.zeros(3)}, tmp_path, name="other", sums=sums)
    check_as_hash(tmp_path / "other.safetensors", *words)
    stn.save_files({"a": np.zeros(3)}, tmp_path)
    assert not (tmp_path / "model.sums.json").exists()


def test_save_files_of_torch(tmp_path):
    """As of NumPy."""
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    tensors = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    stt.save_files(tensors, tmp_path, max_shard_size="2MB", sums=True)
    check_as_hash(tmp_path / "model.safetensors", model=tmp_path)


def test_a_writer(tmp_path):
    """Tensors that are written whole, in parts in and out of order, copied and cast."""
    source = cli.write(tmp_path / "source.safetensors", {"a": raw("F32", (70, 100))})
    rows = np.arange(BLOCK + 30, dtype="u1").reshape(-1, 2)
    path = tmp_path / "m.safetensors"
    specs = {
        "whole": ("U8", (2 * BLOCK + 9,)),
        "backwards": ("U8", rows.shape),
        "stream": ("U8", rows.shape),
        "columns": ("U8", rows.shape),
        "copied": ("F32", (70, 100)),
        "cast": ("BF16", (70, 100)),
        "none": ("I8", (0,)),
    }
    for sums, words in ((True, []), ("sha256", ["--algorithm", "sha256"])):
        with (
            safetensors.safe_create(path, specs, sums=sums) as writer,
            safetensors.safe_open(source, "np") as file,
        ):
            with pytest.raises(SafetensorError):
                writer.write("stream", b"too short")
            writer.write("whole", MANY["long"])
            writer.write_slice("backwards", slice(3, None), rows[3:])
            writer.write_slice("backwards", slice(0, 3), rows[:3])
            writer.write_slice("columns", (slice(None), 1), rows[:, 1])
            writer.write_slice("columns", (slice(None), 0), rows[:, 0])
            with writer.open("stream") as stream:
                for begin in range(0, rows.size, 1_000_001):
                    stream.write(rows.tobytes()[begin : begin + 1_000_001])
            writer.copy(file, "a", to="copied")
            writer.copy(file, "a", to="cast", cast=True)
        check_as_hash(path, *words)


def test_a_tensor_that_is_refused_twice(tmp_path):
    """What was given, but not written, is not what the digest is of."""
    path = tmp_path / "m.safetensors"
    writer = safetensors.safe_create(path, {"a": ("U8", (4,)), "b": ("U8", (4,))}, sums=True)
    with writer:
        writer.write("a", b"good")
        with pytest.raises(SafetensorError, match="written before"):
            writer.write("a", b"evil")
        for wrong in (b"long!", b"evi"):
            with pytest.raises(SafetensorError):
                writer.write("b", wrong)
        writer.write("b", b"good")
    check_as_hash(path)


def test_writers_without_specs_and_of_several_files(tmp_path):
    """The header of one is written last; the other has files of its own."""
    path = tmp_path / "m.safetensors"
    with safetensors.safe_create(path, sums=True) as writer:
        for name, array in MANY.items():
            writer.write(name, array)
    check_as_hash(path)
    for specs in (None, ARRAYS):
        folder = tmp_path / f"folder{specs is None}"
        with safetensors.safe_create(folder, specs, max_shard_size="2MB", sums=True) as writer:
            for name in reversed(ARRAYS):
                writer.write(name, ARRAYS[name])
        check_as_hash(folder / "model.safetensors", model=folder)
    with safetensors.safe_create(tmp_path / "empty", {}, max_shard_size=9, sums=True):
        pass
    check_as_hash(tmp_path / "empty" / "model.safetensors", model=tmp_path / "empty")


def test_targets_without_sums(tmp_path):
    """Sums need a path, and nothing else changes."""
    with open(tmp_path / "f", "wb") as file:
        for target in (file, file.fileno(), lambda begin, view: None):
            with pytest.raises(ValueError, match="need a path"):
                safetensors.safe_create(target, {}, sums=True)
    with pytest.raises(ValueError, match="sums is"):
        safetensors.safe_create(tmp_path / "d", {}, max_shard_size=9, sums="md5")
    assert os.listdir(tmp_path) == ["f"]


def test_update_file(tmp_path):
    """The new sums are of the whole new file."""
    path = tmp_path / "m.safetensors"
    stn.save_file(ARRAYS, path, sums=True)
    safetensors.update_file(path, {"layers.1": np.full(300_000, 7, "f4")}, sums=True)
    check_as_hash(path)


def test_save_file_async(tmp_path):
    """Of NumPy and torch; tensors larger than a chunk, and several in one."""
    path = tmp_path / "m.safetensors"
    arrays = {**MANY, "huge": np.arange(40 << 20, dtype="u1")}
    future = stn.save_file_async(arrays, path, sums="sha256")
    for array in arrays.values():
        array.flags.writeable = True
    future.result()
    check_as_hash(path, "--algorithm", "sha256")
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    stt.save_file_async({"a": torch.arange(3_000_000)}, path, sums=True).result()
    check_as_hash(path)
    stt.save_file_async({"a": torch.arange(3)}, path).result()
    assert not sums_of(path).exists()
