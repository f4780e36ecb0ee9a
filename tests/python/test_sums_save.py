"""Sums that are written when a model is saved, and old sums, which a save removes."""

import json
import os
import stat

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, _sums
from safetensors import numpy as stn
from support import cli

BLOCK = 4 << 20
MANY = {
    "long": np.arange(2 * BLOCK + 9, dtype="u1"),
    "middle": np.arange(300_000, dtype="f4"),
    "scalar": np.array(2.5),
    "none": np.zeros((0, 3), "i2"),
    'a\u00e9\u4e2d\U0001f600"\\\n': np.ones(3, "i8"),
}


def sums_of(path):
    """Returns the sums beside a file."""
    return path.with_name(path.name.removesuffix(".safetensors") + ".sums.json")


def check_as_hash(path, *words):
    """Checks that the sums beside a file are the bytes that `hash --write` writes."""
    saved = sums_of(path).read_bytes()
    cli.output("hash", path, "--write", *words)
    assert saved == sums_of(path).read_bytes()
    cli.output("hash", path, "--check")


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


def test_a_shard_makes_the_sums_of_its_model_stale(tmp_path):
    """A file with the name of a shard, which other programs write one by one."""
    for name in ("model.sums.json", "model-00001-of-00002.sums.json", "other.sums.json"):
        (tmp_path / name).write_text("x")
    stn.save_file(MANY, tmp_path / "model-00001-of-00002.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["model-00001-of-00002.safetensors", "other.sums.json"]


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


def test_save_files_removes_the_old_sums(tmp_path):
    """Of the model of this name, for one file and for several."""
    for most in ("5GB", 700, "5GB", "5GB"):
        (tmp_path / "model.sums.json").write_text("x")
        (tmp_path / "other.sums.json").write_text("x")
        stn.save_files({"a": np.zeros(80), "b": np.ones(80)}, tmp_path, max_shard_size=most)
        assert not (tmp_path / "model.sums.json").exists()
        assert (tmp_path / "other.sums.json").exists()


def test_commands_remove_the_old_sums(tmp_path):
    """`meta` in place and by a new file, `rename`, `update_file` and a writer."""
    path = cli.write(tmp_path / "m.safetensors", cli.small(), {"k": "v"})

    def written():
        cli.output("hash", path, "--write")
        return sums_of(path).exists()

    inode = path.stat().st_ino
    for words in (
        ["meta", path, "--set", "k=w"],
        ["meta", path, "--set", "k=" + "w" * 5000],
        ["rename", path, "--map", f"{next(iter(cli.small()))}=renamed"],
    ):
        assert written()
        cli.output(*words)
        assert not sums_of(path).exists(), words
        if words[-1] == "k=w":
            assert path.stat().st_ino == inode, "in place"
    assert written()
    safetensors.update_file(path, {"added": np.zeros(3)}, add=True)
    assert not sums_of(path).exists()


def test_a_failed_save_keeps_file_and_sums(tmp_path):
    """The old file stays, so its sums stay, too."""
    path = tmp_path / "m.safetensors"
    stn.save_file(MANY, path, sums=True)
    before = path.read_bytes(), sums_of(path).read_bytes()

    def refuse(*_):
        raise KeyboardInterrupt

    for sums in (None, True):
        with pytest.raises(KeyboardInterrupt):
            stn.save_file({"a": np.zeros(3)}, path, progress=refuse, sums=sums)
        assert before == (path.read_bytes(), sums_of(path).read_bytes())
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.sums.json"]


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


def test_new_sums_have_the_rights_of_the_old_ones(tmp_path):
    """As any file that is replaced."""
    path = tmp_path / "m.safetensors"
    stn.save_file(MANY, path, sums=True)
    sums_of(path).chmod(0o600)
    stn.save_file(MANY, path, sums=True, fsync=True)
    assert stat.S_IMODE(sums_of(path).stat().st_mode) == 0o600


def test_the_content(tmp_path):
    """What a reader finds in the sums."""
    path = tmp_path / "m.safetensors"
    stn.save_file(MANY, path, sums=True)
    content = json.loads(sums_of(path).read_bytes())
    assert content["files"]["m.safetensors"]["size"] == path.stat().st_size
    assert content["tensors"].keys() == MANY.keys()
