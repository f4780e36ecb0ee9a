"""A save of a model is refused as a whole if one of its files cannot take its place."""

import os

import pytest

import safetensors
from safetensors import SafetensorError
from support import children, model_saves, mounts

SHARD = "model-00002-of-00002.safetensors"

SAVE = """
    import os, sys
    from safetensors import SafetensorError
    from safetensors.numpy import save_files
    from support import model_saves
    if len(sys.argv) > 2:  # another user, who may not read Python's own modules
        save_files(model_saves.NEW, sys.argv[2])
        os.seteuid(65534)
    try:
        save_files(model_saves.NEW, sys.argv[1], max_shard_size=model_saves.SEVEN)
    except SafetensorError as error:
        print(error)
"""


@pytest.fixture
def folder(tmp_path):
    model_saves.make(tmp_path / "m", model_saves.TWO)
    return tmp_path / "m"


def check_untouched(folder, *others):
    """Checks that the folder has the old model and nothing of the new one."""
    files = model_saves.files_of(model_saves.OLD, model_saves.TWO)
    assert set(os.listdir(folder)) == {*files, *others}
    assert model_saves.load(folder).keys() == model_saves.OLD.keys()
    assert safetensors.recover(folder) == "clean"


def save(folder):
    """Saves the new model with a small file beside it."""
    specs = safetensors.specs_of(model_saves.NEW)
    with safetensors.safe_create(folder, specs, max_shard_size=model_saves.SEVEN) as writer:
        for name, array in model_saves.NEW.items():
            writer.write(name, array)
        writer._open().add_companion("notes.json", b"{}")


@pytest.mark.parametrize("place", ["model.sums.json", "notes.json"])
def test_a_folder_in_the_place_of_a_file(place, folder):
    (folder / place).mkdir()
    with pytest.raises(SafetensorError, match=f"Is a directory.*{place}"):
        save(folder)
    check_untouched(folder, place)


def test_a_mount_point(folder):
    prefix = mounts.prefix(f'mount --bind "$0/{SHARD}" "$0/{SHARD}"', folder)
    said = children.run(SAVE, folder, prefix=prefix)
    assert f"{SHARD}" in said
    assert "it is a mount point" in said
    check_untouched(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_in_a_sticky_folder(folder):
    for above in (folder.parent, *folder.parent.parents[:3]):
        above.chmod(above.stat().st_mode | 0o055)
    for name in os.listdir(folder):
        if name != SHARD:
            os.chown(folder / name, 65534, 65534)
    folder.chmod(0o1777)
    said = children.run(SAVE, folder, folder.parent / "first")
    assert f"{SHARD}" in said
    assert "it belongs to user root" in said
    check_untouched(folder)
