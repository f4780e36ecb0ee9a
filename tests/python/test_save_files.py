"""save_files: what it writes, what it returns, and what it refuses."""

import errno
import json
import os
import pathlib
import stat

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from safetensors import numpy as stn
from support import libc_calls, model_saves

MODEL = {f"{i}": np.full(100, i, "f4") for i in range(6)}
INDEX = "model.safetensors.index.json"


def names_in(folder):
    """Returns the names in a folder, sorted."""
    return sorted(os.listdir(folder))


def metadata_of(path):
    """Returns the metadata of a file."""
    with safe_open(path, "np") as file:
        return file.metadata()


def test_shards_are_files_of_save_file(tmp_path):
    """Each has the bytes that save_file gives its tensors; the index names all."""
    paths = stn.save_files(MODEL, tmp_path / "m", {"k": "v"}, max_shard_size="0.8KB")
    expected = [str(tmp_path / "m" / f"model-0000{i}-of-00003.safetensors") for i in (1, 2, 3)]
    assert paths == expected
    for i, path in enumerate(map(pathlib.Path, paths)):
        part = {name: MODEL[name] for name in (str(2 * i), str(2 * i + 1))}
        stn.save_file(part, tmp_path / "one", {"k": "v"})
        assert path.read_bytes() == (tmp_path / "one").read_bytes()
    index = json.loads((tmp_path / "m" / INDEX).read_text())
    weight_map = {str(i): os.path.basename(expected[i // 2]) for i in range(6)}
    assert index == {"metadata": {"total_size": 2400}, "weight_map": weight_map}
    assert model_saves.same(model_saves.load(tmp_path / "m"), MODEL)


def test_one_file(tmp_path):
    """If all fits into one file, there is no index."""
    assert stn.save_files(MODEL, tmp_path) == [str(tmp_path / "model.safetensors")]
    stn.save_file(MODEL, tmp_path / "one")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "one").read_bytes()


def test_no_tensors(tmp_path):
    stn.save_files({}, tmp_path)
    assert names_in(tmp_path) == ["model.safetensors"]
    assert model_saves.load(tmp_path) == {}


def test_names(tmp_path, monkeypatch):
    """Two models in one folder; paths of every kind, also relative ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    stn.save_files(MODEL, tmp_path / "m", max_shard_size=1200, name="model.fp16")
    paths = stn.save_files(model_saves.NEW, b"m", name="x")
    assert paths == [str(tmp_path / "m" / "x.safetensors")]
    assert stn.save_files(model_saves.OLD, "m", name="x") == paths
    files = [f"model.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert names_in("m") == [*files, "model.fp16.safetensors.index.json", "x.safetensors"]
    index = tmp_path / "m" / "model.fp16.safetensors.index.json"
    assert model_saves.same(model_saves.load(index), MODEL)


@pytest.mark.parametrize("options", [{"name": "../x"}, {"name": ""}, {"max_shard_size": "big"}])
def test_bad_options(tmp_path, options):
    """They are refused before the folder is made."""
    with pytest.raises(ValueError, match="^not a "):
        stn.save_files(MODEL, tmp_path / "m", **options)
    assert names_in(tmp_path) == []


def test_a_folder_named_as_a_file(tmp_path):
    with pytest.raises(ValueError, match="would be a folder with the name of a file: save_file"):
        stn.save_files({"a": np.zeros(2)}, tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == []
    (tmp_path / "m.safetensors").mkdir()  # the caller's own choice
    stn.save_files({"a": np.zeros(2)}, tmp_path / "m.safetensors")


def test_bad_folders(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        stn.save_files(MODEL, tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        stn.save_files(MODEL, tmp_path / "no" / "folder")
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("limit", [120, 10_000])
def test_a_directory_in_the_way(tmp_path, limit):
    """Of a file's name: the old model stays."""
    stn.save_files(MODEL, tmp_path, max_shard_size=1200)
    name = max(model_saves.files_of(model_saves.OLD, limit) - {INDEX, *model_saves.OTHERS})
    assert not (tmp_path / name).exists()
    (tmp_path / name).mkdir()
    (tmp_path / name / "x").touch()
    before = names_in(tmp_path)
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        stn.save_files(model_saves.OLD, tmp_path, max_shard_size=limit)
    assert names_in(tmp_path) == before
    assert model_saves.same(model_saves.load(tmp_path), MODEL)


def test_bad_tensor(tmp_path):
    """Of the last shard: nothing is left of the others, nor of the folder."""
    bad = {**MODEL, "bad": np.array(["text"])}
    with pytest.raises(SafetensorError):
        stn.save_files(bad, tmp_path / "m", max_shard_size=400)
    assert names_in(tmp_path) == []


def test_views_of_the_old_model(tmp_path):
    """Tensors may be views of the files that are replaced."""
    stn.save_files(MODEL, tmp_path, max_shard_size=400)
    views = {}
    for path in tmp_path.glob("*.safetensors"):
        views.update(stn.load_file(path))
    stn.save_files(views, tmp_path, max_shard_size=1200)
    assert model_saves.same(model_saves.load(tmp_path), MODEL)
    assert model_saves.same(views, MODEL)


class Flushes(model_saves.Steps):
    """Records what is flushed, renamed and removed."""

    def _step(self, name, function, args):
        if name == "fsync":
            self.names.append((name, os.path.basename(os.readlink(f"/proc/self/fd/{args[0]}"))))
        elif name == "move":
            self.names.append((name, os.fsdecode(args[3])))
        elif name == "remove" and not args[1].endswith(b".sums.json"):
            self.names.append((name, os.fsdecode(args[1])))
        return function(*args)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("change", model_saves.CHANGES)
def test_flushes(tmp_path, change, fsync):
    """If a model is replaced, its files reach the disk, with their names, before the switch is
    complete, the switch and the folder before the first old file goes, and the last rename before
    the switch."""
    old, new = model_saves.CHANGES[change]
    folder = tmp_path / "model"
    model_saves.make(folder, old)
    with Flushes() as seen:
        stn.save_files(model_saves.NEW, folder, max_shard_size=new, fsync=fsync)
    kinds = [kind for kind, _ in seen.names]
    flushed = [name for kind, name in seen.names if kind == "fsync"]
    assert seen.names[-1] == ("remove", "switch")
    if not fsync and old is None:
        assert flushed == []
        return
    parts = [name for name in flushed if name.isdigit() or name == "index"]
    count = len([name for name in os.listdir(folder) if ".safetensors" in name]) - 1  # the .bak
    assert len(parts) == count
    first = next(i for i, kind in enumerate(kinds) if kind != "fsync")
    assert flushed[:count] == parts
    if change in ("one file by one", "nothing by one file"):
        assert first == count
        assert kinds[-2] == ("fsync" if fsync else "move")
    else:
        assert flushed[count].endswith(".save")
        assert flushed[count + 1 : count + 3] == ["switch", "model"]
        assert first == count + 3
        if INDEX in [name for kind, name in seen.names if kind == "remove"]:
            assert seen.names[first : first + 2] == [("remove", INDEX), ("fsync", "model")]
        assert seen.names[-3:-1] == [("fsync", "model"), ("fsync", flushed[count])]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_new_folder_is_flushed_into_its_parent(tmp_path):
    with Flushes() as seen:
        stn.save_files(MODEL, tmp_path / "new", fsync=True)
    assert seen.names[-1] == ("fsync", tmp_path.name)


def test_without_locks(tmp_path):
    """A file system without locks can be saved to; what a kill leaves on it is not recovered, as
    the process may be alive."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with libc_calls.replaced({"flock": refuse}):
        stn.save_files(MODEL, tmp_path, max_shard_size=900)
        save = tmp_path / ".model.0123456789abcdef.save"
        save.mkdir(0o700)
        (save / "switch").touch()
        with pytest.raises(SafetensorError, match=r"it cannot be locked: No locks available,"):
            stn.save_files(MODEL, tmp_path)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
@pytest.mark.parametrize("change", [name for name in model_saves.CHANGES if "nothing" not in name])
def test_rights(tmp_path, change, mode):
    """The new files, also those with other names, take over the rights of the old ones."""
    old, new = model_saves.CHANGES[change]
    folder = tmp_path / "model"
    model_saves.make(folder, old)
    for path in folder.iterdir():
        path.chmod(mode)
    stn.save_files(model_saves.NEW, folder, max_shard_size=new)
    assert model_saves.state(folder, (old, new)) == "new"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {mode}


def test_rights_of_an_index(tmp_path):
    """They are not those of the shards."""
    stn.save_files(MODEL, tmp_path, max_shard_size=900)
    for path in tmp_path.glob("*.safetensors"):
        path.chmod(0o600)
    (tmp_path / INDEX).chmod(0o644)
    stn.save_files(MODEL, tmp_path, max_shard_size=400)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop(INDEX) == 0o644
    assert {*modes.values()} == {0o600}
    assert len(modes) == 6


def test_rights_of_new_models(tmp_path):
    """They follow the umask."""
    before = os.umask(0o026)
    try:
        stn.save_files(MODEL, tmp_path / "m", max_shard_size=900)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "m").iterdir()} == {0o640}


def test_the_parts_are_private(tmp_path):
    """Nobody else can enter their folder. Its sticky bit is set when the switch is complete."""
    modes = []

    def look(*_):
        (path,) = tmp_path.glob(".*.save")
        modes.append(path.stat().st_mode & 0o1777)

    before = os.umask(0)
    try:
        stn.save_files(MODEL, tmp_path, progress=look)
    finally:
        os.umask(before)
    assert {*modes} == {0o700}


def test_f4(tmp_path):
    """Half a byte each, also in the sizes of shards."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {str(i): np.zeros(100, ml_dtypes.float4_e2m1fn) for i in range(4)}
    assert len(stn.save_files(arrays, tmp_path, max_shard_size=100)) == 2
    assert json.loads((tmp_path / INDEX).read_text())["metadata"] == {"total_size": 200}


def test_torch(tmp_path):
    """Its metadata, and its errors, which come before anything is written."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_files, save_files

    tensors = {name: torch.from_numpy(array) for name, array in MODEL.items()}
    paths = save_files(tensors, tmp_path / "m", max_shard_size=900)
    assert [metadata_of(path) for path in paths] == [{"format": "pt"}] * 3
    loaded = load_files(paths)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    (path,) = save_files(tensors, tmp_path / "m", {"a": "b"})
    assert metadata_of(path) == {"a": "b", "format": "pt"}
    (path,) = save_files(tensors, tmp_path / "m", {"format": "mlx"})
    assert metadata_of(path) == {"format": "mlx"}
    before = names_in(tmp_path / "m")
    base = torch.zeros(10)
    for bad, error, text in (
        ({"a": base, "b": base}, RuntimeError, "Some tensors share memory"),
        ({"a": base[::2]}, ValueError, "You are trying to save a non contiguous tensor: `a`"),
        ({"a": base.to_sparse()}, ValueError, "You are trying to save a sparse tensor"),
        ({"a": 5}, ValueError, "Key `a` is invalid, expected torch.Tensor"),
        ([base], ValueError, "Expected a dict of"),
        ({"a": torch.zeros(1, device="meta")}, NotImplementedError, "Cannot copy out of meta"),
    ):
        with pytest.raises(error, match=text):
            save_files({**tensors, **bad} if isinstance(bad, dict) else bad, tmp_path / "m")
        assert names_in(tmp_path / "m") == before
    assert metadata_of(path) == {"format": "mlx"}


def test_torch_tensors_that_need_preparation(tmp_path):
    """A conjugate view, a scalar, an empty tensor."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_files, save_files

    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    tensors = {"a": conjugate, "b": torch.tensor(3.0), "c": torch.zeros(0, 3)}
    save_files(tensors, tmp_path, max_shard_size=8)
    loaded = load_files(tmp_path)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert len(names_in(tmp_path)) == 3
