"""Files whose names the caller did not give, in folders where others may write."""

import os
import stat

import pytest

import safetensors
from safetensors import numpy as stn
from safetensors import sums
from support import children, cli, libc_calls, model_saves

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def private(tmp_path):
    """A file that no save may touch."""
    path = tmp_path / "private"
    path.write_text("private")
    yield path
    assert path.read_text() == "private"


def write_sums(model):
    assert sums.write(model) == str(model.with_suffix(".sums.json"))


def hash_write(model):
    cli.output("hash", model, "--write")


@pytest.mark.parametrize("write", [write_sums, hash_write])
def test_sums_replace_a_link(tmp_path, private, write):
    """Archives and git carry links; also if it leads to nothing."""
    folder = tmp_path / "m"
    stn.save_files(model_saves.NEW, folder)
    link = folder / "model.sums.json"
    for target in (private, tmp_path / "nothing"):
        link.symlink_to(target)
        write(folder / "model.safetensors")
        assert not link.is_symlink()
        assert sums.read(link).files.keys() == {"model.safetensors"}
        link.unlink()
    assert not (tmp_path / "nothing").exists()


def save_with_sums(model):
    stn.save_file(model_saves.NEW, model, sums=True, fsync=True)


@pytest.mark.parametrize("write", [write_sums, hash_write, save_with_sums])
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_sums_have_the_rights_of_the_model(tmp_path, write, mode):
    """Digests tell about values. Old sums do not widen the rights."""
    path = tmp_path / "model.safetensors"
    stn.save_file(model_saves.NEW, path)
    path.chmod(mode)
    for _ in range(2):
        write(path)
        assert mode_of(tmp_path / "model.sums.json") == mode
        (tmp_path / "model.sums.json").chmod(0o666)


@pytest.mark.parametrize("limit", [model_saves.ONE, model_saves.TWO])
def test_sums_of_a_save_have_the_rights_of_the_model(tmp_path, limit):
    stn.save_files(model_saves.OLD, tmp_path, max_shard_size=limit, sums=True)
    for path in tmp_path.glob("*.safetensors"):
        path.chmod(0o600)
    stn.save_files(model_saves.NEW, tmp_path, max_shard_size=limit, sums=True)
    assert mode_of(tmp_path / "model.sums.json") == 0o600


def save_files(folder, meanwhile):
    stn.save_files(
        model_saves.NEW,
        folder,
        max_shard_size=model_saves.TWO,
        progress=lambda *_: meanwhile(),
        sums=True,
    )


def safe_create(folder, meanwhile):
    writer = safetensors.safe_create(
        folder, model_saves.NEW, max_shard_size=model_saves.TWO, sums=True
    )
    with writer:
        for name, array in model_saves.NEW.items():
            writer.write(name, array)
            meanwhile()


@pytest.mark.parametrize("save", [save_files, safe_create])
def test_a_private_folder_that_is_removed_while_it_is_empty(tmp_path, save):
    """By another user, who renames a folder over it: the save makes another one."""
    removed = []

    def make(function, args):
        if args[1] == b"switch" and args[2] & os.O_CREAT and len(removed) < 3:
            (made,) = (tmp_path / "m").glob(".model.*.save")
            removed.append(made)
            made.rmdir()
        return function(*args)

    (tmp_path / "m").mkdir()
    with libc_calls.replaced({"openat": make}):
        save(tmp_path / "m", lambda: None)
    assert len({*removed}) == 3
    assert model_saves.same(model_saves.load(tmp_path / "m"), model_saves.NEW)
    assert not [path for path in (tmp_path / "m").iterdir() if path.name.startswith(".")]


READER = """
    import os, pathlib
    from safetensors import _shards, SafetensorError
    from safetensors._saving import folder
    os.seteuid(65534)  # who may not read Python's own modules
    try:
        _shards.find_shards(sys.argv[1])
    except (SafetensorError, FileNotFoundError) as error:
        print(error)
    else:
        print("found")
"""


@NEEDS_ROOT
def test_readers_of_another_user_see_whether_a_switch_is_complete(tmp_path):
    """They cannot look into the private folder, so its sticky bit tells them."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "m"
    stn.save_files(model_saves.OLD, folder, max_shard_size=model_saves.TWO)
    said = []

    def look(name, function, args):
        if name == "move" and args[3].startswith(b"model"):
            said.append(children.run(READER, folder))
        return function(*args)

    with model_saves.Steps(1, look, to_the_end=True):
        stn.save_files(
            model_saves.NEW,
            folder,
            max_shard_size=model_saves.THREE,
            progress=lambda *_: said.append(children.run(READER, folder)),
        )
    assert said[0].strip() == "found"
    assert "a save of `model` was interrupted while its files took their places" in said[-1]
    assert children.run(READER, folder).strip() == "found"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:The ranks do not")
def test_files_of_ranks(tmp_path, private, monkeypatch):
    """A link under the name of a rank's file is replaced, and not followed; and a recovery in the
    folder leaves what the rank writes alone, however long it takes."""
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    from safetensors import dcp

    real, found = dcp.bytes_of, []

    def pieces(tensor):
        with pytest.raises(safetensors.SafetensorError, match="another process is saving") as error:
            safetensors.recover(tmp_path)
        found.append(error)
        return real(tensor)

    name = "shard-00001-model-00001-of-00001.safetensors"
    (tmp_path / name).symlink_to(private)
    monkeypatch.setattr(dcp, "can_share_files", lambda *_: False)
    monkeypatch.setattr(dcp, "bytes_of", pieces)
    writer = dcp.StorageWriter(tmp_path, fsync=True)
    checkpoint.save({"a": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert len(found) == 1
    assert not (tmp_path / name).is_symlink()
    assert stn.load_file(tmp_path / name)["a"].sum() == 3
    assert sorted(os.listdir(tmp_path)) == ["private", name]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:The ranks do not")
@pytest.mark.parametrize("nbytes", [128, 201])
def test_files_of_ranks_of_a_model_with_a_long_name(tmp_path, monkeypatch, nbytes):
    """The names of their files are longer than those of models, but no longer than file systems
    allow."""
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    from safetensors import dcp

    monkeypatch.setattr(dcp, "can_share_files", lambda *_: False)
    name = "\u00e9" + "n" * (nbytes - 2)
    for _ in range(2):  # the second one replaces the first
        writer = dcp.StorageWriter(tmp_path / "ranks", name=name)
        checkpoint.save({"a": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert os.listdir(tmp_path / "ranks") == [f"shard-00001-{name}-00001-of-00001.safetensors"]
    (path,) = dcp.consolidate(tmp_path / "ranks", tmp_path / "model", name=name)
    assert os.path.basename(path) == f"{name}.safetensors"
    assert stn.load_file(path)["a"].sum() == 3
    with pytest.raises(ValueError, match="at most 201 bytes"):
        dcp.StorageWriter(tmp_path / "ranks", name="n" * 202)


@pytest.mark.parametrize("kind", ["save", "journal"])
def test_another_folder_of_this_user_with_such_a_name(tmp_path, kind):
    """Who may rename a folder that only its owner can enter does not make a recovery empty it."""
    stem = "model" if kind == "save" else "model.safetensors"
    mine = tmp_path / f".{stem}.0123456789abcdef.{kind}"
    mine.mkdir(0o700)
    for name in ("00001", "thesis.txt"):
        (mine / name).write_text("mine")
    os.utime(mine, (1e9, 1e9))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.warns(UserWarning, match="was left alone: .* has other files in it"):
            assert safetensors.recover(path) == "clean"
        stn.save_files(model_saves.NEW, tmp_path)
    assert {each.name for each in mine.iterdir()} == {"00001", "thesis.txt"}
